"""The Celery application, and the only code that publishes messages.

A message says that a list has work to do. It contains no key, because the keys and their state are
in Redis (workers.queue). Therefore no harm is done if messages are lost, duplicated or reordered,
and the settings below prefer prompt recovery to durable messages. In measurements, early
acknowledgement with prefetching disabled survived restarts of Redis without running a task twice.

Messages go through the default exchange straight to the list that has the queue's name. So
messages are still routed after Redis has lost its data, including Celery's binding tables.
"""

from __future__ import annotations

import re
from functools import partial
from ssl import CERT_REQUIRED
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from celery import Celery
from celery.signals import setup_logging
from kombu import Connection, Exchange, Queue
from kombu.exceptions import OperationalError
from kombu.transport.redis import Channel, QoS, Transport

from workers import brokerscripts
from workers.config.redisurl import is_sentinel, parse_sentinels
from workers.errors import QueueUnavailable
from workers.queue.connection import FileLogin, sentinel_options, split_login

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from workers.config.settings import Settings

TASK_TICK: Final = "system.tick"
TASK_WORK: Final = "system.work"
# The queue for beat's periodic messages (ticks); every worker reads it.
SYSTEM_QUEUE: Final = "csifleet.system"

# Times are in seconds. kombu gives up a half-open connection after one or two health checks, plus
# the second that reading the lists takes: 4 to 7 s in all.
TRANSPORT: Final = {
    "priority_steps": [0],
    "socket_timeout": 5,
    "socket_connect_timeout": 5,
    "socket_keepalive": True,
    "health_check_interval": 3,
    # Messages are not copied into an `unacked` hash: if a message is lost, the sweep sends another
    # one for the same list.
    "ack_emulation": False,
}


class FleetApp(Celery):
    """A Celery application whose remote control commands are read-only."""

    control_cls = "workers.tasks.remote:FleetControl"


def broker_url(settings: Settings) -> str:
    """Return the Redis URL in Celery's form; never log it, because it may contain a password.

    For a unix socket, the scheme in this form is `redis+socket`.
    """
    url = settings.redis.for_celery().url_with_credentials()
    if is_sentinel(url):
        place = parse_sentinels(url)
        login = ":".join(quote(text, safe="") for text in (place.username, place.password))
        return ";".join(
            f"sentinel://{login}@{f'[{host}]' if ':' in host else host}:{port}/{place.database}"
            for host, port in place.hosts
        )
    if not url.startswith("unix://"):
        return url
    socket, mark, query = url.replace("unix://", "redis+socket://", 1).partition("?")
    return socket + mark + re.sub(r"(^|&)db=", r"\1virtual_host=", query)


def transport_options(settings: Settings) -> dict[str, Any]:
    """Return the connection options for kombu; with Sentinel, they also contain a password."""
    url = settings.redis.for_celery().url_with_credentials()
    if not is_sentinel(url):
        return TRANSPORT
    place = parse_sentinels(url)
    return {**TRANSPORT, "master_name": place.master, "sentinel_kwargs": sentinel_options(place)}


def tls_options(settings: Settings) -> dict[str, Any] | None:
    """Return the TLS options for Sentinel; None if TLS is not used, and for a `rediss://` URL."""
    url = settings.redis.url_with_credentials()
    tls = dict(parse_sentinels(url).tls) if is_sentinel(url) else {}
    return {"ssl_cert_reqs": CERT_REQUIRED, **tls} if tls else None


def keep_logging(**_: Any) -> None:
    """Receive Celery's `setup_logging` signal, so that Celery keeps csi-fleet's log handlers."""


def make_app(settings: Settings, on_malformed: Callable[[], None] = lambda: None) -> Celery:
    """Build the application without connecting to anything.

    Args:
        settings: the settings of the process.
        on_malformed: called for each unreadable message that was dropped from a Celery list.
    """
    setup_logging.connect(keep_logging)
    # Celery closes a broken connection twice. The second time, kombu would use that connection to
    # try to return a message that it still holds. The attempt would fail, and either end the worker
    # or dump the message.
    Channel.do_restore = False
    app = FleetApp("csi-fleet", set_as_current=False)
    tasks = {SYSTEM_QUEUE: TASK_TICK, "": TASK_WORK}
    messages = brokerscripts.Messages(tasks, lambda: app.amqp.queues, on_malformed)
    brokerscripts.install(Channel, QoS, Transport, messages)
    app.conf.update(
        broker_url=broker_url(settings),
        broker_transport_options=transport_options(settings),
        broker_use_ssl=tls_options(settings),
        broker_connection_retry_on_startup=True,
        broker_connection_max_retries=None,
        broker_channel_error_retry=True,
        result_backend=None,
        task_ignore_result=True,
        task_serializer="json",
        accept_content=["json"],
        task_acks_late=False,
        worker_disable_prefetch=True,
        worker_prefetch_multiplier=1,
        worker_cancel_long_running_tasks_on_connection_loss=False,
        worker_hijack_root_logger=False,
        worker_redirect_stdouts=False,
        worker_enable_remote_control=True,
        enable_utc=True,
        task_create_missing_queues=True,
        task_default_queue=SYSTEM_QUEUE,
        task_publish_retry_policy={
            "max_retries": 2,
            "interval_start": 0.1,
            "interval_step": 0.2,
            "interval_max": 0.5,
        },
    )
    if (login := file_login(settings)) is not None:
        # Celery has no setting for this kombu option.
        amqp: Any = app.amqp
        amqp.Connection = partial(Connection, credential_provider=login)
    return app


def beat_settings(settings: Settings) -> dict[str, Any]:
    """Return the settings of celery-redbeat, which lets a second beat take over within seconds.

    It does no harm if two beats are running at the same time (M-004). Use these settings only for
    beat's own application. They contain the Redis URL with the password, and a worker shows its
    configuration to every client that asks for it, such as Flower.
    """
    return {
        "beat_scheduler": "redbeat.RedBeatScheduler",
        "beat_max_loop_interval": 1,
        # There are no results, so Celery must not schedule a task that deletes old ones.
        "result_expires": None,
        **_redbeat_connection(settings),
        "redbeat_key_prefix": "redbeat:",
        "redbeat_lock_timeout": 6,
        "beat_schedule": {
            "tick": {
                "task": TASK_TICK,
                "schedule": 5.0,
                "options": {"queue": SYSTEM_QUEUE, "expires": 15},
            },
        },
    }


def file_login(settings: Settings) -> FileLogin | None:
    """Return the login from the password file; None if there is no file, and for a unix socket.

    For a unix socket, kombu accepts a login only in the URL.
    """
    redis = settings.redis.for_celery()
    if not redis.password_file or redis.url.startswith("unix:"):
        return None
    return FileLogin(redis.username, redis.password, redis.password_file)


def _redbeat_connection(settings: Settings) -> dict[str, Any]:
    """Return the connection settings of redbeat, which has its own options for Sentinel."""
    url, login = settings.redis.for_celery().url_with_credentials(), file_login(settings)
    options: dict[str, Any] = {"socket_timeout": 5, "retry_period": 30}
    if login is not None:
        options["credential_provider"] = login
    if not is_sentinel(url):
        bare = split_login(url)[0] if login is not None else url
        return {"redbeat_redis_url": bare, "redbeat_redis_options": options}
    place = parse_sentinels(url)
    options |= {
        "sentinels": list(place.hosts),
        "service_name": place.master,
        "sentinel_kwargs": sentinel_options(place),
        "db": place.database,
        **(place.login if login is None else {}),
    }
    return {
        "redbeat_redis_url": "redis-sentinel://",
        "redbeat_redis_options": options,
        "redbeat_redis_use_ssl": dict(place.tls) or None,
    }


# The routing key is the name of the Redis list; no binding table is needed.
DIRECT: Final = Exchange("")


def queue_for(name: str) -> Queue:
    """Return the Celery queue for one Redis list, bound to the default exchange."""
    return Queue(name, DIRECT, routing_key=name)


def publisher(app: Celery) -> Callable[[Iterable[str]], None]:
    """Return a function that notifies workers that work is due in the given Celery lists.

    If publishing fails, the caller logs the failure, and the queue's pump publishes again.
    """

    def publish(lists: Iterable[str]) -> None:
        try:
            with app.producer_pool.acquire(block=True) as producer:
                for name in lists:
                    queue: Any = queue_for(name)
                    app.send_task(TASK_WORK, queue=queue, producer=producer, ignore_result=True)
        # kombu raises an AttributeError if its connection is closed while it sends.
        except (OperationalError, OSError, AttributeError) as error:
            raise QueueUnavailable(f"could not wake the workers: {error}") from error

    return publish

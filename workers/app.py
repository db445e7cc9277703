"""The Celery application and the only way a message is published.

A message says "work is due in this list" and names no key: keys and their state are in Redis
(workers.queue). Losing, doubling or reordering messages is therefore harmless, and the settings
below trade durability of messages for prompt recovery (measured: pitfalls of Celery on Redis,
early acknowledgement with prefetch switched off survives restarts of Redis without repeats).

Messages go through the default exchange straight to the list named like the queue, so that a Redis
that lost its data (and with it Celery's binding tables) still routes them.
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
# Queue of beat's ticks; every worker listens to it.
SYSTEM_QUEUE: Final = "csifleet.system"

# Seconds. kombu gives a half-open connection up after one to two health checks and the second
# that a read of the lists lasts: 4 to 7 s.
TRANSPORT: Final = {
    "priority_steps": [0],
    "socket_timeout": 5,
    "socket_connect_timeout": 5,
    "socket_keepalive": True,
    "health_check_interval": 3,
    # No copy of each message in an `unacked` hash: the sweep wakes a list again.
    "ack_emulation": False,
}


class FleetApp(Celery):
    """Celery with remote control that only looks."""

    control_cls = "workers.tasks.remote:FleetControl"


def broker_url(settings: Settings) -> str:
    """Redis as Celery spells it: a unix socket is `redis+socket://`. Secret: never log it."""
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
    """How kombu connects; with sentinels also whom they are asked for. Holds a password then."""
    url = settings.redis.for_celery().url_with_credentials()
    if not is_sentinel(url):
        return TRANSPORT
    place = parse_sentinels(url)
    return {**TRANSPORT, "master_name": place.master, "sentinel_kwargs": sentinel_options(place)}


def tls_options(settings: Settings) -> dict[str, Any] | None:
    """TLS behind sentinels; a `rediss://` URL says it all itself. None without."""
    url = settings.redis.url_with_credentials()
    tls = dict(parse_sentinels(url).tls) if is_sentinel(url) else {}
    return {"ssl_cert_reqs": CERT_REQUIRED, **tls} if tls else None


def keep_logging(**_: Any) -> None:
    """Receives Celery's `setup_logging`: with a receiver it leaves our log handlers alone."""


def make_app(settings: Settings, on_malformed: Callable[[], None] = lambda: None) -> Celery:
    """Builds the application; connects to nothing.

    Args:
        settings: of the process.
        on_malformed: called for each message in a Celery list that was dropped as unreadable.
    """
    setup_logging.connect(keep_logging)
    # Celery closes a broken connection twice. With a message in hand kombu would the second time
    # want to give it back through that connection, fail, and end the worker or dump the message.
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
        # Celery has no setting for this option of kombu's.
        amqp: Any = app.amqp
        amqp.Connection = partial(Connection, credential_provider=login)
    return app


def beat_settings(settings: Settings) -> dict[str, Any]:
    """Settings of celery-redbeat: fail-over in seconds, harmless when doubled (M-004).

    For beat's own application only: its URL holds the password, and a worker shows its
    configuration to every client that asks, for example Flower.
    """
    return {
        "beat_scheduler": "redbeat.RedBeatScheduler",
        "beat_max_loop_interval": 1,
        # There are no results, so Celery schedules nothing that cleans them up.
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
    """The login of a password file; None without one, and for a unix socket.

    kombu takes the login of a unix socket from the URL alone.
    """
    redis = settings.redis.for_celery()
    if not redis.password_file or redis.url.startswith("unix:"):
        return None
    return FileLogin(redis.username, redis.password, redis.password_file)


def _redbeat_connection(settings: Settings) -> dict[str, Any]:
    """Redbeat talks to Redis itself and has its own spelling of sentinels."""
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


# Redis list = routing key, without any table of bindings.
DIRECT: Final = Exchange("")


def queue_for(name: str) -> Queue:
    """The Celery queue of one Redis list, bound to the default exchange."""
    return Queue(name, DIRECT, routing_key=name)


def publisher(app: Celery) -> Callable[[Iterable[str]], None]:
    """Returns the function that tells the workers of Celery lists that work is due there.

    A failure is logged by the caller and repaired by the queue's pump, which asks again.
    """

    def publish(lists: Iterable[str]) -> None:
        try:
            with app.producer_pool.acquire(block=True) as producer:
                for name in lists:
                    queue: Any = queue_for(name)
                    app.send_task(TASK_WORK, queue=queue, producer=producer, ignore_result=True)
        except (OperationalError, OSError) as error:
            raise QueueUnavailable(f"workers not woken: {error}") from error

    return publish

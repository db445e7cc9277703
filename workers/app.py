"""The Celery application and the only way a ticket is published.

A ticket is a wake-up for one key, never the record: the record is the key's state in Redis
(workers.queue). Losing, doubling or reordering tickets is therefore harmless, and the settings
below trade durability of messages for prompt recovery (measured: pitfalls of Celery on Redis,
early acknowledgement with prefetch switched off survives restarts of Redis without repeats).

Tickets go through the default exchange straight to the list named like the queue, so that a Redis
that lost its data (and with it Celery's binding tables) still routes them.
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections import defaultdict
from functools import partial
from ssl import CERT_REQUIRED
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

import msgspec
from celery import Celery, Task, uuid
from celery.signals import setup_logging
from kombu import Connection, Exchange, Queue
from kombu.exceptions import OperationalError
from kombu.transport.redis import Channel, QoS, Transport

from workers import brokerscripts
from workers.config.redisurl import is_sentinel, parse_sentinels
from workers.controllers import catalogue
from workers.errors import QueueUnavailable
from workers.queue.connection import FileLogin, sentinel_options, split_login
from workers.queue.kinds import place_of
from workers.queue.names import celery_queue

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from workers.config.settings import Settings
    from workers.queue.keys import Key
    from workers.spec import Kind

TASK_TICK: Final = "system.tick"
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
    # No copy of each ticket in an `unacked` hash: a lost one is published again by the sweep.
    "ack_emulation": False,
}


class Ticket(Task):  # type: ignore[type-arg]  # generic for mypy alone
    """A task that leads to no other message.

    Celery sends what a message wants to be told of its end to whatever list that names, with the
    rights of the worker: who may but add a tick could write anywhere in Redis.
    """

    def before_start(self, task_id: str, args: Any, kwargs: Any) -> None:  # noqa: ARG002
        """Forget all that."""
        self.request.update(callbacks=None, errbacks=None, chain=None, chord=None, group=None)


class FleetApp(Celery):
    """Celery with our kind of task, and remote control that only looks."""

    task_cls = "workers.app:Ticket"
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


_create_client = Channel._create_client  # type: ignore[attr-defined]  # noqa: SLF001


def one_client(channel: Any, asynchronous: bool = False) -> Any:
    """A channel's client, made once for its pool: kombu makes one for every message and event.

    Each is a table of the readers of 170 commands' answers, a fifth of what sending a ticket costs.
    """
    if asynchronous:
        return _create_client(channel, asynchronous)
    client = getattr(channel, "_client_of_pool", None)
    if client is None or client.connection_pool is not channel.pool:
        client = channel._client_of_pool = _create_client(channel)  # noqa: SLF001
    return client


def make_app(settings: Settings, on_malformed: Callable[[], None] = lambda: None) -> FleetApp:
    """Builds the application; connects to nothing.

    Args:
        settings: of the process.
        on_malformed: called for each message in a Celery list that was dropped as unreadable.
    """
    setup_logging.connect(keep_logging)
    # Celery closes a broken connection twice. With a ticket in hand kombu would the second time
    # want to give it back through that connection, fail, and end the worker or dump the ticket.
    Channel.do_restore = False
    Channel._create_client = one_client  # type: ignore[attr-defined]  # noqa: SLF001
    app = FleetApp("csi-fleet", set_as_current=False)
    brokerscripts.install(Channel, QoS, Transport, brokerscripts.Messages(app, on_malformed))
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

    For beat's own application only: its URL holds the password, and what a worker is configured
    with is shown to whoever asks the worker, as Flower does (SEC-1).
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


NO_KWARGS: Final = "{}"
# Redis list = routing key, without any table of bindings.
DIRECT: Final = Exchange("")


def queue_for(name: str) -> Queue:
    """The Celery queue of one Redis list, bound to the default exchange."""
    return Queue(name, DIRECT, routing_key=name)


# AMQP's word; Redis does not look at it.
PERSISTENT: Final = 2


def ticket(app: FleetApp, kind: Kind, key: Key) -> Any:
    """The message for a key: as `send_task` makes it, without its routes, result and parents."""
    return app.amqp.create_task_message(
        uuid(),
        kind.task,
        (key.text,),
        argsrepr=brokerscripts.argsrepr(key),
        kwargsrepr=NO_KWARGS,
        ignore_result=True,
    )


def publisher(app: FleetApp) -> Callable[[Iterable[Key]], None]:
    """Returns the function that publishes one ticket per key.

    All of one call that go to one list go there in one command. What may have been lost on a broken
    connection is sent again, for a ticket too many is harmless; a failure after that is logged by
    the caller and repaired by the queue's pump, which publishes lost tickets again.
    """
    kinds = catalogue.kinds()

    def publish(keys: Iterable[Key]) -> None:
        messages: defaultdict[str, list[bytes]] = defaultdict(list)
        for key in keys:
            if kind := kinds.get(key.kind):
                name = celery_queue(place_of(key.driver, key.kind))
                messages[name].append(_message(ticket(app, kind, key), name))
        if not messages:
            return
        try:
            with app.producer_pool.acquire(block=True) as producer:
                connection: Any = producer.connection
                retry = app.conf.task_publish_retry_policy
                connection.ensure(producer, _push, **retry)(producer, messages)
        except (OperationalError, OSError) as error:
            raise QueueUnavailable(f"tickets not sent: {error}") from error

    return publish


def _push(producer: Any, messages: Mapping[str, list[bytes]]) -> None:
    """Over the connections of kombu, which knows when one is broken and where the next one goes."""
    with producer.channel.conn_or_acquire() as client:
        if len(messages) == 1:
            for name, ones in messages.items():
                client.lpush(name, *ones)
            return
        with client.pipeline(transaction=False) as pipe:
            for name, ones in messages.items():
                pipe.lpush(name, *ones)
            pipe.execute()


def _message(ticket: Any, name: str) -> bytes:
    """As kombu writes it, which takes five times as long: it looks for what none of ours has."""
    return msgspec.json.encode(
        {
            "body": b64encode(msgspec.json.encode(ticket.body)).decode(),
            "content-encoding": "utf-8",
            "content-type": "application/json",
            "headers": ticket.headers,
            "properties": {
                **ticket.properties,
                "delivery_mode": PERSISTENT,
                "delivery_info": {"exchange": "", "routing_key": name},
                "priority": 0,
                "body_encoding": "base64",
                # Anything that no other message has.
                "delivery_tag": ticket.headers["id"],
            },
        }
    )

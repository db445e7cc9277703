"""What kombu does otherwise than we need: Lua done with commands, and malformed messages dropped.

No component may send code to Redis (SEC-5). The bindings of queues that expire (answers to Flower,
its events) have a deadline each. One command between two of ours may be somebody else's; the worst
is a binding that its consumer writes again at its next turn.
"""

from __future__ import annotations

import json
import time
from base64 import b64decode, b64encode
from functools import wraps
from inspect import unwrap
from queue import Empty
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

from workers.observability.logging import get_logger
from workers.queue.connection import RedisError
from workers.queue.keys import Key

if TYPE_CHECKING:
    from collections.abc import Callable

_log = get_logger(__name__)

# Of the arguments, in events.
ARGUMENT_LENGTH: Final = 1024


def install(channel: Any, qos: Any, transport: Any, messages: Messages) -> None:
    """For every channel of this process; kombu's classes `Channel`, `QoS` and `Transport`."""
    channel._brpop_read = messages.guarding(channel._brpop_read)  # noqa: SLF001 - no other way in
    transport._deliver = messages.rebuilding(transport._deliver)  # noqa: SLF001
    channel._refresh_binding = staticmethod(refresh_binding)  # noqa: SLF001
    channel._sweep_bindings = staticmethod(sweep_bindings)  # noqa: SLF001
    # Nothing is ever unacknowledged (workers.app.TRANSPORT); the search for it takes a lock.
    qos.restore_visible = restore_nothing


class Messages:
    """Lets into Celery only what this application itself would have sent.

    kombu decodes a message inside Celery's event loop and hands it to Celery there. Any exception
    but a lost connection ends the worker, and a message that Celery accepts and cannot start keeps
    a thread's place for ever. So one LPUSH by any component that may write to a list would end
    every worker that reads it, and there is no public setting against it. Of a message in a task
    list nothing is kept but the task's name and its arguments; all else is written anew.

    Args:
        app: its tasks and queues are the known ones.
        on_malformed: called for each message that is dropped.
    """

    def __init__(self, app: Any, on_malformed: Callable[[], None]) -> None:
        self._app = app
        self._on_malformed = on_malformed
        self._logged: set[str] = set()

    def guarding(self, read: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap kombu's reader of one message, which Redis has removed before anything can fail."""
        read = unwrap(read)

        @wraps(read)
        def guarded(channel: Any, **options: Any) -> Any:
            try:
                return read(channel, **options)
            except (OSError, RedisError, Empty):
                raise
            except Exception as error:  # noqa: BLE001 - whatever a stranger's message leads to
                self._drop(error)
                return True

        return guarded

    def rebuilding(self, deliver: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap kombu's delivery of one decoded message to whoever reads its queue."""
        deliver = unwrap(deliver)

        @wraps(deliver)
        def rebuilt(transport: Any, message: Any, queue: str) -> Any:
            if queue in self._app.amqp.queues:
                message = self._rebuilt(message, queue)
            return deliver(transport, message, queue)

        return rebuilt

    def _rebuilt(self, message: Any, queue: str) -> dict[str, Any]:
        task, args = message["headers"]["task"], json.loads(b64decode(message["body"]))[0]
        if task not in self._app.tasks or not isinstance(args, list):
            raise ValueError(queue)
        name = str(uuid4())
        return {
            "body": b64encode(json.dumps([args, {}, {}]).encode()).decode(),
            "content-encoding": "utf-8",
            "content-type": "application/json",
            "headers": {
                **dict.fromkeys(("eta", "expires", "group", "parent_id", "shadow")),
                "lang": "py",
                "task": task,
                "id": name,
                "root_id": name,
                "retries": 0,
                "timelimit": [None, None],
                "argsrepr": _shown(args)[:ARGUMENT_LENGTH],
                "kwargsrepr": "{}",
                "ignore_result": True,
            },
            "properties": {
                "correlation_id": name,
                "reply_to": "",
                "delivery_mode": 2,
                "delivery_info": {"exchange": "", "routing_key": queue},
                "priority": 0,
                "body_encoding": "base64",
                "delivery_tag": name,
            },
        }

    def _drop(self, error: Exception) -> None:
        self._on_malformed()
        kind = type(error).__name__
        if kind not in self._logged:
            self._logged.add(kind)
            _log.warning("malformed Celery message dropped, others like it are counted", err=kind)


def argsrepr(key: Key) -> str:
    """What Flower shows and searches; the argument itself is the key."""
    return f"{key.object} {key.driver}"


def _shown(args: list[Any]) -> str:
    """The same for the arguments of a message; of those that are no key, what they are."""
    try:
        (name,) = args
        return argsrepr(Key.parse(name))
    except (ValueError, TypeError, AttributeError):
        return repr(args)


def refresh_binding(keys: Any, args: Any, client: Any) -> None:
    """Add a member to a table of bindings and move the table's deadline."""
    (table, deadlines), (member, exchange, lifetime_ms) = keys, args
    client.sadd(table, member)
    client.zadd(deadlines, {exchange: _now_ms() + int(lifetime_ms)}, gt=True)


def sweep_bindings(keys: Any, args: Any, client: Any) -> int:
    """Delete tables whose deadline is over, unless a queue without one is in them."""
    (deadlines,), (table, permanent, limit) = keys, args
    overdue = client.zrangebyscore(deadlines, "-inf", _now_ms(), start=0, num=int(limit))
    for name in overdue:
        exchange = name.decode() if isinstance(name, bytes) else name
        if not client.exists(permanent + exchange):
            client.delete(table + exchange)
        client.zrem(deadlines, exchange)
    return len(overdue)


def restore_nothing(qos: Any, **_: Any) -> None:
    """In place of the search for tickets that a dead worker had."""


def _now_ms() -> int:
    return round(time.time() * 1000)

"""What csi-fleet changes in kombu: malformed messages are dropped, bindings are not stored.

kombu keeps for each exchange a table in Redis of the queues that are bound to it, and sends Lua
code to do so. csi-fleet reads none of these tables: a message goes straight to the list that it
names, an event or a question over a channel. So no process writes them, no component needs
permission to send code (SEC-5), and nobody chooses through them where another process's message
goes (SEC2-4).
"""

from __future__ import annotations

import json
import logging
from base64 import b64decode, b64encode
from functools import partial, wraps
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
    channel.__init__ = messages.guarding(channel.__init__)
    transport._deliver = messages.rebuilding(transport._deliver)  # noqa: SLF001
    channel._queue_bind = bind  # noqa: SLF001 - celery/kombu has no setting against its tables
    channel.maybe_refresh_binding_expiry = refresh_nothing
    channel.queue_delete = forget
    logging.getLogger(transport.__module__).addFilter(messages.has_heard)
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

    def guarding(self, initialize: Callable[..., None]) -> Callable[..., None]:
        """Wrap the making of a channel, which knows how a list and how the channels are read."""
        initialize = unwrap(initialize)

        @wraps(initialize)
        def guarded(channel: Any, *args: Any, **kwargs: Any) -> None:
            initialize(channel, *args, **kwargs)
            channel.handlers = {
                name: partial(self._read, channel, read, is_list=name == "BRPOP")
                for name, read in channel.handlers.items()
            }

        return guarded

    def _read(self, channel: Any, read: Callable[[], Any], *, is_list: bool) -> Any:
        """What kombu does when something arrived, which Redis has removed before anything fails."""
        while True:
            try:
                return read()
            except (OSError, RedisError, Empty):
                raise
            except Exception as error:  # noqa: BLE001 - whatever a stranger's message leads to
                self._drop(error)
            # Others may have come with it over a channel; no event announces them again.
            if is_list or not _has_more(channel.subclient.connection):
                return True

    def rebuilding(self, deliver: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap kombu's delivery of one decoded message to whoever reads its queue."""
        deliver = unwrap(deliver)

        @wraps(deliver)
        def rebuilt(transport: Any, message: Any, queue: str) -> Any:
            if queue in self._app.amqp.queues:
                message = self._rebuilt(message, queue)
            else:
                json.loads(b64decode(message["body"]))
            return deliver(transport, message, queue)

        return rebuilt

    def has_heard(self, record: logging.LogRecord) -> bool:
        """Count what kombu itself found to be no JSON, in place of its log line for each."""
        is_ours = not str(record.msg).startswith("Cannot process event")
        if not is_ours:
            self._drop(ValueError())
        return is_ours

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


def _has_more(connection: Any) -> bool:
    return connection is not None and connection.can_read(timeout=0)


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


def bind(channel: Any, exchange: str, routing_key: str, pattern: str, queue: str) -> None:
    """Remember in this process which queue listens to which channel of Redis; store nothing."""
    del pattern
    if channel.typeof(exchange).type == "fanout":
        channel._fanout_queues[queue] = (exchange, routing_key.replace("#", "*"))  # noqa: SLF001


def forget(channel: Any, queue: str, *_: Any, **__: Any) -> None:
    """Forget a queue that this process is done with; Redis deletes what answers are left in it."""
    channel.state.queue_bindings_delete(queue)


def refresh_nothing(channel: Any) -> None:
    """In place of kombu's care for the tables of bindings that `bind` does not write."""


def restore_nothing(qos: Any, **_: Any) -> None:
    """In place of the search for tickets that a dead worker had."""

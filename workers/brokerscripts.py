"""Patches kombu so that it drops malformed messages and stores no bindings in Redis.

For each exchange kombu keeps a table of bound queues in Redis, which it writes with Lua code.
csi-fleet needs no such table: a message goes directly to the list that it names, and an event or a
remote control request goes to a channel. So no component needs permission to send Lua code, and no
client can redirect the messages of another process by changing a table.
"""

from __future__ import annotations

import json
import logging
from base64 import b64decode
from functools import partial, wraps
from inspect import unwrap
from queue import Empty
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from workers.observability.logging import get_logger
from workers.queue.connection import RedisError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_log = get_logger(__name__)


def install(channel: Any, qos: Any, transport: Any, messages: Messages) -> None:
    """Patch kombu's classes `Channel`, `QoS` and `Transport`, for all channels of this process."""
    channel.__init__ = messages.guarding(channel.__init__)
    transport._deliver = messages.rebuilding(transport._deliver)  # noqa: SLF001
    channel._queue_bind = bind  # noqa: SLF001 - celery/kombu has no setting against its tables
    channel.maybe_refresh_binding_expiry = refresh_nothing
    channel.queue_delete = forget
    logging.getLogger(transport.__module__).addFilter(messages.has_heard)
    # There are never unacknowledged messages (workers.app.TRANSPORT), and searching for them takes
    # a lock.
    qos.restore_visible = restore_nothing


class Messages:
    """Passes to Celery only messages that this application could have sent.

    kombu decodes messages inside Celery's event loop. Any exception except a lost connection ends
    the worker, and a message that Celery accepts but cannot start occupies a thread forever. So a
    single LPUSH by any component with write permission could end every worker that reads the list,
    and no public setting prevents it (celery/kombu#2421, celery/celery#7975). A message in a task
    list means only that work is due in that list, so none of its content is used.

    Args:
        tasks: the task that a message starts, by queue; the entry "" applies to all other queues.
        queues: returns the task queues by name; all other queues carry remote control messages.
        on_malformed: called for each dropped message.
    """

    def __init__(
        self,
        tasks: Mapping[str, str],
        queues: Callable[[], Mapping[str, Any]],
        on_malformed: Callable[[], None],
    ) -> None:
        self._tasks = tasks
        self._queues = queues
        self._on_malformed = on_malformed
        self._logged: set[str] = set()

    def guarding(self, initialize: Callable[..., None]) -> Callable[..., None]:
        """Wrap a channel's constructor, so that every read of the channel goes through `_read`."""
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
        """Read one message with kombu's function; on an error, drop the message.

        The read cannot be retried, because Redis no longer has the message.
        """
        while True:
            try:
                return read()
            except (OSError, RedisError, Empty):
                raise
            except Exception as error:  # noqa: BLE001 - a foreign message can cause any error
                self._drop(error)
            # The channel may have buffered further messages, for which no new event will arrive.
            if is_list or not _has_more(channel.subclient.connection):
                return True

    def rebuilding(self, deliver: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap kombu's function that delivers one decoded message to the consumer of its queue."""
        deliver = unwrap(deliver)

        @wraps(deliver)
        def rebuilt(transport: Any, message: Any, queue: str) -> Any:
            if queue in self._queues():
                message = message_for(self._tasks.get(queue, self._tasks[""]), queue)
            else:
                json.loads(b64decode(message["body"]))
            return deliver(transport, message, queue)

        return rebuilt

    def has_heard(self, record: logging.LogRecord) -> bool:
        """Return False for kombu's log line about invalid JSON, and count the dropped message."""
        is_ours = not str(record.msg).startswith("Cannot process event")
        if not is_ours:
            self._drop(ValueError())
        return is_ours

    def _drop(self, error: Exception) -> None:
        self._on_malformed()
        kind = type(error).__name__
        if kind not in self._logged:
            self._logged.add(kind)
            _log.warning(
                "dropped a malformed Celery message; further messages like it are only counted",
                err=kind,
            )


def _has_more(connection: Any) -> bool:
    return connection is not None and connection.can_read(timeout=0)


def message_for(task: str, queue: str) -> dict[str, Any]:
    """Return a message that starts a task without arguments, as kombu stores it in a list."""
    name = str(uuid4())
    return {
        "body": "[[], {}, {}]",
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
            "argsrepr": "()",
            "kwargsrepr": "{}",
            "ignore_result": True,
        },
        "properties": {
            "correlation_id": name,
            "reply_to": "",
            "delivery_mode": 2,
            "delivery_info": {"exchange": "", "routing_key": queue},
            "priority": 0,
            "delivery_tag": name,
        },
    }


def bind(channel: Any, exchange: str, routing_key: str, pattern: str, queue: str) -> None:
    """Record, in this process only, which queue listens to which Redis channel."""
    del pattern
    if channel.typeof(exchange).type == "fanout":
        channel._fanout_queues[queue] = (exchange, routing_key.replace("#", "*"))  # noqa: SLF001


def forget(channel: Any, queue: str, *_: Any, **__: Any) -> None:
    """Forget a queue that is no longer used; responses that remain in its list expire in Redis."""
    channel.state.queue_bindings_delete(queue)


def refresh_nothing(channel: Any) -> None:
    """Do nothing; replaces kombu's refresh of the binding tables, which csi-fleet does not have."""


def restore_nothing(qos: Any, **_: Any) -> None:
    """Do nothing; replaces kombu's search for unacknowledged messages of dead workers."""

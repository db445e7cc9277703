"""How does an admitted key become a Celery message?

A ticket that cannot be sent is only logged: the key stays ticketed and the sweep sends it again.
"""

from __future__ import annotations

from base64 import b64decode
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import msgspec

from workers.errors import QueueUnavailable
from workers.observability.logging import get_logger
from workers.queue.keys import Key
from workers.queue.scripts import text

if TYPE_CHECKING:
    from collections.abc import Callable

_log = get_logger(__name__)

_UNREADABLE: Final = (ValueError, TypeError, LookupError, AttributeError, RecursionError)


class Tickets:
    """What becomes of the keys that a script admitted.

    Args:
        send: sends one ticket per key; may raise QueueUnavailable.
    """

    def __init__(self, send: Callable[[list[Key]], None]) -> None:
        self._send = send
        self._held: deque[bytes] = deque()

    def hold(self, tickets: list[bytes]) -> None:
        """Leave them to whoever publishes next, for a thread that must not wait for the broker."""
        self._held.extend(tickets)

    def publish(self, tickets: list[bytes]) -> None:
        """Send the keys a script admitted; texts that are no key are reported and left out."""
        keys = self._keys(tickets)
        if not keys:
            return
        try:
            self._send(keys)
        except QueueUnavailable as error:
            _log.warning("tickets not published, the sweep repeats it", err=error)

    def _keys(self, tickets: list[bytes]) -> list[Key]:
        keys = []
        for ticket in [*self._taken(), *tickets]:
            try:
                keys.append(Key.parse(text(ticket)))
            except ValueError:
                _log.error(
                    "unreadable key in Redis was dropped; a resync adds its object again",
                    # A script marks one that it dropped by a bar.
                    key=text(ticket).removeprefix("|"),
                )
        return keys

    def _taken(self) -> list[bytes]:
        taken = []
        with suppress(IndexError):
            while True:
                taken.append(self._held.popleft())
        return taken


def ticket_key(message: bytes) -> Key | None:
    """The key that a message of Celery's list names; None, told in the log, for none of ours."""
    try:
        found: Any = msgspec.json.decode(message)
        return Key.parse(msgspec.json.decode(b64decode(found["body"]))[0][0])
    except _UNREADABLE as error:
        _log.warning("ticket dropped, it is none of ours", err=type(error).__name__)
        return None

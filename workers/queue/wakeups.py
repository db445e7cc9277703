"""Sends messages that tell a Celery list's workers that work is due.

If a message cannot be sent, the failure is only logged: the list's flag in Redis expires, and the
next sweep then returns the list again (`wake_lane` in lib.lua).
"""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING

from workers.errors import QueueUnavailable
from workers.observability.logging import get_logger
from workers.queue.scripts import text

if TYPE_CHECKING:
    from collections.abc import Callable

_log = get_logger(__name__)


class Wakeups:
    """Sends the messages for the lists that a script has returned.

    Args:
        send: sends one message to each list; may raise QueueUnavailable.
    """

    def __init__(self, send: Callable[[list[str]], None]) -> None:
        self._send = send
        self._held: deque[bytes] = deque()

    def hold(self, lists: list[bytes]) -> None:
        """Keep lists for the next `publish`, if this thread must not wait for the broker."""
        self._held.extend(lists)

    def publish(self, lists: list[bytes]) -> None:
        """Send one message to each list; log the items that a script could not parse as keys."""
        names = []
        for name in map(text, [*self._taken(), *lists]):
            if name.startswith("|"):
                _log.error(
                    "dropped an unreadable key in Redis; a resync adds its object again",
                    key=name.removeprefix("|"),
                )
            else:
                names.append(name)
        if not names:
            return
        try:
            self._send(names)
        except QueueUnavailable as error:
            _log.warning("could not wake the workers; the next sweep tries again", err=error)

    def _taken(self) -> list[bytes]:
        taken = []
        with suppress(IndexError):
            while True:
                taken.append(self._held.popleft())
        return taken

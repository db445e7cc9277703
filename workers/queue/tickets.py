"""How does an admitted key become a Celery message, or work of this process without one?

A ticket that cannot be sent is only logged: the key stays ticketed and the sweep sends it again.
A thread that ends a lease may begin the next ticket of its driver at once: the oldest message of
Celery's list comes with the end of the lease, and what is admitted by it while that list is empty
never gets there.
"""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol

from workers.errors import QueueUnavailable
from workers.observability.logging import get_logger
from workers.queue.keys import Key
from workers.queue.kinds import place_of
from workers.queue.scripts import text

if TYPE_CHECKING:
    from collections.abc import Callable

    from workers.queue.leases import Lease

_log = get_logger(__name__)


class NextTickets(Protocol):
    """Begins tickets in this process."""

    def wanted(self, lease: Lease) -> bool:
        """Whether the thread that ends this lease may begin another ticket of the driver."""

    def read(self, message: bytes) -> Key:
        """The key of a message from Celery's list; ValueError for what is no ticket."""

    def begin(self, key: Key) -> bool:
        """Work on it in a thread of this process; False when that is over."""


class Tickets:
    """What becomes of the keys that a script admitted.

    Args:
        send: sends one ticket per key; may raise QueueUnavailable.
        next_tickets: None: all are sent.
    """

    def __init__(
        self, send: Callable[[list[Key]], None], next_tickets: NextTickets | None = None
    ) -> None:
        self._send = send
        self._next = next_tickets
        self._held: deque[bytes] = deque()

    def hold(self, tickets: list[bytes], _message: bytes | None = None) -> None:
        """Leave them to whoever publishes next, for a thread that must not wait for the broker."""
        self._held.extend(tickets)

    def publish(self, tickets: list[bytes], _message: bytes | None = None) -> None:
        """Send the keys a script admitted; texts that are no key are reported and left out."""
        self._publish(self._keys(tickets))

    def wants_next(self, lease: Lease) -> bool:
        """Whether the end of this lease is to bring its driver's next ticket."""
        return self._next is not None and self._next.wanted(lease)

    def pass_on(self, lease: Lease, tickets: list[bytes], message: bytes | None) -> None:
        """Begin the next ticket here and publish the rest.

        Args:
            lease: what just ended, and wanted another.
            tickets: admitted by the end.
            message: the oldest one of its driver's list, None when that was empty.
        """
        keys, first = self._keys(tickets), None
        if message is not None:
            first = self._read(message)
        else:
            place = _place(lease.key)
            first = next((key for key in keys if _place(key) == place), None)
            keys = [key for key in keys if key is not first]
        if first is not None and not (self._next and self._next.begin(first)):
            keys.append(first)
        self._publish(keys)

    def _read(self, message: bytes) -> Key | None:
        try:
            return self._next.read(message) if self._next else None
        except ValueError as error:
            _log.warning("ticket dropped", err=error)
            return None

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

    def _publish(self, keys: list[Key]) -> None:
        if not keys:
            return
        try:
            self._send(keys)
        except QueueUnavailable as error:
            _log.warning("tickets not published, the sweep repeats it", err=error)

    def _taken(self) -> list[bytes]:
        taken = []
        with suppress(IndexError):
            while True:
                taken.append(self._held.popleft())
        return taken


def _place(key: Key) -> str:
    return place_of(key.driver, key.kind)

"""How many threads of this process may be inside one driver?

A driver that hangs must not take the threads of the others. A worker with several drivers gives
each a part; at its end the process stops fetching tickets of that driver, which then wait in Redis
for a free thread here or at another worker. A ticket fetched a moment too late is worked on.

When less than a part is free, a driver may have no more threads than are free: each further driver
that hangs takes half of the rest (64 threads: 3 have 16 each, 4 more have 8, 4, 2 and 1), and with
time they share evenly.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SHARE = 4
"""With the usual 64 threads, three hanging drivers leave 16 to all others."""

FEWEST = 2
"""A pool too small to share still lets one slow call and a quick one go side by side."""


def default_seats(threads: int, drivers: int) -> int:
    """Threads of a pool that may be inside one of its drivers: all, if it is the only one."""
    return threads if drivers < 2 else min(threads, max(FEWEST, threads // SHARE))


class Consumers(Protocol):
    """Whose tickets does this process fetch?"""

    def serve(self, queue_name: str) -> None:
        """Fetch tickets of this driver."""

    def leave(self, queue_name: str) -> None:
        """Fetch none any more."""

    def hold(self, queue_name: str, is_full: bool) -> None:
        """Fetch none while its seats are taken."""


class Seats:
    """Threads inside each driver.

    Args:
        limit: seats of a driver by queue name; who has all threads shares with nobody.
        hold: told when the last seat is taken, and when one is free again.
        threads: size of the pool; 0: never scarce.
    """

    def __init__(
        self,
        limit: Callable[[str], int],
        hold: Callable[[str, bool], None] = lambda *_: None,
        *,
        threads: int = 0,
    ) -> None:
        self._limit = limit
        self._hold = hold
        self._threads = threads
        self._total = 0
        self._lock = threading.Lock()
        self._taken: dict[str, int] = {}
        self._full: set[str] = set()

    @contextmanager
    def seat(self, queue_name: str) -> Iterator[None]:
        """Take a seat for the time of one ticket; never waits."""
        self._change(queue_name, 1)
        try:
            yield
        finally:
            self._change(queue_name, -1)

    def taken(self, queue_name: str) -> int:
        """Threads inside the driver now."""
        return self._taken.get(queue_name, 0)

    def has_room(self, queue_name: str) -> bool:
        """Whether one of those inside may be followed: its ticket would be fetched, had it left."""
        with self._lock:
            return self._taken.get(queue_name, 0) <= self._allowed(queue_name, self._total - 1)

    def look_again(self) -> None:
        """Limits may be others: who is alone now has all threads, and perhaps none that ends."""
        with self._lock:
            self._look_at_full()

    def _change(self, queue_name: str, by: int) -> None:
        with self._lock:
            count = self._taken.get(queue_name, 0) + by
            self._total += by
            if count:
                self._taken[queue_name] = count
            else:
                self._taken.pop(queue_name, None)
            self._look(queue_name)
            if by < 0 and not self._is_scarce(self._total):
                # Others were held for want of threads only; while these are scarce each driver
                # is looked at when its own work ends, for all of them each time would cost.
                self._look_at_full()

    def _look_at_full(self) -> None:
        for name in list(self._full):
            self._look(name)

    def _look(self, queue_name: str) -> None:
        allowed = self._allowed(queue_name, self._total)
        # Who may have all threads leaves none for others to keep: without one nothing is fetched.
        has_all = 0 < self._threads <= allowed
        is_full = not has_all and self._taken.get(queue_name, 0) >= allowed
        if is_full != (queue_name in self._full):
            (self._full.add if is_full else self._full.discard)(queue_name)
            self._hold(queue_name, is_full)

    def _allowed(self, queue_name: str, total: int) -> int:
        """Seats of the driver when so many threads are taken."""
        limit = self._limit(queue_name)
        if self._is_scarce(total) and limit < self._threads:
            return min(limit, max(1, self._threads - total))
        return limit

    def _is_scarce(self, total: int) -> bool:
        return self._threads - total < self._threads // SHARE

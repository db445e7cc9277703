"""Limits how many threads of this process work for one driver at the same time.

A driver that hangs must not occupy all threads. In a worker with several drivers, each driver may
use a share of the threads; when the share is used up, the process stops fetching the driver's keys.
These keys wait in Redis for a free thread here or in another worker. A message that was already
fetched is still processed.

If fewer threads are free than one share, a driver may not use more threads than it leaves free. So
each further driver that hangs takes half of the rest: of 64 threads, three hanging drivers take 16
each, and the next ones 8, 4, 2 and 1. Over time the drivers share the threads evenly.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SHARE = 4
"""One driver may use a quarter of the threads: three hanging drivers leave 16 of 64 free."""

FEWEST = 2
"""The smallest share, so that a driver can run a slow call and a quick call at the same time."""


def default_seats(threads: int, drivers: int) -> int:
    """Return how many threads of a pool a driver may use: all, if it is the only driver."""
    return threads if drivers < 2 else min(threads, max(FEWEST, threads // SHARE))


class Consumers(Protocol):
    """Controls which drivers' messages this process fetches."""

    def serve(self, queue_name: str) -> None:
        """Start fetching the messages of this driver."""

    def leave(self, queue_name: str) -> None:
        """Stop fetching the messages of this driver."""

    def hold(self, queue_name: str, is_full: bool) -> None:
        """Stop fetching the driver's messages if all its slots are taken, or resume if not."""


class Seats:
    """Counts the threads that are working for each driver; each takes one of the driver's slots.

    Args:
        limit: returns the number of slots for a driver's queue name; a driver that may use all
            threads is never held.
        hold: called with True when a driver's last slot is taken, and with False when a slot is
            free again.
        threads: the size of the thread pool; with 0, threads never count as scarce.
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
        """Hold one of the driver's slots while the block runs; never wait for a slot."""
        self._change(queue_name, 1)
        try:
            yield
        finally:
            self._change(queue_name, -1)

    def taken(self, queue_name: str) -> int:
        """Return how many threads are working for the driver now."""
        return self._taken.get(queue_name, 0)

    def has_room(self, queue_name: str) -> bool:
        """Return True if a thread that is working for the driver may take another of its keys."""
        with self._lock:
            return self._taken.get(queue_name, 0) <= self._allowed(queue_name, self._total - 1)

    def look_again(self) -> None:
        """Recheck held drivers after the limits have changed.

        Without this call, they would be rechecked only when a thread finishes its work, which may
        take a long time.
        """
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
                # Threads are no longer scarce, so all held drivers are checked. While threads are
                # scarce, a driver is checked only when its own work ends, because that is cheaper.
                self._look_at_full()

    def _look_at_full(self) -> None:
        for name in list(self._full):
            self._look(name)

    def _look(self, queue_name: str) -> None:
        allowed = self._allowed(queue_name, self._total)
        # A driver that may use all threads is never held: if no thread is free, nothing is fetched
        # anyway.
        has_all = 0 < self._threads <= allowed
        is_full = not has_all and self._taken.get(queue_name, 0) >= allowed
        if is_full != (queue_name in self._full):
            (self._full.add if is_full else self._full.discard)(queue_name)
            self._hold(queue_name, is_full)

    def _allowed(self, queue_name: str, total: int) -> int:
        """Return the driver's number of slots while `total` threads are taken."""
        limit = self._limit(queue_name)
        if self._is_scarce(total) and limit < self._threads:
            return min(limit, max(1, self._threads - total))
        return limit

    def _is_scarce(self, total: int) -> bool:
        return self._threads - total < self._threads // SHARE

"""Events that wait to be written: in a burst they stand back behind the work they tell of.

When many claims are made at once, their volumes need the API server first. As long as events come
in quickly, each waits up to `HOLD_SECONDS`; then those that gathered are taken together.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

    from workers.kube.objects import JsonObject

HOLD_SECONDS: Final = 2.0
# So many events of one queue within so short a time are a burst.
BURST_EVENTS: Final = 10
BURST_SECONDS: Final = 0.25
BATCH: Final = 32
_POLL_SECONDS: Final = 0.05


class EventQueue:
    """Events of one writer, in order; any thread may put.

    Args:
        size: events it holds at most; one that is half full holds nothing back.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._queue: queue.Queue[tuple[float, JsonObject] | None] = queue.Queue(size)
        self._arrivals: deque[float] = deque(maxlen=BURST_EVENTS)
        self._closed = threading.Event()

    def put(self, event: JsonObject) -> bool:
        """Add one event; False if there is no room. Returns at once."""
        now = time.monotonic()
        self._arrivals.append(now)
        try:
            self._queue.put_nowait((now, event))
        except queue.Full:
            return False
        return True

    @property
    def is_over(self) -> bool:
        """Closed, and all was taken."""
        return self._closed.is_set() and self._queue.empty()

    def take(self, wait_seconds: float | None = None) -> list[JsonObject]:
        """Wait for events and take up to `BATCH`; none when it is over, or nothing came so long."""
        while not self.is_over:
            try:
                item = self._queue.get(timeout=wait_seconds)
            except queue.Empty:
                break
            if item is not None:
                self._hold(item[0])
                return [item[1], *self._more()]
        return []

    def close(self) -> None:
        """Hold nothing back any more; `take` ends once the queue is empty."""
        self._closed.set()
        with contextlib.suppress(queue.Full):  # then nobody waits for an event
            self._queue.put_nowait(None)

    def _hold(self, put_at: float) -> None:
        while (
            self._is_burst()
            and self._queue.qsize() * 2 <= self._size
            and time.monotonic() < put_at + HOLD_SECONDS
        ):
            if self._closed.wait(_POLL_SECONDS):
                return

    def _is_burst(self) -> bool:
        is_full = len(self._arrivals) == BURST_EVENTS
        return is_full and time.monotonic() - self._arrivals[0] < BURST_SECONDS

    def _more(self) -> Iterator[JsonObject]:
        for _ in range(BATCH - 1):
            try:
                item = self._queue.get_nowait()
            except queue.Empty:
                return
            if item is not None:
                yield item[1]

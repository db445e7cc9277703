"""A queue of events to be written; bursts of events are delayed in favour of other work.

When many claims are created at once, their volumes need the API server more urgently than their
events. During a burst, `take` waits until its first event is `HOLD_SECONDS` old, and then returns a
batch of events.
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
# If `BURST_EVENTS` events arrive in one queue within `BURST_SECONDS`, this counts as a burst.
BURST_EVENTS: Final = 10
BURST_SECONDS: Final = 0.25
BATCH: Final = 32
_POLL_SECONDS: Final = 0.05


class EventQueue:
    """The events of one writer, in order; `put` is thread-safe.

    Args:
        size: the largest number of events; if the queue is more than half full, no event is
            delayed.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._queue: queue.Queue[tuple[float, JsonObject] | None] = queue.Queue(size)
        self._arrivals: deque[float] = deque(maxlen=BURST_EVENTS)
        self._closed = threading.Event()

    def put(self, event: JsonObject) -> bool:
        """Add one event, without waiting; return False if there is no room."""
        now = time.monotonic()
        self._arrivals.append(now)
        try:
            self._queue.put_nowait((now, event))
        except queue.Full:
            return False
        return True

    @property
    def is_over(self) -> bool:
        """Return True if the queue is closed and empty."""
        return self._closed.is_set() and self._queue.empty()

    def take(self, wait_seconds: float | None = None) -> list[JsonObject]:
        """Wait for an event; return it and the events that follow it, up to `BATCH` in all.

        Return [] after `wait_seconds` without an event, or once the queue is closed and empty.
        """
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
        """Stop delaying events; `take` returns [] once the queue is empty."""
        self._closed.set()
        with contextlib.suppress(queue.Full):  # if the queue is full, no `take` is blocked
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

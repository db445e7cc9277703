"""Measures how long work items take, and how long unfinished ones have been running (L-096)."""

from __future__ import annotations

import itertools
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from workers.observability.metrics import Metrics


class RunningWork:
    """Provides `workqueue_work_duration_seconds` and the two gauges of unfinished work.

    Args:
        metrics: receives the figures.
        clock: returns monotonic seconds.
    """

    def __init__(self, metrics: Metrics, clock: Callable[[], float] = time.monotonic) -> None:
        self._metrics = metrics
        self._clock = clock
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        self._started: dict[int, tuple[str, float]] = {}
        self._names: set[str] = set()

    @contextmanager
    def work(self, name: str) -> Iterator[None]:
        """Time the block as one item of the work queue `name`."""
        started = self._clock()
        with self._lock:
            number = next(self._numbers)
            self._started[number] = (name, started)
            self._names.add(name)
        try:
            yield
        finally:
            with self._lock:
                del self._started[number]
            self._metrics.work_seconds.labels(name).observe(self._clock() - started)

    def publish(self) -> None:
        """Update the gauges; call this about once a second."""
        now = self._clock()
        with self._lock:
            ages = {name: [0.0] for name in self._names}
            for name, started in self._started.values():
                ages[name].append(now - started)
        for name, seconds in ages.items():
            self._metrics.work_unfinished_seconds.labels(name).set(sum(seconds))
            self._metrics.work_longest_seconds.labels(name).set(max(seconds))

"""Checks that this process's threads are alive and that its Lease is being renewed.

Each background task has a heartbeat, which must be renewed or ended within a time limit. If a
heartbeat is missing for longer, its thread is stuck, and the liveness check reports the task's
name. A thread that waits for work has no heartbeat, because it cannot be late.
"""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

LIMIT_SECONDS: Final = 120.0
"""The default time limit of a heart. The work between two beats is bounded: a few requests to Redis
or the API server, each with a timeout of some seconds.
"""

# A leader is unhealthy if it has not renewed its Lease for the lease duration plus this time
# (csi-lib-utils, leaderelection DefaultHealthCheckTimeout).
_LEASE_TOLERANCE_SECONDS: Final = 20.0


class Heart:
    """The heart of one task; created by `Heartbeats`."""

    __slots__ = ("_beaten_at", "_clock", "limit_seconds", "name")

    def __init__(self, name: str, limit_seconds: float, clock: Callable[[], float]) -> None:
        self.name = name
        self.limit_seconds = limit_seconds
        self._clock = clock
        self._beaten_at = clock()

    def beat(self) -> None:
        """Record that the task has made progress."""
        self._beaten_at = self._clock()

    def silent_seconds(self) -> float:
        """Return the seconds since the last progress."""
        return self._clock() - self._beaten_at


class Heartbeats:
    """The hearts of one process; thread-safe.

    Args:
        clock: returns monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._hearts: set[Heart] = set()

    def expect(self, name: str, within_seconds: float = LIMIT_SECONDS) -> Heart:
        """Return a new heart that must beat at least every `within_seconds`, until `stop`."""
        heart = Heart(name, within_seconds, self._clock)
        with self._lock:
            self._hearts.add(heart)
        return heart

    def stop(self, heart: Heart) -> None:
        """Remove a heart. Safe to call twice."""
        with self._lock:
            self._hearts.discard(heart)

    @contextmanager
    def during(self, name: str, within_seconds: float = LIMIT_SECONDS) -> Iterator[Heart]:
        """Watch the block: it must end, or beat the heart, within `within_seconds`."""
        heart = self.expect(name, within_seconds)
        try:
            yield heart
        finally:
            self.stop(heart)

    def working(self) -> set[str]:
        """Return the names of the tasks that are running now."""
        with self._lock:
            return {heart.name for heart in self._hearts}

    def check(self) -> str:
        """Return the names of overdue tasks, for a liveness probe; "" if there are none."""
        with self._lock:
            hearts = list(self._hearts)
        ages = sorted((heart.name, heart.silent_seconds(), heart.limit_seconds) for heart in hearts)
        return "; ".join(
            f"{name}: no progress for {age:.0f} s" for name, age, limit in ages if age > limit
        )


HEARTBEATS: Final = Heartbeats()
"""The hearts of this process, which `/healthz` checks."""


class LeaderHealth:
    """The health of the holder of a Lease (F-022).

    Source: client-go, tools/leaderelection Check.

    Args:
        name: the name of the Lease.
        lease_duration_seconds: the duration of the Lease.
        clock: returns monotonic seconds.
    """

    def __init__(
        self, name: str, lease_duration_seconds: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._name = name
        self._limit = lease_duration_seconds + _LEASE_TOLERANCE_SECONDS
        self._clock = clock
        self._renewed: float | None = None

    def renewed(self) -> None:
        """Record that this process has just taken or renewed the Lease."""
        self._renewed = self._clock()

    def lost(self) -> None:
        """Record that another process may hold the Lease."""
        self._renewed = None

    def check(self) -> str:
        """Return client-go's error message; "" for a standby, or a leader that renews in time."""
        renewed = self._renewed
        if renewed is None or self._clock() - renewed <= self._limit:
            return ""
        return f"failed election to renew leadership on lease {self._name}"

"""Does every thread of this process still go round, and is the Lease renewed?

What goes on in the background says so while it does it: a piece of work has a heart, which must
beat, or end, within a limit. A heart that is silent for longer belongs to a thread that hangs, so
liveness names it (STR-9). Whoever waits for work has no heart: there is nothing to be late with.
"""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

LIMIT_SECONDS: Final = 120.0
"""A step is one bounded piece of work: some commands to Redis or the API server, each with a
time-out of seconds."""

# Time beyond the lease duration before a silent leader is called unhealthy (csi-lib-utils,
# leaderelection DefaultHealthCheckTimeout).
_LEASE_TOLERANCE_SECONDS: Final = 20.0


class Heart:
    """Of one piece of work, from `Heartbeats`."""

    __slots__ = ("_beaten_at", "_clock", "limit_seconds", "name")

    def __init__(self, name: str, limit_seconds: float, clock: Callable[[], float]) -> None:
        self.name = name
        self.limit_seconds = limit_seconds
        self._clock = clock
        self._beaten_at = clock()

    def beat(self) -> None:
        """It went on."""
        self._beaten_at = self._clock()

    def silent_seconds(self) -> float:
        """Since it last went on."""
        return self._clock() - self._beaten_at


class Heartbeats:
    """The hearts of one process; any thread may ask.

    Args:
        clock: monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._hearts: set[Heart] = set()

    def expect(self, name: str, within_seconds: float = LIMIT_SECONDS) -> Heart:
        """Demand a beat in every span of that length, until `stop`."""
        heart = Heart(name, within_seconds, self._clock)
        with self._lock:
            self._hearts.add(heart)
        return heart

    def stop(self, heart: Heart) -> None:
        """Expect no more of it. Safe to call twice."""
        with self._lock:
            self._hearts.discard(heart)

    @contextmanager
    def during(self, name: str, within_seconds: float = LIMIT_SECONDS) -> Iterator[Heart]:
        """Around a piece of work: it ends, or beats, within that time."""
        heart = self.expect(name, within_seconds)
        try:
            yield heart
        finally:
            self.stop(heart)

    def working(self) -> set[str]:
        """Names of what is at work now."""
        with self._lock:
            return {heart.name for heart in self._hearts}

    def check(self) -> str:
        """Say what is overdue; "" when nothing is (a liveness probe)."""
        with self._lock:
            hearts = list(self._hearts)
        ages = sorted((heart.name, heart.silent_seconds(), heart.limit_seconds) for heart in hearts)
        return "; ".join(
            f"{name}: no progress for {age:.0f} s" for name, age, limit in ages if age > limit
        )


HEARTBEATS: Final = Heartbeats()
"""Those of this process, as its threads are: what `/healthz` asks."""


class LeaderHealth:
    """Health of the holder of a Lease (F-022).

    Source: client-go, tools/leaderelection Check.

    Args:
        name: of the Lease.
        lease_duration_seconds: as in the Lease.
        clock: monotonic seconds.
    """

    def __init__(
        self, name: str, lease_duration_seconds: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._name = name
        self._limit = lease_duration_seconds + _LEASE_TOLERANCE_SECONDS
        self._clock = clock
        self._renewed: float | None = None

    def renewed(self) -> None:
        """Note that the Lease was taken or renewed by us just now."""
        self._renewed = self._clock()

    def lost(self) -> None:
        """Note that somebody else may hold it."""
        self._renewed = None

    def check(self) -> str:
        """Give client-go's complaint; "" for a standby and for a leader that renews."""
        renewed = self._renewed
        if renewed is None or self._clock() - renewed <= self._limit:
            return ""
        return f"failed election to renew leadership on lease {self._name}"

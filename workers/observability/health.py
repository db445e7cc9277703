"""Is this process doing its work? Heartbeats that prove progress, and the Lease's health.

A loop beats when it has really gone round (a message consumed, a watch answered), so a process
whose threads are stuck looks dead although its sockets accept. Ages can be written to files, which
lets a supervisor or an exec probe look into another process.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

# Files are touched at most this often, so that a busy loop may beat on every message.
_FILE_PERIOD_SECONDS: Final = 1.0

_FILE_SUFFIX: Final = ".beat"

# Time beyond the lease duration before a silent leader is called unhealthy (csi-lib-utils,
# leaderelection DefaultHealthCheckTimeout).
_LEASE_TOLERANCE_SECONDS: Final = 20.0


class Heartbeats:
    """Ages of the loops of one process.

    Args:
        directory: where to keep `<name>.beat` files for other processes; None keeps none.
        clock: monotonic seconds.
    """

    def __init__(
        self, directory: Path | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._directory = directory
        self._clock = clock
        self._lock = threading.Lock()
        self._beats: dict[str, float] = {}
        self._limits: dict[str, float] = {}
        self._written: dict[str, float] = {}

    def expect(self, name: str, within_seconds: float) -> None:
        """Demand a beat of `name` in every span of that length; the first span starts now."""
        with self._lock:
            self._limits[name] = within_seconds
            self._beats.setdefault(name, self._clock())

    def beat(self, name: str) -> None:
        """Say that the loop `name` went round."""
        now = self._clock()
        with self._lock:
            self._beats[name] = now
            due = now - self._written.get(name, float("-inf")) >= _FILE_PERIOD_SECONDS
            if due:
                self._written[name] = now
        if due and self._directory is not None:
            _touch(self._directory / (name + _FILE_SUFFIX))

    def stop(self, name: str) -> None:
        """Expect no more of `name`, for example while the process shuts down."""
        with self._lock:
            self._limits.pop(name, None)
            self._beats.pop(name, None)

    def age(self, name: str) -> float | None:
        """Seconds since the last beat; None if `name` never beat and is not expected."""
        with self._lock:
            last = self._beats.get(name)
        return None if last is None else max(0.0, self._clock() - last)

    def check(self) -> str:
        """Say what is overdue; "" when every expected beat came in time (a liveness probe)."""
        now = self._clock()
        with self._lock:
            overdue = [
                f"{name}: no progress for {now - self._beats[name]:.0f} s"
                for name, limit in sorted(self._limits.items())
                if now - self._beats[name] > limit
            ]
        return "; ".join(overdue)


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


def file_age(directory: Path, name: str) -> float | None:
    """Seconds since another process beat `name`; None if it never did."""
    try:
        return max(0.0, time.time() - (directory / (name + _FILE_SUFFIX)).stat().st_mtime)
    except FileNotFoundError:
        return None


def _touch(path: Path) -> None:
    try:
        path.touch()
    except OSError:
        # A full or missing disk must not stop work; the file's age tells of it.
        return

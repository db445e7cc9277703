"""Tracks this process's reconciles, and releases the leases of stuck ones.

Every call in a reconcile has a deadline, so only a bug or a hanging kernel can make a reconcile
last forever. Its lease is then released and another worker takes the key, whatever the thread does
(`lease.check` stops it from writing again). The liveness probe fails, so the process is restarted.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from workers.errors import TransientError
from workers.observability.health import HEARTBEATS, Heart, Heartbeats
from workers.observability.logging import get_logger

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from workers.queue.leases import Lease
    from workers.queue.workqueue import WorkQueue

_log = get_logger(__name__)

LONGEST_SECONDS: Final = 1800.0
"""The time limit for a reconcile. It is longer than the slowest reconcile: a comparison with
ListVolumes may take ten minutes, and a call that retries its parts may take a few times
`--timeout`.
"""
_CALLS: Final = 4
# Delay before another worker tries the key, because the same cause may make that worker hang too.
_AGAIN_SECONDS: Final = 10.0


def longest_pass(call_seconds: float) -> float:
    """Return the time limit for a reconcile if one call to the driver may take `call_seconds`."""
    return max(LONGEST_SECONDS, _CALLS * call_seconds)


class Passes:
    """The reconciles that are running in one process.

    Args:
        longest_seconds: returns the time limit for each reconcile.
        heartbeats: the heartbeats of the process.
    """

    def __init__(
        self,
        longest_seconds: Callable[[], float] = lambda: LONGEST_SECONDS,
        heartbeats: Heartbeats = HEARTBEATS,
    ) -> None:
        self._longest_seconds = longest_seconds
        self._heartbeats = heartbeats
        self._lock = threading.Lock()
        self._running: dict[Heart, Lease] = {}

    @contextmanager
    def running(self, lease: Lease) -> Iterator[None]:
        """Register a reconcile as running while the block runs."""
        heart = self._heartbeats.expect(f"pass {lease.key.text}", self._longest_seconds())
        with self._lock:
            self._running[heart] = lease
        try:
            yield
        finally:
            with self._lock:
                del self._running[heart]
            self._heartbeats.stop(heart)

    def expire(self, queue: WorkQueue) -> None:
        """Release the leases of reconciles that exceed their time limit; call this periodically."""
        with self._lock:
            running = list(self._running.items())
        for heart, lease in running:
            if heart.silent_seconds() <= heart.limit_seconds or lease.is_released:
                continue
            _log.error("a reconcile is stuck; releasing its key", key=lease.key.text)
            try:
                queue.release(lease, delay_seconds=_AGAIN_SECONDS, count=True)
            except TransientError as error:
                _log.warning("could not release the key", key=lease.key.text, err=error)
                return  # another release would take as long, and this thread must not hang either

"""Which passes run in this process, and which of them has run for longer than any may?

Every call of a pass has a deadline, so one that goes on for ever is a bug or a kernel that hangs.
Its lease is given back then, so that another worker goes on, whatever the thread does (it may write
nothing more: `lease.check`); liveness tells of it, so that the process is started again.
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
"""More than the slowest pass: a comparison with ListVolumes has ten minutes, a call with retries
of its parts a few `--timeout`s."""
_CALLS: Final = 4
# Before the next worker tries: whatever hung here may hang there.
_AGAIN_SECONDS: Final = 10.0


def longest_pass(call_seconds: float) -> float:
    """The bound where one call of the driver may last that long."""
    return max(LONGEST_SECONDS, _CALLS * call_seconds)


class Passes:
    """The passes of one process.

    Args:
        longest_seconds: upper bound of each.
        heartbeats: of the process.
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
        """Around a pass."""
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
        """Give back the leases of passes over their bound; call it now and then."""
        with self._lock:
            running = list(self._running.items())
        for heart, lease in running:
            if heart.silent_seconds() <= heart.limit_seconds or lease.is_released:
                continue
            _log.error("a pass is stuck, its lease is given back", key=lease.key.text)
            try:
                queue.release(lease, delay_seconds=_AGAIN_SECONDS, count=True)
            except TransientError as error:
                _log.warning("key not released", key=lease.key.text, err=error)
                return  # who calls is watched too, and each of the others would wait as long

"""Which passes run in this process, and which of them has run for longer than any may?

Every call of a pass has a deadline, so one that goes on for ever is a bug or a kernel that hangs.
Its lease is given back then, so that another worker goes on, whatever the thread does (it may write
nothing more: `lease.check`); liveness tells of it, so that the process is started again.
"""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from workers.errors import TransientError
from workers.observability.logging import get_logger

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from workers.queue.leases import Lease
    from workers.queue.workqueue import WorkQueue

_log = get_logger()

LONGEST_SECONDS: Final = 1800.0
"""More than the slowest pass: a comparison with ListVolumes has ten minutes, a call with retries
of its parts a few `--timeout`s."""
# Before the next worker tries: whatever hung here may hang there.
_AGAIN_SECONDS: Final = 10.0


@dataclass(eq=False, slots=True)
class _Running:
    lease: Lease
    started: float
    is_expired: bool = False


class Passes:
    """The passes of one process.

    Args:
        longest_seconds: upper bound of each.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        longest_seconds: float = LONGEST_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._longest_seconds = longest_seconds
        self._clock = clock
        self._lock = threading.Lock()
        self._running: set[_Running] = set()

    @contextmanager
    def running(self, lease: Lease) -> Iterator[None]:
        """Around a pass."""
        one = _Running(lease, self._clock())
        with self._lock:
            self._running.add(one)
        try:
            yield
        finally:
            with self._lock:
                self._running.discard(one)

    def expire(self, queue: WorkQueue) -> None:
        """Give back the leases of passes over their bound; call it now and then."""
        for one in self._stuck():
            if one.is_expired or one.lease.is_released:
                continue
            _log.error("a pass is stuck, its lease is given back", key=one.lease.key.text)
            try:
                queue.release(one.lease, delay_seconds=_AGAIN_SECONDS, count=True)
            except TransientError as error:
                _log.warning("key not released", key=one.lease.key.text, err=error)
            one.is_expired = True

    def check(self) -> str:
        """Say which pass is stuck; "" when none is (a liveness probe)."""
        keys = sorted(one.lease.key.text for one in self._stuck())
        return f"stuck: {', '.join(keys)}" if keys else ""

    def _stuck(self) -> list[_Running]:
        now = self._clock()
        with self._lock:
            return [one for one in self._running if now - one.started > self._longest_seconds]

"""The client-side request rate of `--kube-api-qps` and `--kube-api-burst`: a token bucket."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class Throttle:
    """Lets `qps` requests per second pass after a first `burst` (client-go flowcontrol).

    A request takes its token at once and waits for its own turn, so waiting threads keep
    their order and none polls. Safe for threads.

    Args:
        qps: tokens per second, more than 0.
        burst: tokens at rest, at least 1.
        clock: monotonic seconds.
        sleep: waits that many seconds.
    """

    def __init__(
        self,
        qps: float,
        burst: int,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._qps = qps
        self._burst = max(1, burst)
        self._clock = clock
        self._sleep = sleep
        self._lock = threading.Lock()
        self._tokens = float(self._burst)
        self._at = clock()

    def wait(self) -> None:
        """Return when the next request may go out."""
        with self._lock:
            now = self._clock()
            self._tokens = min(self._burst, self._tokens + (now - self._at) * self._qps) - 1
            self._at = now
            delay = -self._tokens / self._qps
        if delay > 0:
            self._sleep(delay)

"""Which calls are slow by now, and who is told so while their threads wait for the driver?

A thread that waits in gRPC cannot look at a clock, but with a future, which costs a thread and
several hand-overs for each call. So one thread looks at the clock for all calls of the process. It
sleeps until the earliest deadline; a call that ends before its own marks its entry as over, and
the entry is dropped when the thread comes by: quick calls wake it once in `after_seconds`, however
many they are.

Whoever is told has a thread of its own, for it may take long and must hold up no other, with the
context variables of the call's thread. It is told once, and never after its call is over: the
call's end waits for it, so that both may change the same things one after the other.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import math
import threading
import time
from contextvars import copy_context
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextvars import Context

_log: Final = logging.getLogger(__name__)


class SlowCall:
    """One call, as a context manager around it; see `SlowCalls.told`."""

    __slots__ = ("_after_seconds", "_calls", "_context", "_on_slow", "_rpc", "is_over", "is_told")

    def __init__(
        self, calls: SlowCalls, on_slow: Callable[[], None], after_seconds: float, rpc: str
    ) -> None:
        self._calls = calls
        self._on_slow: Callable[[], None] | None = on_slow
        self._after_seconds = after_seconds
        self._rpc = rpc
        self._context: Context | None = None
        self.is_over = False
        self.is_told: threading.Event | None = None
        """Set when `on_slow` has ended; None while it was not due."""

    def __enter__(self) -> None:
        self._context = copy_context()
        self._calls.begin(self, self._after_seconds)

    def __exit__(self, *_: object) -> None:
        self._calls.end(self)
        # The entry may outlive the call for seconds; the request and its secrets must not.
        self._on_slow = self._context = None

    def tell(self) -> None:
        """Run `on_slow` in a thread of its own."""
        try:
            threading.Thread(target=self._run, name="csi-slow-call", daemon=True).start()
        except RuntimeError:  # no thread is to be had: others are told late, but this one is
            self._run()

    def _run(self) -> None:
        assert self._context is not None  # the call waits for `is_told`
        assert self.is_told is not None
        try:
            self._context.run(self._run_guarded)
        finally:
            self.is_told.set()

    def _run_guarded(self) -> None:
        assert self._on_slow is not None
        try:
            self._on_slow()
        except Exception:  # noqa: BLE001 - the call runs on, and its answer must not get lost
            _log.exception("slow-call callback failed", extra={"method": self._rpc})


class SlowCalls:
    """The calls of one process that have somebody to tell. Nothing starts before the first one.

    Args:
        clock: monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._woken = threading.Condition(self._lock)
        # A heap of deadline, a number so that calls are not compared, call.
        self._entries: list[tuple[float, int, SlowCall]] = []
        self._numbers = itertools.count()
        self._sleeps_until = math.inf
        self._thread: threading.Thread | None = None

    def told(self, on_slow: Callable[[], None], after_seconds: float, rpc: str) -> SlowCall:
        """Around a call: `on_slow` runs when the block still runs after `after_seconds`.

        An exception of it is logged and dropped, for the answer of the driver counts more.

        Args:
            on_slow: runs at most once, in another thread, within the present context variables.
            after_seconds: from the beginning of the block.
            rpc: the method, for the log.
        """
        return SlowCall(self, on_slow, after_seconds, rpc)

    def begin(self, call: SlowCall, after_seconds: float) -> None:
        """The call begins now."""
        deadline = self._clock() + after_seconds
        with self._lock:
            if deadline < self._sleeps_until:
                self._wake()
                self._sleeps_until = deadline
            heapq.heappush(self._entries, (deadline, next(self._numbers), call))

    def end(self, call: SlowCall) -> None:
        """The call is over; waits for its `on_slow`, if that has begun."""
        with self._lock:
            call.is_over, is_told = True, call.is_told
        if is_told is not None:
            is_told.wait()

    def tell_due(self) -> None:
        """Tell whose time is over, and drop what ended meanwhile from the front."""
        with self._lock:
            due, now = [], self._clock()
            while self._entries and (self._entries[0][0] <= now or self._entries[0][2].is_over):
                call = heapq.heappop(self._entries)[2]
                if not call.is_over:
                    call.is_told = threading.Event()
                    due.append(call)
        for call in due:
            call.tell()

    def _wake(self) -> None:
        if self._thread is not None:
            self._woken.notify()
            return
        thread = threading.Thread(target=self._run, name="csi-slow-calls", daemon=True)
        thread.start()  # under the lock, so it sees the call that it was started for
        self._thread = thread

    def _run(self) -> None:
        while True:
            self.tell_due()
            with self._lock:
                # A later deadline wakes nobody, one that came in since `tell_due` is seen here.
                self._sleeps_until = self._entries[0][0] if self._entries else math.inf
                seconds = self._sleeps_until - self._clock()
                if seconds > 0:
                    self._woken.wait(min(seconds, threading.TIMEOUT_MAX))


SLOW_CALLS: Final = SlowCalls()
"""Those of this process."""

"""A background thread that repeats a step forever; the liveness check monitors it.

A step returns how long to wait before the next one. No error ends the loop: only the first of
several errors in a row is logged, and the delay grows with each further error. The liveness check
notices a hanging step. No other code may start a looping thread (tests/unit/test_threads.py).
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from workers.backoff import Backoff
from workers.errors import ProvisionerError
from workers.observability.health import HEARTBEATS, LIMIT_SECONDS, Heart, Heartbeats
from workers.observability.logging import get_logger

if TYPE_CHECKING:
    from collections.abc import Callable

_log = get_logger(__name__)


class Loop:
    """Repeats a step in its own thread.

    Args:
        name: the name of the thread; also used in liveness errors.
        step: does some work; returns the seconds to wait before the next step, or None to wait
            until `wake` is called.
        limit_seconds: how long a step may take, or how long may pass between two calls of `beat`
            within a step, before the liveness check fails.
        heartbeats: the registry through which the liveness check monitors the process's threads.
        backoff: the delays after failures.
        first_wait_seconds: the delay before the first step; if None, the loop waits until `wake` is
            called.

    Attributes:
        is_failing: True if the last step failed.
        problem: why the last step failed; "" if it did not fail, or if the reason is unknown.
    """

    def __init__(
        self,
        name: str,
        step: Callable[[], float | None],
        *,
        limit_seconds: float = LIMIT_SECONDS,
        heartbeats: Heartbeats = HEARTBEATS,
        backoff: Backoff | None = None,
        first_wait_seconds: float | None = 0.0,
    ) -> None:
        self.name = name
        self.is_failing = False
        self.problem = ""
        self._step = step
        self._heartbeats = heartbeats
        self._limit_seconds = limit_seconds
        self._backoff = backoff or Backoff(base_seconds=0.2, cap_seconds=5.0)
        self._first_wait_seconds = first_wait_seconds
        self._woken = threading.Event()
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self._heart: Heart | None = None

    def start(self) -> None:
        """Start the thread."""
        self._thread = threading.Thread(target=self.run, name=self.name, daemon=True)
        self._thread.start()

    def wake(self) -> None:
        """Request a step soon; this does not shorten the delay after a failure."""
        self._woken.set()

    def beat(self) -> None:
        """Report progress from within a long step."""
        if self._heart is not None:
            self._heart.beat()

    def stop(self) -> None:
        """Make the loop end soon; idempotent."""
        self._stopped.set()
        self._woken.set()

    def join(self, timeout_seconds: float | None) -> None:
        """Wait for the thread to end after `stop`; if None, wait without a limit."""
        if self._thread is not None:
            self._thread.join(timeout_seconds)

    @property
    def is_alive(self) -> bool:
        """Return True if the thread is running."""
        return self._thread is not None and self._thread.is_alive()

    def run(self) -> None:
        """Repeat the step until `stop` is called; never raises."""
        self._wait(self._first_wait_seconds, self._woken)
        while not self._stopped.is_set():
            # Cleared before the step, so that a `wake` during the step causes another step.
            self._woken.clear()
            try:
                with self._heartbeats.during(self.name, self._limit_seconds) as self._heart:
                    seconds = self._step()
            except ProvisionerError as error:
                if not self.is_failing:
                    _log.warning("a background loop failed; retrying", loop=self.name, err=error)
                self._failed(str(error))
            except BaseException:  # noqa: BLE001 - the loop must outlive any defect
                if not self.is_failing:
                    _log.exception("unexpected error in a background loop", loop=self.name)
                self._failed()
            else:
                if self.is_failing:
                    _log.info("the background loop works again", loop=self.name)
                self.is_failing, self.problem = False, ""
                self._backoff.reset()
                self._wait(seconds, self._woken)

    def _failed(self, problem: str = "") -> None:
        self.is_failing, self.problem = True, problem
        # A `wake` must not cause an immediate retry; only `stop` ends this wait.
        self._wait(self._backoff.next_seconds(), self._stopped)

    def _wait(self, seconds: float | None, until: threading.Event) -> None:
        if seconds is None or seconds > 0:
            until.wait(seconds)

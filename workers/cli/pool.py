"""The threads of a worker: what a pass begins goes on in the thread of that pass.

Another thread would have to be woken and to wait for Python's lock, while this one has nothing
more to do.
"""

from __future__ import annotations

import threading
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any

from celery.concurrency.base import apply_target
from celery.concurrency.thread import ApplyResult, TaskPool  # type: ignore[attr-defined]

if TYPE_CHECKING:
    from collections.abc import Callable


class _Jobs(threading.local):
    """Of this thread, while it works: what comes after the present job."""

    waiting: deque[Callable[[], Any]] | None = None


class FollowingPool(TaskPool):
    """Celery's pool of threads."""

    executor: ThreadPoolExecutor
    _jobs = _Jobs()

    def on_apply(
        self,
        target: Callable[..., Any],
        args: tuple[Any, ...] | None = None,
        kwargs: dict[str, Any] | None = None,
        callback: Callable[..., Any] | None = None,
        accept_callback: Callable[..., Any] | None = None,
        **_: Any,
    ) -> ApplyResult:
        """Celery hands over a task: to this thread if it is one of the pool, else to any."""
        job = partial(apply_target, target, args, kwargs, callback, accept_callback)
        if self._jobs.waiting is None:
            return ApplyResult(self.executor.submit(self._work, job))
        self._jobs.waiting.append(job)
        return ApplyResult(Future())

    def _work(self, job: Callable[[], Any]) -> None:
        waiting = self._jobs.waiting = deque([job])
        try:
            while waiting:
                waiting.popleft()()
        finally:
            self._jobs.waiting = None
            for rest in waiting:  # after a job that failed
                self.executor.submit(self._work, rest)

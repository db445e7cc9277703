"""Celery's pool of threads, which reports that a task has ended.

Celery's loop fetches the next message when it goes round and finds a free thread, and nothing makes
it go round when a thread gets free: for up to a second that thread would be idle.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from celery.concurrency.thread import TaskPool

if TYPE_CHECKING:
    from collections.abc import Callable

POOL = "workers.cli.pool:ThreadPool"


class ThreadPool(TaskPool):
    """Celery's pool of threads."""

    on_end: Callable[[], None] | None = None
    """Called in a task's thread when Celery counts the task no more."""

    def on_apply(self, *args: Any, **kwargs: Any) -> Any:
        """Begin a task in one of the threads."""
        result = super().on_apply(*args, **kwargs)
        result.f.add_done_callback(self._ended)
        return result

    def _ended(self, _: object) -> None:
        if self.on_end is not None:
            self.on_end()

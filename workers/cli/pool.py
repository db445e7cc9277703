"""Celery's pool of threads, which also reports that a task has ended.

Celery's event loop fetches the next message when it runs a round and finds a free thread. A thread
that becomes free does not start a round, so without the report it would be idle for up to a second.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from celery.concurrency.thread import TaskPool

if TYPE_CHECKING:
    from collections.abc import Callable

POOL = "workers.cli.pool:ThreadPool"


class ThreadPool(TaskPool):
    """Celery's pool of threads, with a callback for the end of a task."""

    on_end: Callable[[], None] | None = None
    """Called in a task's thread once Celery no longer counts the task as running."""

    def on_apply(self, *args: Any, **kwargs: Any) -> Any:
        """Start a task in one of the threads."""
        result = super().on_apply(*args, **kwargs)
        result.f.add_done_callback(self._ended)
        return result

    def _ended(self, _: object) -> None:
        if self.on_end is not None:
            self.on_end()

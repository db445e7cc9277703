"""When does Celery fetch the next ticket after all threads were busy?

Its loop looks for a free thread when it goes round, and nothing makes it go round when a thread is
free again: for up to a second that thread would be idle while tickets wait. So the end of a task
wakes it, if it found no free thread before.
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


class FreeThreads:
    """Wakes the loop of one of Celery's consumers when it fetched nothing for want of a thread."""

    def __init__(self, consumer: Any) -> None:
        self._consumer = consumer
        self._found_none = False
        qos = consumer.task_consumer.channel.qos
        self._has_free: Callable[[], bool] = qos.can_consume
        qos.can_consume = self.look
        consumer.pool.on_end = self.ended

    def look(self) -> bool:
        """In the loop: whether a ticket may be fetched."""
        self._found_none = True  # before: a thread that is free from now on tells
        if not self._has_free():
            return False
        self._found_none = False
        return True

    def ended(self) -> None:
        """In a thread that is free now."""
        if self._found_none:
            self._found_none = False
            self._consumer.call_soon(_nothing)


def _nothing() -> None:
    """The loop goes round, and looks."""

"""Celery's thread pool reports the end of every task."""

from __future__ import annotations

from workers.cli.pool import ThreadPool


def test_a_pool_tells_of_ends_of_every_kind():
    """A reconcile that raises also frees its thread; without a listener there is no report."""
    pool = ThreadPool(limit=1)
    told = []

    def fail():
        raise ValueError

    try:
        pool.on_apply(lambda: None, (), {}).wait(30)
        pool.on_end = lambda: told.append(1)
        for target in (lambda: None, fail):
            pool.on_apply(target, (), {}).wait(30)
    finally:
        pool.executor.shutdown()
    assert told == [1, 1]

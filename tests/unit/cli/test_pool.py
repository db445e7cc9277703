"""A task that a pass begins runs in that pass' thread, when it is over."""

from __future__ import annotations

import threading

import pytest

from tests.support.waiting import wait_until
from workers.cli.pool import FollowingPool


@pytest.fixture
def pool():
    pool = FollowingPool(2)
    yield pool
    pool.on_stop()


def ignore(*_):
    """What Celery is told of a task's start and end."""


class Tasks:
    """Notes which thread ran what, in order."""

    def __init__(self, pool):
        self._pool = pool
        self.ran = []

    def start(self, name, *begun, error=None):
        self._pool.apply_async(
            self._run, (name, begun, error), {}, callback=ignore, accept_callback=ignore
        )

    def _run(self, name, begun, error):
        for one in begun:
            self.start(one)
        self.ran.append((name, threading.get_ident()))
        if error is not None:
            raise error

    def names(self):
        return [name for name, _ in self.ran]


def test_what_a_task_begins_follows_it_in_its_thread(pool):
    """Also what a follower begins; nothing runs inside of another pass."""
    tasks = Tasks(pool)
    tasks.start("first", "second", "third")
    wait_until(lambda: len(tasks.ran) == 3, 10, "all ran")
    assert tasks.names() == ["first", "second", "third"]
    assert len({thread for _, thread in tasks.ran}) == 1


def test_the_thread_is_free_afterwards(pool):
    tasks = Tasks(pool)
    tasks.start("first", "second")
    wait_until(lambda: len(tasks.ran) == 2, 10, "both ran")
    for number in range(4):
        tasks.start(f"later {number}")
    wait_until(lambda: len(tasks.ran) == 6, 10, "all ran")
    assert threading.get_ident() not in {thread for _, thread in tasks.ran}


def test_a_task_that_fails_loses_none_of_those_that_follow(pool):
    """Celery's own code around a task failed: no task of ours raises."""
    tasks = Tasks(pool)
    tasks.start("first", "second", "third", error=OSError("Celery's"))
    wait_until(lambda: len(tasks.ran) == 3, 10, "all ran")
    assert sorted(tasks.names()) == ["first", "second", "third"]

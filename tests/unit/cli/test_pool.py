"""Who wakes Celery's loop when a thread is free after none was: nobody too often, nobody never."""

from __future__ import annotations

from itertools import permutations
from types import SimpleNamespace

import pytest

from workers.cli.pool import FreeThreads, ThreadPool


class Consumer:
    """Celery's consumer; `busy` tasks count."""

    def __init__(self, threads=1):
        self.busy, self.woken, self.before_answer = 0, 0, lambda: None
        self.pool = SimpleNamespace(on_end=None)
        self.qos = SimpleNamespace(can_consume=lambda: self.is_free(threads))
        self.task_consumer = SimpleNamespace(channel=SimpleNamespace(qos=self.qos))

    def is_free(self, threads):
        free = self.busy < threads
        self.before_answer()
        return free

    def call_soon(self, call):
        call()
        self.woken += 1

    def end(self):
        self.busy -= 1
        self.pool.on_end()


@pytest.fixture
def consumer():
    found = Consumer()
    FreeThreads(found)
    return found


def test_an_end_wakes_who_found_no_free_thread(consumer):
    consumer.busy = 1
    assert not consumer.qos.can_consume()
    consumer.end()
    assert consumer.woken == 1
    assert consumer.qos.can_consume()


def test_an_end_wakes_nobody_while_there_are_free_threads():
    """Each turn of the loop costs as much as a command of Redis."""
    consumer = Consumer(threads=2)
    FreeThreads(consumer)
    consumer.busy = 1
    assert consumer.qos.can_consume()
    consumer.end()
    assert consumer.woken == 0


def test_one_of_several_ends_wakes(consumer):
    consumer.busy = 3
    assert not consumer.qos.can_consume()
    for _ in range(3):
        consumer.end()
    assert consumer.woken == 1


def test_an_end_while_it_is_looked_is_not_missed(consumer):
    """The last thread is free just after the loop counted them."""
    consumer.busy = 1
    consumer.before_answer = consumer.end
    assert not consumer.qos.can_consume()
    assert consumer.woken == 1


@pytest.mark.parametrize("order", sorted(set(permutations("LLEE"))))
def test_whoever_comes_first_nothing_waits_for_ever(consumer, order):
    """Looks (L) and ends (E) of two tasks in any order: no free thread is left without a look."""
    consumer.busy = 2
    is_seen = False
    for step in order:
        if step == "L":
            is_seen = consumer.qos.can_consume() or is_seen
        else:
            woken = consumer.woken
            consumer.end()
            if consumer.woken > woken:
                is_seen = consumer.qos.can_consume() or is_seen
    assert is_seen or consumer.qos.can_consume()
    if order[0] == "L" and order[-1] == "E":
        assert is_seen


def test_a_pool_tells_of_ends_of_every_kind():
    """A pass that raises frees its thread too; nobody may be told before somebody asks."""
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

"""Which tickets are fetched, and the proof that somebody still fetches them."""

from __future__ import annotations

import pytest

from workers.app import SYSTEM_QUEUE, make_app
from workers.cli.consumers import CeleryConsumers
from workers.config.settings import Settings


class Queue:
    def __init__(self, name):
        self.name = name


class Timer:
    """Celery's timer: what it would call in its loop."""

    def __init__(self):
        self.calls = []

    def call_repeatedly(self, seconds, call):
        assert seconds > 0
        self.calls.append(call)
        timer = self

        class Entry:
            def cancel(self):
                timer.calls.remove(call)

        return Entry()


class Consumer:
    """Celery's consumer with its set of queues; calls at once what it is asked to call."""

    def __init__(self):
        self.timer = Timer()
        self.hub = object()
        self.task_consumer = self
        self.names = {SYSTEM_QUEUE}

    @property
    def queues(self):
        return [Queue(name) for name in self.names]

    def call_soon(self, call):
        call()

    def add_task_queue(self, name):
        self.names.add(name)

    def cancel_task_queue(self, name):
        self.names.discard(name)


@pytest.fixture
def beats():
    return []


@pytest.fixture
def consumers(beats):
    app = make_app(Settings())
    yield CeleryConsumers(app, on_round=lambda: beats.append(1))
    app.close()


def test_the_fetched_queues_are_the_wanted_ones(consumers):
    consumer = Consumer()
    consumers.serve("a")
    consumers.connected(consumer)
    assert consumer.names == {SYSTEM_QUEUE, "drv.a"}
    consumers.serve("b")
    consumers.hold("a", is_full=True)
    assert consumer.names == {SYSTEM_QUEUE, "drv.b"}
    consumers.hold("a", is_full=False)
    consumers.leave("b")
    assert consumer.names == {SYSTEM_QUEUE, "drv.a"}


def test_tickets_are_left_to_others_while_this_process_may_not_work(consumers):
    """COR-5: apart from seats, that come and go meanwhile."""
    consumer = Consumer()
    consumers.serve("a")
    consumers.connected(consumer)
    consumers.stand_back(["a"], is_back=True)
    consumers.hold("a", is_full=True)
    consumers.hold("a", is_full=False)
    assert consumer.names == {SYSTEM_QUEUE}
    consumers.stand_back(["a"], is_back=False)
    assert consumer.names == {SYSTEM_QUEUE, "drv.a"}


def test_a_round_of_the_loop_is_a_sign_of_life_and_mends_the_queues(consumers, beats):
    """Alive is who fetches: a process whose loop hangs must not look healthy."""
    consumer = Consumer()
    consumers.serve("a")
    consumers.connected(consumer)
    assert beats == []
    consumer.names.clear()
    (a_round,) = consumer.timer.calls
    a_round()
    assert (beats, consumer.names) == ([1], {SYSTEM_QUEUE, "drv.a"})


def test_a_loop_without_its_connection_gives_no_sign_of_life(consumers, beats):
    consumer = Consumer()
    consumers.connected(consumer)
    consumer.task_consumer = None
    consumer.timer.calls[0]()
    assert beats == []


def test_a_new_connection_has_one_round_of_its_own(consumers, beats):
    first, second = Consumer(), Consumer()
    consumers.connected(first)
    consumers.connected(second)
    assert first.timer.calls == []
    second.timer.calls[0]()
    assert beats == [1]

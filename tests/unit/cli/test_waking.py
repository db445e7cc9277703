"""SIGTERM is noticed and obeyed at once, not at the end of a wait for tickets."""

from __future__ import annotations

import os
import signal

import pytest
import redis
from kombu.asynchronous import Hub

from workers.cli.consumers import stop_asking
from workers.cli.waking import SignalWaker


@pytest.fixture
def waker():
    waker = SignalWaker()
    yield waker
    waker.close()


@pytest.fixture
def hub():
    hub = Hub()
    yield hub
    hub.close()


def test_a_signal_ends_the_wait_of_the_event_loop(hub, waker, monkeypatch):
    """Its handler does not raise, as Celery's does not: Python alone would go on waiting."""
    seen, woken, drain = [], [], waker._drain
    monkeypatch.setattr(waker, "_drain", lambda: (woken.append(True), drain()))
    before = signal.signal(signal.SIGUSR1, lambda *_: seen.append(True))
    try:
        for _ in range(2):  # Celery connects again
            waker.attach(hub)
        rounds = hub.create_loop()
        for _ in range(2):
            hub.call_soon(os.kill, os.getpid(), signal.SIGUSR1)
            next(rounds)
            assert woken == seen, "the byte of the last signal was read, or the next gets lost"
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert seen


class Asking:
    """A connection on which a ticket was asked for."""

    def __init__(self, *, has_answer=False, error=None):
        self.has_answer, self.error, self.is_connected = has_answer, error, True

    def can_read(self, timeout):
        assert timeout == 0
        if self.error is not None:
            raise self.error
        return self.has_answer

    def disconnect(self):
        self.is_connected = False


class Consumer:
    """Celery's, with kombu's channel."""

    connection_errors = (redis.ConnectionError, OSError)
    channel_errors = ()

    def __init__(self, asking):
        self.task_consumer = self
        self.channel = self
        self._in_poll = asking


def test_nothing_is_asked_for_any_more():
    asking = Asking()
    consumer = Consumer(asking)
    stop_asking(consumer)
    assert not asking.is_connected
    assert consumer._in_poll is None, "kombu would wait for its answer"


def test_a_ticket_that_came_is_left_for_kombu_to_put_back():
    asking = Asking(has_answer=True)
    consumer = Consumer(asking)
    stop_asking(consumer)
    assert asking.is_connected
    assert consumer._in_poll is asking


@pytest.mark.parametrize("error", [redis.ConnectionError("away"), OSError("away")])
def test_a_broken_connection_is_no_trouble(error):
    stop_asking(Consumer(Asking(error=error)))


@pytest.mark.parametrize("task_consumer", [None, object()])
def test_before_it_is_connected_there_is_nothing_to_end(task_consumer):
    consumer = Consumer(None)
    consumer.task_consumer = task_consumer
    stop_asking(consumer)

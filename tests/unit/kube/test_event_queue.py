"""Queued events: order, bursts, shutdown."""

from __future__ import annotations

import threading

import pytest

from tests.support.waiting import wait_until
from workers.kube import eventqueue
from workers.kube.eventqueue import BATCH, BURST_EVENTS, EventQueue


class Clock:
    def __init__(self):
        self.now = 100.0

    def monotonic(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(eventqueue, "time", clock)
    return clock


def burst(waiting, count):
    for number in range(count):
        waiting.put({"number": number})


def taker(waiting):
    """Start a thread that takes once; return it and the list that gets its result."""
    taken = []
    thread = threading.Thread(target=lambda: taken.append(waiting.take()), daemon=True)
    thread.start()
    return thread, taken


def test_few_events_are_taken_at_once_and_in_order(clock):
    waiting = EventQueue(100)
    burst(waiting, BURST_EVENTS - 1)
    assert [one["number"] for one in waiting.take()] == list(range(BURST_EVENTS - 1))


@pytest.mark.parametrize("seconds", [0.3, 2.1])
def test_events_of_a_burst_wait_for_its_end_and_not_longer_than_two_seconds(clock, seconds):
    waiting = EventQueue(1000)
    burst(waiting, BURST_EVENTS)
    thread, taken = taker(waiting)
    thread.join(0.2)
    assert not taken
    if seconds > 1:
        clock.now += seconds
        burst(waiting, BURST_EVENTS)  # it continues, but the first event has waited long enough
    else:
        clock.now += seconds
    thread.join(5)
    assert len(taken[0]) >= BURST_EVENTS


def test_a_queue_that_is_half_full_holds_nothing_back(clock):
    waiting = EventQueue(BURST_EVENTS * 2)
    burst(waiting, BURST_EVENTS + 2)
    assert len(waiting.take()) == BURST_EVENTS + 2


def test_a_batch_is_bounded_and_the_rest_stays(clock):
    waiting = EventQueue(BATCH + 5)
    burst(waiting, BATCH + 3)
    assert len(waiting.take()) == BATCH
    clock.now += 1
    assert [one["number"] for one in waiting.take()] == [BATCH, BATCH + 1, BATCH + 2]


def test_close_gives_out_what_is_left_and_then_the_end(clock):
    waiting = EventQueue(100)
    burst(waiting, BURST_EVENTS)
    waiting.close()
    assert len(waiting.take()) == BURST_EVENTS
    assert waiting.take() == []


def test_close_ends_a_wait(clock):
    waiting = EventQueue(100)
    thread, taken = taker(waiting)
    wait_until(thread.is_alive, 5, "it waits")
    waiting.close()
    thread.join(5)
    assert taken == [[]]


def test_full_queue_says_so(clock):
    waiting = EventQueue(2)
    assert [waiting.put({}) for _ in range(3)] == [True, True, False]

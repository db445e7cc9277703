"""The loop of every background thread: no error ends it, and its progress is monitored."""

from __future__ import annotations

import threading

import pytest

from tests.support.waiting import wait_until
from workers.backoff import Backoff
from workers.errors import QueueUnavailable
from workers.kube.errors import ForbiddenError
from workers.loop import Loop
from workers.observability.health import Heartbeats


@pytest.fixture
def start():
    """Yield a function that starts loops; they are stopped afterwards."""
    loops = []

    def begin(step, **options):
        loop = Loop("x", step, **{"backoff": Backoff(0.01, 0.02), **options})
        loops.append(loop)
        loop.start()
        return loop

    yield begin
    for loop in loops:
        loop.stop()
        loop.join(5)
        assert not loop.is_alive


def until(condition):
    wait_until(condition, 5, "the loop", interval_seconds=0.005)


@pytest.mark.parametrize(
    "error", [QueueUnavailable("away"), ForbiddenError(403, "", "no"), ZeroDivisionError("defect")]
)
def test_a_failing_step_is_tried_again_until_it_works(start, error):
    """No outage of Redis, missing permission or defect ends the thread (M-010 for the recovery)."""
    answers = [error, error, None]
    done = threading.Event()

    def step():
        answer = answers.pop(0)
        if answer:
            raise answer
        done.set()

    loop = start(step)
    assert done.wait(5)
    until(lambda: not loop.is_failing)


def test_a_step_that_asks_for_nothing_waits_until_it_is_woken(start):
    rounds = []
    loop = start(lambda: rounds.append(1), first_wait_seconds=None)
    assert rounds == []
    for count in (1, 2):
        loop.wake()
        until(lambda count=count: len(rounds) == count)


def test_the_period_is_what_the_step_says(start):
    rounds = []

    def step():
        rounds.append(1)
        return 0.0 if len(rounds) < 3 else None

    start(step)
    until(lambda: len(rounds) == 3)


def test_wakes_during_an_outage_do_not_become_tries(start):
    """Otherwise each event of a busy cluster would send a command to a Redis that is down."""
    rounds = []

    def step():
        rounds.append(1)
        raise QueueUnavailable("away")

    loop = start(step, backoff=Backoff(3600, 3600))
    until(lambda: loop.is_failing)
    for _ in range(100):
        loop.wake()
    assert len(rounds) == 1


def test_a_step_that_hangs_is_seen(start):
    """STR-9: liveness restarts a process whose thread makes no progress."""
    now = [0.0]
    beats = Heartbeats(clock=lambda: now[0])
    inside, leave = threading.Event(), threading.Event()

    def step():
        inside.set()
        leave.wait(30)

    start(step, heartbeats=beats, limit_seconds=60)
    assert inside.wait(5)
    now[0] = 61.0
    assert beats.check() == "x: no progress for 61 s"
    leave.set()
    until(lambda: beats.check() == "")

"""Who is woken too often rests: when, and when not."""

from __future__ import annotations

import pytest

from watcher.pace import LONG_REST_SECONDS, REST_SECONDS, Pace


class Time:
    """A clock that a rest moves on."""

    def __init__(self):
        self.now = 100.0
        self.rests = 0

    def sleep(self, seconds):
        assert seconds == REST_SECONDS
        self.now += seconds
        self.rests += 1


@pytest.fixture
def time():
    return Time()


@pytest.fixture
def pace(time):
    return Pace(64, clock=lambda: time.now, sleep=time.sleep)


def test_what_comes_at_rest_never_waits(pace, time):
    """A claim at rest must reach Redis at once, and so must a handful of them."""
    for _ in range(30):
        pace.count()
        pace.rest()
    assert time.rests == 0


def test_the_usual_rate_never_waits(pace, time):
    """The latency of a steady load is what users see."""
    for _ in range(1000):
        time.now += 1 / 60
        pace.count()
        pace.rest()
    assert time.rests == 0


def test_a_burst_is_taken_in_portions(pace, time):
    """Wake-ups are what a burst costs: 25 a second, however many events come."""
    for _ in range(100):
        time.now += 0.001
        pace.count(8)
        pace.rest()
    assert time.rests > 90


def test_a_burst_leaves_no_debt(pace, time):
    """Soon after thousands of events a single one finds the watcher at rest again."""
    pace.count(5000)
    pace.rest()
    time.now += 0.5
    for _ in range(30):
        pace.count()
        pace.rest()
    assert time.rests == 1


def test_what_nobody_waits_for_rests_longer(time):
    """A rest for each portion of a burst, however long."""
    rests = []
    pace = Pace(64, rest_seconds=LONG_REST_SECONDS, clock=lambda: time.now, sleep=rests.append)
    pace.count(100)
    pace.rest()
    assert rests == [LONG_REST_SECONDS]

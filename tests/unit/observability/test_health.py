"""Health checks that prove progress, and the health of the Lease (F-022, C-143)."""

from __future__ import annotations

import pytest

from workers.observability.health import Heartbeats, LeaderHealth


class Clock:
    now = 1000.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


def test_a_loop_that_stops_is_overdue(clock):
    beats = Heartbeats(clock)
    heart = beats.expect("consumer", within_seconds=10)
    clock.now += 10
    assert beats.check() == ""
    clock.now += 1
    assert beats.check() == "consumer: no progress for 11 s"
    heart.beat()
    assert beats.check() == ""
    clock.now += 100
    beats.stop(heart)
    assert beats.check() == ""


def test_each_piece_of_work_has_its_own_heart_although_names_are_equal(clock):
    """For example, a Lease that makes progress must not hide another of that name that hangs."""
    beats = Heartbeats(clock)
    with beats.during("lease", 5), beats.during("lease", 5) as other:
        clock.now += 6
        other.beat()
        assert beats.check() == "lease: no progress for 6 s"
    assert beats.check() == ""


def test_work_that_fails_is_over(clock):
    beats = Heartbeats(clock)
    with pytest.raises(ZeroDivisionError), beats.during("x", 1):
        raise ZeroDivisionError
    clock.now += 2
    assert beats.check() == ""


@pytest.mark.parametrize(("seconds", "complaint"), [
    pytest.param(0, "", id="C-143 renewed now"),
    pytest.param(35, "", id="C-143 lease duration + 20 s"),
    pytest.param(35.1, "failed election to renew leadership on lease l", id="C-143 older"),
])  # fmt: skip
def test_leader(clock, seconds, complaint):
    leader = LeaderHealth("l", 15, clock)
    leader.renewed()
    clock.now += seconds
    assert leader.check() == complaint


def test_c143_standby_is_healthy(clock):
    leader = LeaderHealth("l", 15, clock)
    assert leader.check() == ""
    leader.renewed()
    leader.lost()
    clock.now += 1e6
    assert leader.check() == ""

"""Health that proves progress, and the Lease's health (F-022, C-143)."""

from __future__ import annotations

import os

import pytest

from workers.observability.health import Heartbeats, LeaderHealth, file_age


class Clock:
    now = 1000.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


def test_a_loop_that_stops_is_overdue(clock):
    beats = Heartbeats(clock=clock)
    beats.expect("consumer", within_seconds=10)
    clock.now += 10
    assert beats.check() == ""
    clock.now += 1
    assert beats.check() == "consumer: no progress for 11 s"
    beats.beat("consumer")
    assert beats.check() == ""


def test_an_unexpected_loop_may_be_silent(clock):
    beats = Heartbeats(clock=clock)
    beats.beat("idle")
    clock.now += 1e6
    assert beats.check() == ""
    assert beats.age("idle") == 1e6
    assert beats.age("unknown") is None


def test_a_stopped_loop_is_expected_no_more(clock):
    beats = Heartbeats(clock=clock)
    beats.expect("consumer", within_seconds=1)
    beats.stop("consumer")
    clock.now += 100
    assert beats.check() == ""


def test_other_processes_see_the_age(tmp_path, clock):
    beats = Heartbeats(tmp_path, clock)
    assert file_age(tmp_path, "consumer") is None
    beats.beat("consumer")
    os.utime(tmp_path / "consumer.beat", (0, 0))
    old = file_age(tmp_path, "consumer")
    assert old is not None
    assert old > 1e9


def test_a_busy_loop_touches_its_file_once_a_second(tmp_path, clock):
    beats = Heartbeats(tmp_path, clock)
    beats.beat("consumer")
    (tmp_path / "consumer.beat").unlink()
    clock.now += 0.5
    beats.beat("consumer")
    assert file_age(tmp_path, "consumer") is None
    clock.now += 0.5
    beats.beat("consumer")
    assert file_age(tmp_path, "consumer") is not None


def test_a_missing_folder_stops_nothing(tmp_path):
    Heartbeats(tmp_path / "absent").beat("consumer")


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

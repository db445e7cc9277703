"""A reconcile that hangs loses its lease, another worker continues, and liveness fails (STR-9)."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tests.support.taking import take
from workers.engine.passes import LONGEST_SECONDS, Passes, longest_pass
from workers.errors import LeaseLost, QueueUnavailable
from workers.observability.health import Heartbeats
from workers.queue.keys import Key
from workers.queue.workqueue import WorkQueue

KEY = Key("claims", "d", "a/b", "u")


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def queue(redis_client):
    found = WorkQueue(redis_client, publish=lambda _: None)
    found.register_process()
    found.set_limits(KEY.lane, 2)
    found.add([KEY])
    return found


def test_a_stuck_pass_loses_its_lease_and_may_write_nothing_more(queue):
    clock = Clock()
    beats = Heartbeats(clock)
    passes = Passes(lambda: 60, beats)
    lease = take(queue, KEY)
    with passes.running(lease):
        clock.now = 61
        passes.expire(queue)
        assert KEY.text in beats.check()
        with pytest.raises(LeaseLost):
            lease.check()
        assert queue.stats()[KEY.lane].running == 0
        passes.expire(queue)  # reported once, released once
    assert beats.check() == ""


def test_a_pass_within_its_bound_is_left_alone(queue):
    clock = Clock()
    beats = Heartbeats(clock)
    passes = Passes(lambda: 60, beats)
    lease = take(queue, KEY)
    with passes.running(lease):
        clock.now = 59
        passes.expire(queue)
        assert beats.check() == ""
        lease.check()


def test_without_redis_one_stuck_pass_is_tried_at_a_time(queue, monkeypatch):
    """Each attempt may wait for its timeouts, and the thread that checks must not seem to hang."""
    clock, tries = Clock(), []

    def fail(lease, **_):
        tries.append(lease)
        raise QueueUnavailable("away")

    other = Key("claims", "d", "a/c", "v")
    queue.add([other])
    passes = Passes(lambda: 60, Heartbeats(clock))
    with passes.running(take(queue, KEY)), passes.running(take(queue, other)):
        clock.now = 61
        with monkeypatch.context() as patch:
            patch.setattr(queue, "release", fail)
            passes.expire(queue)
        assert len(tries) == 1


@pytest.mark.parametrize(("now", "is_given_back"), [(60.0, False), (60.5, True)])
def test_a_pass_may_use_its_whole_time(now, is_given_back):
    """After that its lease is released once and a failure is counted, because it may hang again."""
    clock, told = Clock(), []
    lease = SimpleNamespace(key=KEY, is_released=False)

    def release(one, **how):
        one.is_released = True
        told.append(how)

    passes = Passes(lambda: 60, Heartbeats(clock))
    with passes.running(lease):
        clock.now = now
        passes.expire(SimpleNamespace(release=release))
        passes.expire(SimpleNamespace(release=release))
    assert told == ([{"delay_seconds": 10.0, "count": True}] if is_given_back else [])


@pytest.mark.parametrize("timeout_seconds", [10, 600, 3600])
def test_a_driver_that_may_take_an_hour_for_a_call_is_not_stuck(timeout_seconds):
    """`--timeout=1h` is valid: such a reconcile must not lose its lease or end the process."""
    assert longest_pass(timeout_seconds) >= max(LONGEST_SECONDS, 2 * timeout_seconds)

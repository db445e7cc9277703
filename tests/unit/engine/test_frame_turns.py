"""A woken thread: which keys it takes, when it ends, and what happens to the leases."""

from __future__ import annotations

from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from tests.unit.engine.frame_world import LOOSE, NOT_BEGUN, WORK, World
from workers.engine import frame
from workers.engine.outcome import done, retry
from workers.errors import QueueUnavailable
from workers.queue.keys import Key

NEXT, LAST = Key("claims", "d", "a/next", "v"), Key("claims", "d", "b/last", "w")
PLACE = "d"


@pytest.fixture
def world():
    found = World()
    found.context.goes_on = lambda key: True
    return found


def worked_on(world):
    return [lease.key for _, lease in world.seen]


def test_a_thread_takes_keys_until_none_is_due(world):
    """Each key has its own, counted reconcile; only the first take answers a message."""
    world.run(done(), WORK, NEXT, LAST)
    assert worked_on(world) == [WORK, NEXT, LAST]
    assert [is_woken for _, _, is_woken in world.queue.asked] == [True, False, False, False]
    assert world.counted("workqueue_adds_total", name="work-queue") == 3
    assert world.counted("workqueue_queue_duration_seconds_sum", name="work-queue") == 9.0


def test_each_pass_is_shown_with_its_outcome(world):
    outcome = retry("not yet")
    world.run(outcome, WORK, NEXT)
    assert world.shown == [("t", WORK, [outcome]), ("t", NEXT, [outcome])]


def test_a_turn_ends_so_that_other_lists_have_theirs(world, monkeypatch):
    """SEC-4: a driver with endless work does not keep a thread to itself."""
    times = iter([0.0, 0.1, frame.TURN_SECONDS])
    monkeypatch.setattr(frame, "time", SimpleNamespace(monotonic=lambda: next(times)))
    world.run(done(), WORK, NEXT, LAST)
    assert worked_on(world) == [WORK, NEXT]


def test_a_thread_ends_when_its_process_wants_no_more_such_keys(world):
    """The driver has no slot left, or the worker is stopping."""
    world.context.goes_on = lambda key: key == WORK
    world.run(done(), WORK, NEXT, LAST)
    assert worked_on(world) == [WORK, NEXT]


def test_a_busy_lock_is_no_end(world):
    """The key waits for its lock in Redis, and the thread takes the next key."""
    world.queue.busy = True
    assert world.run(done(), WORK, NEXT) == []
    assert worked_on(world) == []
    assert len(world.queue.asked) == 3


@pytest.mark.parametrize("place", ["elsewhere", "system-nothing", "d#unknown"])
def test_a_message_for_nobody_here_is_dropped(world, place):
    """Its driver is not served here, or its controller does not run here."""
    assert world.wake(done(), place) == []
    assert world.queue.asked == []


def test_a_list_without_driver_has_its_kind(world):
    world.run(done(), LOOSE)
    assert world.queue.asked[0] == ("", (LOOSE.kind,), True)


def test_g9_keys_that_others_must_work_on_are_not_taken(world):
    """Another program holds the Kubernetes Lease at once, or takes it between two reconciles."""
    world.context.may_work = lambda kind, driver: False
    assert world.run(done()) == []
    assert world.queue.asked == []
    world.context.may_work = lambda kind, driver: not world.seen
    world.run(done(), WORK, NEXT)
    assert worked_on(world) == [WORK]


def test_without_redis_a_thread_ends(world):
    """Queue maintenance wakes the list again later."""
    world.queue.refused["take"] = QueueUnavailable("away")
    assert world.run(done()) == []


@pytest.mark.parametrize("error", [QueueUnavailable("away"), ZeroDivisionError()])
def test_g5_a_key_that_could_not_be_locked_has_not_failed(world, error):
    world.queue.refused["enter"] = error
    assert world.run(done()) == [NOT_BEGUN]
    labels = {"kind": "claims", "driver_name": "d"}
    counted = world.counted("csi_fleet_unexpected_errors_total", **labels)
    assert counted == isinstance(error, ZeroDivisionError)


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, OSError])
@pytest.mark.parametrize("place", ["shown", "locks", "metrics", "running", "pass"])
def test_whatever_fails_around_a_pass_leaves_no_lease(world, monkeypatch, place, error):
    """Otherwise the heartbeat would renew the lease forever."""

    def fail(*_, **__):
        raise error("ours")

    @contextmanager
    def broken(_name):
        yield
        raise error("ours")

    outcome = done()
    if place == "shown":
        world.context.shown = fail
    elif place == "locks":
        world.locks = fail
    elif place == "metrics":
        monkeypatch.setattr(world.context.metrics.work_adds, "labels", fail)
    elif place == "running":
        monkeypatch.setattr(world.context.running, "work", broken)
    else:
        outcome = error("ours")
    is_caught = place in {"locks", "pass"} and error is OSError
    if is_caught:
        world.run(outcome)
    else:
        with pytest.raises(error):
            world.run(outcome)
    assert len(world.queue.ended) == 1 or place == "running"
    assert world.context.seats.taken("d") == 0

"""What a worker process reports about its Leases, when, and how it stops (F-018, F-022, F-024)."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest

from tests.support.leases import (
    LANES,
    ONE,
    SETTINGS,
    Clock,
    FakeFellows,
    FakeLanes,
    FakeLeases,
    us,
)
from tests.support.waiting import wait_until
from workers.engine import leadership as module
from workers.engine.leadership import Candidate, Leadership, QueueLanes
from workers.observability.metrics import Metrics


@pytest.fixture
def leases():
    return FakeLeases()


@pytest.fixture
def clock():
    return Clock()


class Fellows(FakeFellows):
    """Records which worker reports that it works, and for how long."""

    def __init__(self):
        super().__init__()
        self.told = []
        self.asked = []

    def works(self, lease, worker, seconds):
        self.told.append((lease, worker, seconds))

    def is_last(self, lease, worker):
        self.asked.append(lease)
        return True


def make(leases, clock, **options):
    lanes, fellows = options.pop("lanes", FakeLanes()), options.pop("fellows", FakeFellows())
    return Leadership(leases, SETTINGS, us(), lanes, fellows=fellows, clock=clock, **options)


def test_a_stranger_s_lease_pauses_lanes_in_the_queue():
    """M-020: the pause has a kind of its own, so an operator's pause stays separate."""
    told = []
    queue = SimpleNamespace(
        pause=lambda *what, **how: told.append(("pause", *what, how)),
        resume=lambda *what, **how: told.append(("resume", *what, how)),
    )
    lanes = QueueLanes(queue)
    lanes.pause(["a|d", "b|d"], "why", 15)
    lanes.resume(["a|d"])
    assert told == [
        ("pause", "a|d", "why", {"seconds": 15, "kind": "lease"}),
        ("pause", "b|d", "why", {"seconds": 15, "kind": "lease"}),
        ("resume", "a|d", {"kind": "lease"}),
    ]


def test_a_lease_that_is_not_known_is_told_at_each_look(leases, clock):
    """`explain` shows it where no other reason is known; a paused queue would stop the peers."""
    told = []
    leadership = make(leases, clock, on_trouble=told.append)
    leases.is_away = True
    for _ in range(2):
        leadership.step(ONE)
    assert len(told) == 2
    assert told[0].startswith(f"Lease {ONE[0].lease} could not be read, so ")
    leases.is_away = False
    clock.now += 60
    leadership.step(ONE)
    assert len(told) == 2


def test_f024_the_gauge_says_who_is_master(leases, clock):
    """The gauge is 1 while this process holds the Lease and 0 while another one does."""
    metrics = Metrics()
    kept = make(leases, clock, metrics=metrics)
    gauge = metrics.leader_status.labels("d")._value
    kept.step(ONE)
    assert gauge.get() == 1
    leases.foreign("go-host", "t1")
    kept.step(ONE)
    assert gauge.get() == 0


def test_f022_who_lost_the_lease_is_healthy(leases, clock):
    """Only a holder that does not renew is overdue; a standby has nothing to renew."""
    kept = make(leases, clock)
    kept.step(ONE)
    leases.foreign("go-host", "t1")
    kept.step(ONE)
    clock.now += 100
    assert kept.check() == ""


def test_f022_a_renewal_that_did_not_reach_the_api_server_is_none(leases, clock):
    """It is still allowed to work, and the time since the last renewal keeps counting."""
    kept = make(leases, clock)
    kept.step(ONE)
    leases.is_away = True
    clock.now += 9
    kept.step(ONE)
    clock.now += 27
    assert kept.check() != ""


def test_lanes_run_again_each_time_the_lease_comes_back(leases, clock):
    """Queues that are paused a second time are resumed a second time."""
    lanes = FakeLanes()
    kept = make(leases, clock, lanes=lanes)
    for number in range(2):
        leases.foreign("go-host", f"t{number}")
        kept.step(ONE)
        leases.foreign("", f"free{number}")
        kept.step(ONE)
    assert lanes.calls == [("pause", *LANES), ("resume", *LANES)] * 2


def test_a_pause_outlasts_the_next_look_and_names_the_holder(leases, clock):
    """It lasts three periods, so it expires on its own once no worker renews it."""
    told = []
    lanes = SimpleNamespace(pause=lambda lanes, *more: told.append(more), resume=None)
    leases.foreign("go-host", "t1")
    make(leases, clock, lanes=lanes).step(ONE)
    assert told == [("Lease held by go-host", 3 * SETTINGS.retry_period_seconds)]


def test_fellows_hear_for_how_long_a_process_may_work(leases, clock):
    """The time ends with what the renewal allows, counted from now."""
    fellows = Fellows()
    kept = make(leases, clock, fellows=fellows)
    kept.step(ONE)
    assert fellows.told == [("d", "1", SETTINGS.renew_deadline_seconds)]


def test_a_stranger_s_lease_leaves_no_tickets_to_fellows(leases, clock):
    """The queues are paused for all workers, so there is no peer to leave them to."""
    changes = []
    kept = make(leases, clock, on_change=lambda one, is_back: changes.append(is_back))
    leases.foreign("go-host", "t1")
    kept.step(ONE)
    kept.step(ONE)
    assert changes == [False]


class Hanging(FakeLeases):
    """Reads and updates wait for `goes`; `asked` lists the Leases that were read."""

    def __init__(self):
        super().__init__()
        self.goes, self.asked = threading.Event(), []

    def get(self, resource, name, *, namespace=""):
        self.asked.append(name)
        self.goes.wait(30)
        return super().get(resource, name, namespace=namespace)

    def update(self, resource, item):
        self.goes.wait(30)
        return super().update(resource, item)


def settled(kept):
    """Return the only Lease once its step and its report have ended."""
    (one,) = kept._all()
    one.stepping.result(30)
    wait_until(lambda: one.telling is not None and one.telling.done(), 30, "it was told")
    return one


def test_a_lease_that_is_due_at_this_moment_is_looked_after(clock):
    """A Lease is due from that moment on; a hanging request does not make the rounds faster."""
    leases = Hanging()
    leases.goes.set()
    kept = make(leases, clock)
    try:
        kept._round(ONE)
        one = settled(kept)
        first = one.stepping
        leases.goes.clear()
        clock.now = one.due
        assert kept._round(ONE) == 5
        assert one.stepping is not first
        second = one.stepping
        assert kept._round(ONE) == 5, "it hangs"
        assert one.stepping is second, "not asked twice at once"
    finally:
        leases.goes.set()
        kept.stop()


def test_redis_is_told_by_one_thread_at_a_time(leases, clock):
    """While Redis hangs, the Lease is renewed and no second thread waits for Redis."""
    goes, told = threading.Event(), []

    class Slow(FakeLanes):
        def resume(self, lanes):
            told.append(lanes)
            goes.wait(30)

    kept = make(leases, clock, lanes=Slow())
    try:
        one = kept._of(ONE[0])
        kept._step_alone(one)
        wait_until(lambda: told, 30, "the first one tells")
        waits = one.telling
        clock.now += 5
        kept._step_alone(one)
        assert one.telling is waits
    finally:
        goes.set()
        kept.stop()


def test_a_step_that_ended_wakes_the_round(leases, clock):
    """A peer's next check may be due before the next round."""
    woken = []
    kept = make(leases, clock)
    one = kept._of(ONE[0])
    kept._step_alone(one)
    kept._loop = SimpleNamespace(wake=lambda: woken.append(1), stop=lambda: None)
    kept._step_alone(one)
    assert woken == [1]
    kept.stop()


def test_a_step_that_outlives_the_stop_tells_nobody(leases, clock):
    """Its thread pool already accepts no work, and the step must not fail because of that."""
    kept = make(leases, clock)
    one = kept._of(ONE[0])
    kept.stop()
    kept._step_alone(one)
    assert one.telling is None


def test_f018_a_stop_waits_for_what_runs_and_begins_nothing(clock, monkeypatch):
    """The Lease is released after the last request about it; queued requests are dropped."""
    monkeypatch.setattr(module, "_THREADS", 1)
    leases, fellows = Hanging(), Fellows()
    kept = make(leases, clock, fellows=fellows)
    kept._round([*ONE, Candidate("e", "e", ("claims",))])
    wait_until(lambda: leases.asked, 30, "the first one is asked for")
    stopping = threading.Thread(target=kept.stop, daemon=True)
    stopping.start()
    wait_until(lambda: kept._pool._shutdown, 30, "it stops")
    stopping.join(0.1)
    assert stopping.is_alive()
    assert fellows.asked == []
    leases.goes.set()
    stopping.join(30)
    assert not stopping.is_alive()
    assert fellows.asked == ["d", "e"]
    assert "e" not in leases.asked


def test_after_a_stop_nobody_goes_round(leases, clock):
    """Otherwise the Lease that was just released would be taken again."""
    kept = make(leases, clock)
    kept.start(lambda: ONE)
    loop = kept._loop
    wait_until(lambda: kept.may_work("claims", "d"), 30, "it is held")
    kept.stop()
    wait_until(lambda: not loop.is_alive, 30, "its thread ended")
    with pytest.raises(RuntimeError):
        kept._pool.submit(print)

"""Workers of one Redis whose name changes, of several Redis, and of one that does not answer.

A healthy worker keeps working, and none pauses a peer for longer than the new name takes to arrive.
"""

from __future__ import annotations

import threading
from dataclasses import replace
from types import SimpleNamespace

import pytest

from tests.support.leases import (
    LANES,
    ONE,
    SETTINGS,
    Clock,
    FakeFellows,
    FakeLanes,
    LeasesByName,
)
from tests.support.waiting import wait_until
from workers.engine.election import Standing
from workers.engine.leadership import Candidate, Leadership
from workers.engine.leasename import LeaseIdentity
from workers.errors import QueueUnavailable

TWO = [Candidate("d1", "d1", ("claims",)), Candidate("d2", "d2", ("claims",))]
LONG = replace(
    SETTINGS, lease_duration_seconds=137, renew_deadline_seconds=107, retry_period_seconds=26
)


class TimedLanes:
    """Pauses as in Redis: each expires at its own time."""

    def __init__(self, clock):
        self.clock, self.until = clock, {}

    def pause(self, lanes, reason, seconds):
        self.until |= dict.fromkeys(lanes, self.clock() + seconds)

    def resume(self, lanes):
        for one in lanes:
            self.until.pop(one, None)

    def is_paused(self, lane):
        return self.until.get(lane, 0) > self.clock()


class World:
    """One API server; Redis and the driver queues belong to the worker."""

    def __init__(self, settings=SETTINGS):
        self.clock, self.api, self.settings = Clock(), LeasesByName(), settings
        self.lanes, self.redis = TimedLanes(self.clock), FakeFellows()

    def worker(self, name, *, redis=None, lanes=None):
        return Leadership(
            self.api,
            self.settings,
            LeaseIdentity("host", name),
            lanes or self.lanes,
            fellows=redis or self.redis,
            clock=self.clock,
        )

    def lose_data(self):
        self.redis.wipe()
        self.lanes.until.clear()

    def run(self, seconds, *workers, each=lambda: None):
        """Run the loops of these workers for `seconds`."""
        end = self.clock.now + seconds
        while self.clock.now < end:
            self.clock.now += 0.1
            for worker in workers:
                for one in worker._all():
                    if one.due <= self.clock.now:
                        worker._step(one)
                        try:
                            worker._tell(one)
                        except QueueUnavailable:
                            continue
            each()


class Deaf(FakeFellows):
    """A Redis that does not answer."""

    def installation(self, known):
        raise QueueUnavailable("no answer")


@pytest.fixture(autouse=True)
def _jitter(monkeypatch):
    monkeypatch.setattr("random.random", lambda: 0.5)


@pytest.mark.parametrize("is_same", [True, False], ids=["its own Redis, renamed", "another Redis"])
def test_a_holder_without_redis_makes_room(is_same):
    """It reaches the API server, so it could renew forever without doing any work."""
    world = World()
    old = world.worker("w1")
    old.step(ONE)
    old._fellows = Deaf()
    world.run(50, old)
    assert old.may_work("claims", "d"), "what it began may end"
    world.lose_data()
    lanes = world.lanes if is_same else TimedLanes(world.clock)
    new = world.worker("w2", redis=world.redis if is_same else FakeFellows("b"), lanes=lanes)
    new.step(ONE)
    both = []
    world.run(
        60,
        old,
        new,
        each=lambda: both.append(old.may_work("claims", "d") and new.may_work("claims", "d")),
    )
    assert new.may_work("claims", "d")
    assert not lanes.is_paused(LANES[0])
    assert not any(both)


@pytest.mark.parametrize("settings", [SETTINGS, LONG], ids=["default", "long"])
@pytest.mark.parametrize("lives", [True, False], ids=["and lives", "and dies"])
@pytest.mark.parametrize("count", [1, 2])
def test_a_new_worker_stops_no_old_one_after_a_loss_of_data(settings, lives, count):
    """This holds at every moment between two election steps of the old workers."""
    period = settings.retry_period_seconds
    for phase in range(12):
        world = World(settings)
        old = [world.worker(f"w{number}") for number in range(count)]
        for one in old:
            one.step(ONE)
        world.run(4 * period + phase * period / 12, *old)
        world.lose_data()
        new = world.worker("new")
        new.step(ONE)
        paused, at_work = [], []

        def look(world=world, old=old, paused=paused, at_work=at_work):
            paused.append(world.lanes.is_paused(LANES[0]))
            at_work.append(all(one.may_work("claims", "d") for one in old))

        world.run(8 * period, *old, *[new] * lives, each=look)
        assert not any(paused), phase
        assert all(at_work), phase
        assert new.may_work("claims", "d") is lives


def test_the_second_lease_is_no_stranger_s_either():
    """All Leases are checked in parallel, and the first report to Redis returns the new name."""
    world = World()
    waits, new = world.worker("w1"), world.worker("w2")
    for one in TWO:
        world.api.of(one.lease).foreign("go", "t1")
        world.api.of(one.lease).lease["metadata"]["name"] = one.lease
    waits.step(TWO)
    world.clock.now += 60
    world.lose_data()
    for one in TWO:
        world.api.of(one.lease).foreign("", "t2")
        world.api.of(one.lease).lease["metadata"]["name"] = one.lease
    new.step(TWO)
    looked = [waits._step(one) for one in waits._all()]
    for one in looked:
        waits._tell(one)
    assert not any(world.lanes.is_paused(f"claims|{one.queue_name}") for one in TWO)
    assert {one.due for one in looked} == {float("-inf")}
    world.run(0.2, waits)
    assert all(waits.may_work("claims", one.queue_name) for one in TWO)


@pytest.mark.parametrize("hears", [True, False], ids=["Redis answers", "Redis hangs"])
def test_an_unknown_csi_fleet_is_in_doubt_for_a_look(hears):
    """Calls continue while Redis is asked; the second check decides, whatever Redis answers."""
    world = World()
    one, other = world.worker("w1"), world.worker("w2", redis=FakeFellows("b"), lanes=FakeLanes())
    one.step(ONE)
    (kept,) = one._all()
    world.api.of("d").foreign("", "t1")  # a peer that took itself for the last one has released it
    other.step(ONE)
    one._fellows = world.redis if hears else Deaf()
    world.clock.now += 5
    one._step(kept)
    assert kept.election.standing.is_ours
    assert kept.election.is_in_doubt
    if hears:
        one._tell(kept)
        assert kept.due == float("-inf")
    one._step(kept)
    assert kept.election.standing is Standing.FOREIGN
    assert not one.may_work("claims", "d")


def test_a_new_name_wakes_the_round():
    """Otherwise the Lease would keep the old name for another period."""
    world, woken = World(), []
    worker = world.worker("w1")
    worker.step(ONE)
    worker._loop = SimpleNamespace(wake=lambda: woken.append(1))
    (one,) = worker._all()
    world.clock.now += 2
    worker._tell(one)
    assert woken == []
    world.redis.name = "b"
    worker._tell(one)
    assert woken == [1]
    assert one.due == float("-inf")
    worker._step(one)
    assert "_csi-fleet-b-" in world.api.of("d").lease["spec"]["holderIdentity"]


def test_a_stranger_with_another_redis_is_waited_for_and_said_to_be_one():
    """Its queues are paused too, once the unknown name can no longer belong to a peer."""
    world = World()
    other = world.worker("w1", redis=FakeFellows("b"), lanes=FakeLanes())
    other.step(ONE)
    one = world.worker("w2")
    one.step(ONE)
    assert not world.lanes.is_paused(LANES[0])
    world.run(2 * SETTINGS.retry_period_seconds + 6, one, other)
    assert world.lanes.is_paused(LANES[0])
    assert not one.may_work("claims", "d")


@pytest.mark.parametrize("settings", [SETTINGS, LONG], ids=["default", "long"])
@pytest.mark.parametrize("why", ["no driver was there", "Redis was away", "it was suspended"])
def test_after_a_long_silence_work_begins_at_once(settings, why):
    """A long silence alone is no sign that this process cannot work now."""
    world = World(settings)
    worker = world.worker("w1")
    silence = 5 * settings.lease_duration_seconds
    if why == "no driver was there":
        worker.step([])
        world.clock.now += silence
        worker._of(ONE[0])
    else:
        worker.step(ONE)
        if why == "Redis was away":
            world.redis, hears = Deaf(), world.redis
            worker._fellows = world.redis
            world.run(silence, worker)
            worker._fellows = hears
            (one,) = worker._all()
            worker._tell(one)
        else:
            world.clock.now += silence
    world.run(0.5, worker)
    assert worker.may_work("claims", "d")


def test_names_that_change_all_the_time_cost_the_api_server_nothing():
    """A client that can write to Redis must not make all workers send requests in a loop."""
    world, asked = World(), []
    worker = world.worker("w1")
    worker.step(ONE)
    lease = world.api.of("d")
    update = lease.update
    lease.update = lambda *args: asked.append(1) or update(*args)

    def rename():
        world.redis.name = f"{world.clock.now}"
        worker._tell(worker._all()[0])

    world.run(60, worker, each=rename)
    assert len(asked) <= 60 / 5 + 2
    assert worker.may_work("claims", "d")


def test_an_unexpected_error_is_no_reason_to_look_at_once(caplog):
    """The other Leases must still be released when the process ends."""
    world = World()
    worker = world.worker("w1")
    worker.step(TWO)
    broken, good = worker._all()

    def fail(*_args, **_named):
        raise RuntimeError("planted")

    broken.election.leases = SimpleNamespace(get=fail, update=fail, create=fail)
    world.clock.now += 5
    worker._step_alone(broken)
    assert broken.due > world.clock.now
    worker.stop()
    assert caplog.messages.count("unexpected error while renewing the Lease") == 1
    assert world.api.of(good.candidate.lease).lease["spec"]["holderIdentity"] == ""


@pytest.mark.parametrize("others", [0, 20], ids=["ours alone", "others' too"])
def test_leases_are_renewed_while_redis_hangs(others):
    """A report that waits for Redis uses no thread of the renewals, however many Leases exist."""
    world = World()
    many = [Candidate(f"d{number}", f"d{number}", ("claims",)) for number in range(20)]
    theirs = [Candidate(f"t{number}", f"t{number}", ("claims",)) for number in range(others)]
    world.worker("w2", redis=FakeFellows("b"), lanes=FakeLanes()).step(theirs)
    worker, hangs = world.worker("w1"), threading.Event()
    worker.step(many + theirs)

    def hang(_known):
        hangs.wait(30)
        raise QueueUnavailable("no answer")

    world.redis.installation = hang
    try:
        for _ in range(4):
            world.clock.now += SETTINGS.retry_period_seconds
            worker._round(many + theirs)
            kept = [one for one in worker._all() if one.candidate in many]
            done = lambda kept=kept: all(one.stepping.done() for one in kept)  # noqa: E731
            wait_until(done, 20, "each Lease was renewed")
        assert all(worker.may_work("claims", one.queue_name) for one in many)
    finally:
        hangs.set()
        worker.stop()


def test_who_hears_late_lets_the_lanes_go_at_once():
    """In between, the new worker took it for another installation, paused its queues, and died."""
    world = World()
    old = world.worker("w1")
    old.step(ONE)
    world.run(20, old)
    world.lose_data()
    hears, old._fellows = old._fellows, Deaf()
    new = world.worker("w2")
    new.step(ONE)
    world.run(15, old, new)
    assert world.lanes.is_paused(LANES[0])
    old._fellows = hears
    world.run(SETTINGS.retry_period_seconds + 0.2, old)
    assert not world.lanes.is_paused(LANES[0])
    assert old.may_work("claims", "d")


def test_tickets_are_left_to_others_until_a_stranger_is_known_as_one():
    """It may be a peer, which still fetches messages; for another program the queues are paused."""
    world, backs = World(), []
    other = world.worker("w1", redis=FakeFellows("b"), lanes=FakeLanes())
    other.step(ONE)
    one = world.worker("w2")
    one._on_change = lambda _, is_back: backs.append(is_back)
    one.step(ONE)
    world.run(2 * SETTINGS.retry_period_seconds + 6, one, other, each=one.look)
    assert backs == [True, False]

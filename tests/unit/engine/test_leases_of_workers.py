"""The effects of a Lease's holder on one worker process and on all of them (COR-5, COR-6)."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest

from tests.support.leases import (
    LANES,
    ONE,
    SETTINGS,
    Clock,
    FakeFellows,
    FakeLanes,
    FakeLeases,
    LeasesByName,
    us,
)
from tests.support.waiting import wait_until
from workers.engine.leadership import Candidate, Leadership
from workers.engine.leasename import LeaseIdentity
from workers.errors import QueueUnavailable
from workers.kube.errors import Unreachable


@pytest.fixture
def leases():
    return FakeLeases()


@pytest.fixture
def clock():
    return Clock()


class World:
    """Two workers of csi-fleet with one Redis; each has its own connection to the API server."""

    def __init__(self, leases, clock):
        self.leases, self.clock = leases, clock
        self.lanes, self.fellows, self.changes = FakeLanes(), FakeFellows(), []
        self.ways = {}

    def worker(self, name):
        way = self.ways[name] = Way(self.leases)
        return Leadership(
            way,
            SETTINGS,
            LeaseIdentity("host", name),
            self.lanes,
            fellows=self.fellows,
            on_change=lambda one, is_back: self.changes.append((name, one.lease, is_back)),
            clock=self.clock,
        )


class Way:
    """A connection to the shared Lease that fails while it is cut."""

    def __init__(self, leases):
        self.leases, self.is_cut = leases, False

    def __getattr__(self, name):
        if self.is_cut:
            raise Unreachable("no answer")
        return getattr(self.leases, name)


def test_one_worker_that_is_cut_off_stops_nobody_else(leases, clock):
    """COR-5: a process that knows no standing pauses no queue; its peer gets the messages."""
    world = World(leases, clock)
    well, cut = world.worker("w1"), world.worker("w2")
    well.step(ONE)
    cut.step(ONE)
    world.ways["w2"].is_cut = True
    for _ in range(60):
        clock.now += 2
        well.step(ONE)
        cut.step(ONE)
        assert well.may_work("claims", "d")
    assert not cut.may_work("claims", "d")
    assert [call for call in world.lanes.calls if call[0] == "pause"] == []
    assert world.changes[-1] == ("w2", "d", True)
    world.ways["w2"].is_cut = False
    cut.step(ONE)
    assert world.changes[-1] == ("w2", "d", False)


def test_a_holder_that_stops_while_a_fellow_works_keeps_strangers_waiting(leases, clock):
    """COR-6: only the last peer releases the Lease."""
    world = World(leases, clock)
    first, second = world.worker("w1"), world.worker("w2")
    first.step(ONE)
    second.step(ONE)
    first.step(ONE)
    second.stop()
    assert leases.lease["spec"]["holderIdentity"] == str(us("w2"))
    assert first.may_work("claims", "d")
    first.stop()
    assert leases.lease["spec"]["holderIdentity"] == ""


def test_nobody_gives_back_what_it_cannot_know_to_be_unused(leases, clock):
    """COR-6: without Redis the Lease is left to expire."""
    world = World(leases, clock)
    leadership = world.worker("w1")
    leadership.step(ONE)

    def away(*_):
        raise QueueUnavailable("no answer")

    world.fellows.is_last = away
    leadership.stop()
    assert leases.lease["spec"]["holderIdentity"] == str(us("w1"))


def test_each_controller_has_its_own_lease(clock):
    """While the Go attacher holds its Lease, provisioning continues and attaching waits."""
    lanes = FakeLanes()
    attacher = Candidate("d", "external-attacher-leader-d", ("attachments",))
    api = LeasesByName()
    api.of(attacher.lease).foreign("go-host", "t1")
    leadership = Leadership(api, SETTINGS, us(), lanes, fellows=FakeFellows(), clock=clock)
    leadership.step([*ONE, attacher])
    assert leadership.may_work("claims", "d")
    assert not leadership.may_work("attachments", "d")
    assert ("pause", "attachments|d") in lanes.calls
    assert ("pause", *LANES) not in lanes.calls


def test_a_hanging_request_holds_up_no_other_lease(leases):
    """Elections of many drivers run in parallel; a hanging request is not repeated meanwhile."""
    hangs, asked = threading.Event(), threading.Event()

    class Api:
        def get(self, resource, name, *, namespace=""):
            if name == "stuck":
                asked.set()
                hangs.wait(30)
                raise Unreachable("no answer")
            return leases.get(resource, name, namespace=namespace)

        create, update = leases.create, leases.update

    lanes = FakeLanes()
    leadership = Leadership(Api(), SETTINGS, us(), lanes, fellows=FakeFellows())
    both = [Candidate("x", "stuck", ("claims",)), *ONE]
    leadership.start(lambda: both)
    try:
        assert asked.wait(10)
        wait_until(lambda: leadership.may_work("claims", "d"), 10, "the other Lease is held")
        wait_until(lambda: ("resume", *LANES) in lanes.calls, 10, "its lanes run")
        assert not leadership.may_work("claims", "x")
    finally:
        hangs.set()
        leadership.stop()


def test_each_lease_is_looked_after_when_it_is_due_and_waited_for_no_oftener(leases, clock):
    """A round ends when the next Lease is due; a hanging request does not shorten the rounds."""
    hangs = threading.Event()

    class Api:
        def get(self, resource, name, *, namespace=""):
            hangs.wait(30)
            return leases.get(resource, name, namespace=namespace)

        create, update = leases.create, leases.update

    leadership = Leadership(Api(), SETTINGS, us(), FakeLanes(), fellows=FakeFellows(), clock=clock)
    period = SETTINGS.retry_period_seconds
    try:
        assert [leadership._round(ONE) for _ in range(2)] == [period, period], "it hangs"
        hangs.set()
        (one,) = leadership._all()
        one.stepping.result(30)
        assert one.due == clock.now + period
        clock.now = one.due - period / 4
        assert leadership._round(ONE) == pytest.approx(period / 4)
    finally:
        hangs.set()
        leadership.stop()


def test_what_may_not_be_worked_on_any_more_is_told_when_its_time_is_over(leases):
    """The permission ends by the clock, even while the request that should renew it still hangs."""
    settings = replace(
        SETTINGS,
        lease_duration_seconds=0.4,
        renew_deadline_seconds=0.2,
        retry_period_seconds=0.05,
    )
    hangs, changes = threading.Event(), []
    leadership = Leadership(
        leases,
        settings,
        us(),
        FakeLanes(),
        fellows=FakeFellows(),
        on_change=lambda _, is_back: changes.append(is_back),
    )
    leadership.start(lambda: ONE)
    try:
        wait_until(lambda: changes == [False], 10, "it is held")

        def hang(*_args, **_named):
            hangs.wait(30)
            raise Unreachable("no answer")

        leases.update = leases.get = hang
        wait_until(lambda: changes[-1:] == [True], 10, "the process stands back")
        assert not leadership.may_work("claims", "d")
    finally:
        hangs.set()
        leadership.stop()


def test_workers_of_another_redis_are_strangers(leases, clock):
    """A replica with its own Redis cannot see the work of these workers, so it waits."""
    ours, theirs = World(leases, clock), World(leases, clock)
    theirs.fellows = FakeFellows("b")
    one, two, other = ours.worker("w1"), ours.worker("w2"), theirs.worker("w3")
    for worker in (one, two, other):
        worker.step(ONE)
    for _ in range(20):
        clock.now += 2
        for worker in (one, two, other):
            worker.step(ONE)
        assert one.may_work("claims", "d")
        assert two.may_work("claims", "d")
        assert not other.may_work("claims", "d")
    assert ("pause", *LANES) not in ours.lanes.calls
    one.stop()
    two.stop()
    other.step(ONE)
    assert other.may_work("claims", "d")
    assert ("resume", *LANES) in theirs.lanes.calls


def goes_round(worker):
    """Do what the worker's loop does when the Lease is due."""
    (one,) = worker._all()
    worker._tell(worker._step(one))


@pytest.mark.parametrize("is_first", ["old", "new"])
def test_after_a_loss_of_data_all_workers_of_a_redis_are_fellows_again(leases, clock, is_first):
    """This holds whether an old worker, which knew the name, or a new one is first."""
    world = World(leases, clock)
    old = [world.worker("w1"), world.worker("w2")]
    for worker in old:
        worker.step(ONE)
    world.fellows.wipe()
    new = world.worker("w3")
    workers = [*old, new] if is_first == "old" else [new, *old]
    if is_first == "old":
        goes_round(old[0])
    new.step(ONE)
    for _ in range(4):
        clock.now += 2
        for worker in workers:
            goes_round(worker)
        assert all(one.may_work("claims", "d") for one in old), "nothing of theirs is broken off"
    assert new.may_work("claims", "d")
    assert world.lanes.calls[-1] == ("resume", *LANES)
    calls = len(world.lanes.calls)
    clock.now += 2
    for worker in workers:
        goes_round(worker)
    assert world.lanes.calls[calls:] == []


def test_who_waits_for_a_stranger_hears_the_new_name_of_its_redis(leases, clock):
    """Otherwise it would keep pausing the queues of its peers after they acquired the Lease."""
    world = World(leases, clock)
    waits, new = world.worker("w1"), world.worker("w2")
    leases.foreign("go-host", "t1")
    waits.step(ONE)
    world.fellows.wipe()
    new.step(ONE)
    leases.foreign("", "t2")
    new.step(ONE)
    for _ in range(2):
        clock.now += 2
        goes_round(waits)
    assert waits.may_work("claims", "d")

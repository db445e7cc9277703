"""The Lease of a drop-in replacement, on a clock of the test's own."""

from __future__ import annotations

from copy import deepcopy

import pytest

from workers.config.settings import LeaderSettings
from workers.engine.leadership import ANN_HOLDER, Election, Leadership, Standing
from workers.engine.leasename import leader_identity, lease_name
from workers.kube.errors import AlreadyExistsError, ConflictError, NotFoundError, Unreachable
from workers.observability.metrics import Metrics

SETTINGS = LeaderSettings(enabled=True, namespace="ns", labels=(("team", "storage"),))


class FakeLeases:
    """One Lease with optimistic locking; `is_away` makes every call fail."""

    def __init__(self):
        self.lease = None
        self.is_away = False
        self.version = 0

    def get(self, resource, name, *, namespace=""):
        self._reach()
        if self.lease is None:
            raise NotFoundError(404, "NotFound", f'leases "{name}" not found')
        return deepcopy(self.lease)

    def create(self, resource, item):
        self._reach()
        if self.lease is not None:
            raise AlreadyExistsError(409, "AlreadyExists", "exists")
        return self.put(item)

    def update(self, resource, item):
        self._reach()
        if item["metadata"].get("resourceVersion") != self.lease["metadata"]["resourceVersion"]:
            raise ConflictError(409, "Conflict", "modified")
        return self.put(item)

    def put(self, item):
        self.version += 1
        metadata = {**item["metadata"], "resourceVersion": str(self.version)}
        self.lease = {**deepcopy(item), "metadata": metadata}
        return deepcopy(self.lease)

    def foreign(self, holder, renewed):
        """What client-go writes: the spec anew, metadata as it was."""
        metadata = self.lease["metadata"] if self.lease else {"name": "d", "namespace": "ns"}
        spec = {"holderIdentity": holder, "leaseDurationSeconds": 15, "renewTime": renewed}
        self.put({"metadata": metadata, "spec": spec})

    def _reach(self):
        if self.is_away:
            raise Unreachable("no answer")


class Clock:
    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


class FakeLanes:
    def __init__(self):
        self.calls = []

    def pause(self, driver, reason, seconds):
        self.calls.append(("pause", driver))

    def resume(self, driver):
        self.calls.append(("resume", driver))


@pytest.fixture
def leases():
    return FakeLeases()


@pytest.fixture
def clock():
    return Clock()


def elect(leases, clock, identity="host_1"):
    return Election(leases, "d", identity, SETTINGS, clock=clock, now=lambda: clock.now)


def test_c142_name_and_identity():
    assert lease_name("a/b.c_d-") == "a-b-c-d-X"
    assert leader_identity("my.host", "u1") == "my-host_u1"


def test_a_free_lease_is_taken_and_renewed(leases, clock):
    """F-020: holder, duration and labels as a tool that reads Leases expects them."""
    election = elect(leases, clock)
    assert election.step() is Standing.HELD
    first = leases.lease["spec"]["renewTime"]
    assert leases.lease["spec"]["holderIdentity"] == "host_1"
    assert leases.lease["spec"]["leaseDurationSeconds"] == 15
    assert leases.lease["metadata"]["labels"] == {"team": "storage"}
    clock.now += 5
    assert election.step() is Standing.HELD
    assert leases.lease["spec"]["renewTime"] > first
    assert leases.lease["spec"]["leaseTransitions"] == 0


def test_f024_a_holder_renews_unread_and_the_slow_path_is_counted(leases, clock):
    """`leader_election_slowpath_total` counts renewals that had to read the Lease first."""
    metrics = Metrics()
    kept = Leadership(leases, SETTINGS, "host_1", FakeLanes(), metrics=metrics, clock=clock)
    counter = metrics.leader_slowpath.labels("d")._value
    reads = []
    real = leases.get
    leases.get = lambda *args, **named: reads.append(1) or real(*args, **named)
    kept.step([("d", "d")])
    for _ in range(3):
        clock.now += 5
        kept.step([("d", "d")])
    assert (len(reads), counter.get()) == (1, 0)
    leases.put(leases.lease)  # somebody touched it: our copy is stale
    kept.step([("d", "d")])
    assert (len(reads), counter.get()) == (2, 1)
    kept.step([("d", "d")])
    assert (len(reads), counter.get()) == (2, 1)
    assert leases.lease["spec"]["holderIdentity"] == "host_1"


def test_a_fellow_holds_it_and_everybody_works(leases, clock):
    """Our workers are active together; the second one writes nothing (F-021)."""
    elect(leases, clock).step()
    version = leases.version
    other = elect(leases, clock, "host_2")
    assert other.step() is Standing.FELLOW
    assert other.standing.may_work
    assert leases.version == version


def test_a_dead_fellow_is_followed(leases, clock):
    elect(leases, clock).step()
    other = elect(leases, clock, "host_2")
    other.step()
    clock.now += 16
    assert other.step() is Standing.HELD
    assert leases.lease["spec"]["leaseTransitions"] == 1


def test_a_csi_provisioner_is_waited_for(leases, clock):
    """M-020: while it renews, nothing is worked on; 15 s after its last renewal we take over."""
    leases.foreign("go-host", "t1")
    election = elect(leases, clock)
    assert election.step() is Standing.FOREIGN
    for number in range(5):
        clock.now += 5
        leases.foreign("go-host", f"t{number + 2}")
        assert election.step() is Standing.FOREIGN
    clock.now += 14
    assert election.step() is Standing.FOREIGN
    clock.now += 2
    assert election.step() is Standing.HELD
    assert leases.lease["metadata"]["annotations"][ANN_HOLDER] == "host_1"


def test_a_released_lease_is_taken_at_once(leases, clock):
    leases.foreign("", "t1")
    assert elect(leases, clock).step() is Standing.HELD


def test_an_old_annotation_does_not_make_a_stranger_ours(leases, clock):
    """Rolled back: csi-provisioner keeps our annotation and writes itself as holder."""
    elect(leases, clock).step()
    leases.foreign("go-host", "t9")
    assert elect(leases, clock, "host_2").step() is Standing.FOREIGN


def test_release_frees_it_only_if_it_is_held(leases, clock):
    """F-018: the next one need not wait."""
    election = elect(leases, clock)
    election.step()
    election.release()
    assert leases.lease["spec"]["holderIdentity"] == ""
    assert elect(leases, clock, "host_2").step() is Standing.HELD
    election.release()
    assert leases.lease["spec"]["holderIdentity"] == "host_2"


def test_an_unreachable_api_server_stops_work_after_the_renew_deadline(leases, clock):
    election = elect(leases, clock)
    election.step()
    leases.is_away = True
    clock.now += 9
    assert election.step() is Standing.HELD
    clock.now += 2
    assert election.step() is Standing.UNKNOWN
    leases.is_away = False
    assert election.step() is Standing.HELD


def test_two_start_at_once_and_the_slower_one_works_too(leases, clock):
    """The race for an absent Lease is looked at again at once, not a period later."""
    slow = elect(leases, clock, "host_2")
    create = leases.create

    def beaten(resource, item):
        leases.create = create
        elect(leases, clock).step()
        return create(resource, item)

    leases.create = beaten
    assert slow.step() is Standing.FELLOW


def test_lanes_follow_the_lease(leases, clock):
    """Paused at every step while a stranger holds it, so that a lost Redis pauses again."""
    lanes = FakeLanes()
    leadership = Leadership(leases, SETTINGS, "host_1", lanes, clock=clock)
    leases.foreign("go-host", "t1")
    leadership.step([("d", "d")])
    leadership.step([("d", "d")])
    assert lanes.calls == [("pause", "d"), ("pause", "d")]
    leases.foreign("", "t2")
    leadership.step([("d", "d")])
    leadership.step([("d", "d")])
    assert lanes.calls[2:] == [("resume", "d")]
    assert leadership.may_work("d")


def test_c143_health_complains_about_a_holder_that_does_not_renew(leases, clock):
    """F-022: lease duration + 20 s; a standby is healthy."""
    leadership = Leadership(leases, SETTINGS, "host_1", FakeLanes(), clock=clock)
    assert leadership.check() == ""
    leadership.step([("d", "d")])
    clock.now += 34
    assert leadership.check() == ""
    clock.now += 2
    assert leadership.check() == "failed election to renew leadership on lease d"
    leadership.stop()
    assert leases.lease["spec"]["holderIdentity"] == ""

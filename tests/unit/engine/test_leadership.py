"""The Kubernetes Lease of a drop-in replacement, with a clock that the test controls."""

from __future__ import annotations

import pytest

from tests.support.leases import (
    LANES,
    ONE,
    SETTINGS,
    Clock,
    FakeFellows,
    FakeLanes,
    FakeLeases,
    elect,
    look,
    us,
)
from workers.engine.election import Standing
from workers.engine.leadership import Leadership
from workers.engine.leasename import LeaseIdentity, lease_name
from workers.observability.metrics import Metrics


@pytest.fixture
def leases():
    return FakeLeases()


@pytest.fixture
def clock():
    return Clock()


def test_c142_name_and_identity():
    assert lease_name("a/b.c_d-") == "a-b-c-d-X"
    identity = LeaseIdentity("my.host", "u1")
    identity.join("a")
    assert str(identity) == "my-host_csi-fleet-a-u1"


def test_a_free_lease_is_taken_and_renewed(leases, clock):
    """F-020: holder, duration and labels are those that a tool that reads Leases expects."""
    election = elect(leases, clock)
    assert election.step() is Standing.HELD
    first = leases.lease["spec"]["renewTime"]
    assert leases.lease["spec"]["holderIdentity"] == str(us())
    assert leases.lease["spec"]["leaseDurationSeconds"] == 15
    assert leases.lease["metadata"]["labels"] == {"team": "storage"}
    clock.now += 5
    assert election.step() is Standing.HELD
    assert leases.lease["spec"]["renewTime"] > first
    assert leases.lease["spec"]["leaseTransitions"] == 0


def test_f024_a_holder_renews_unread_and_the_slow_path_is_counted(leases, clock):
    """`leader_election_slowpath_total` counts renewals that had to read the Lease first."""
    metrics = Metrics()
    kept = Leadership(
        leases,
        SETTINGS,
        us(),
        FakeLanes(),
        fellows=FakeFellows(),
        metrics=metrics,
        clock=clock,
    )
    counter = metrics.leader_slowpath.labels("d")._value
    reads = []
    real = leases.get
    leases.get = lambda *args, **named: reads.append(1) or real(*args, **named)
    kept.step(ONE)
    for _ in range(3):
        clock.now += 5
        kept.step(ONE)
    assert (len(reads), counter.get()) == (1, 0)
    leases.put(leases.lease)  # another client changed it, so the local copy is stale
    kept.step(ONE)
    assert (len(reads), counter.get()) == (2, 1)
    kept.step(ONE)
    assert (len(reads), counter.get()) == (2, 1)
    assert leases.lease["spec"]["holderIdentity"] == str(us())


@pytest.mark.parametrize(
    ("standing", "least", "most"),
    [
        pytest.param(Standing.HELD, 5, 5, id="ours: the retry period"),
        pytest.param(Standing.FOREIGN, 5, 6, id="a stranger's: with client-go's jitter"),
        pytest.param(Standing.FELLOW, 2.25, 2.7, id="a fellow's: in time to go on"),
        pytest.param(Standing.UNKNOWN, 2.25, 2.7, id="unknown: as soon"),
    ],
)
def test_when_a_lease_is_looked_at_again(leases, clock, monkeypatch, standing, least, most):
    """COR-6: where nothing is urgent, the API server gets no more requests than from client-go."""
    election = elect(leases, clock)
    election.standing = standing
    for share, pause in ((0.0, least), (1.0, most)):
        monkeypatch.setattr("random.random", lambda share=share: share)
        assert election.pause_seconds() == pytest.approx(pause)


def test_a_round_waits_for_what_comes_first(leases, clock):
    """It waits for the next due step, the end of the current permission, or a new Lease."""
    leadership = Leadership(leases, SETTINGS, us(), FakeLanes(), fellows=FakeFellows(), clock=clock)
    assert leadership._round([]) == 5
    leadership.step(ONE)
    clock.now += 2
    assert leadership._round(ONE) == 3
    leases.is_away = True
    clock.now += 5
    leadership.step(ONE)
    assert leadership._round(ONE) == 3


def test_a_newcomer_writes_itself_in_and_everybody_works(leases, clock):
    """F-021: csi-fleet's workers are active together; one that knows no renewal's age renews."""
    first, second = elect(leases, clock), elect(leases, clock, us("2"))
    first.step()
    assert look(second, clock) is Standing.HELD
    assert look(first, clock) is Standing.FELLOW
    assert first.may_work()
    assert second.may_work()


def test_a_fellow_writes_nothing_while_the_holder_renews(leases, clock):
    holder, other = elect(leases, clock), elect(leases, clock, us("2"))
    holder.step()
    other.step()
    held = other
    assert look(holder, clock) is Standing.FELLOW
    for _ in range(20):
        assert look(held, clock, 2.5) is Standing.HELD
        version = leases.version
        for _ in range(2):
            assert look(holder, clock, 1.25) is Standing.FELLOW
        assert holder.may_work()
        assert leases.version == version


def test_a_dead_holder_is_followed_before_its_lease_ends(leases, clock):
    """csi-fleet's work has no gap, and for csi-provisioner the Lease never expired."""
    dead, other = elect(leases, clock), elect(leases, clock, us("2"))
    other.step()
    dead.step()
    assert look(other, clock) is Standing.FELLOW
    taken_after = 0.0
    while other.standing is Standing.FELLOW:
        assert other.may_work()
        look(other, clock, 2.5)
        taken_after += 2.5
    assert other.standing is Standing.HELD
    assert taken_after < 13
    assert leases.lease["spec"]["holderIdentity"] == str(us("2"))


def test_a_fellow_stops_before_a_stranger_may_start(leases, clock):
    """COR-6: time counts from the last check without the renewal, not from the one that saw it."""
    holder, other = elect(leases, clock), elect(leases, clock, us("2"))
    other.step()
    clock.now += 1
    renewed_at = clock.now
    holder.step()
    assert look(other, clock, 2.5) is Standing.FELLOW
    leases.is_away = True
    while other.may_work():
        look(other, clock, 0.1)
    assert clock.now < renewed_at + SETTINGS.lease_duration_seconds - 1


def test_a_holder_counts_from_the_start_of_its_write(leases, clock):
    """COR-6: a slow answer does not extend the renewal."""
    election = elect(leases, clock)
    update = leases.update

    def slow(*args):
        clock.now += 4
        return update(*args)

    election.step()
    leases.update = slow
    began = clock.now = clock.now + 5
    assert election.step() is Standing.HELD
    assert election.valid_until == began + SETTINGS.renew_deadline_seconds


def test_a_csi_provisioner_is_waited_for(leases, clock):
    """M-020: while it renews, csi-fleet does no work; it takes over just after 15 s, not before."""
    leases.foreign("go-host", "t1")
    election = elect(leases, clock)
    assert election.step() is Standing.FOREIGN
    for number in range(5):
        clock.now += 5
        leases.foreign("go-host", f"t{number + 2}")
        assert election.step() is Standing.FOREIGN
    clock.now += 15
    assert election.step() is Standing.FOREIGN
    clock.now += 0.1
    assert election.step() is Standing.HELD
    spec = leases.lease["spec"]
    assert spec["holderIdentity"] == str(us())
    assert (spec["leaseTransitions"], spec["acquireTime"]) == (1, spec["renewTime"])


def test_a_released_lease_is_taken_at_once(leases, clock):
    leases.foreign("", "t1")
    assert elect(leases, clock).step() is Standing.HELD


def test_an_old_annotation_does_not_make_a_stranger_ours(leases, clock):
    """After a rollback csi-provisioner keeps csi-fleet's annotation and writes itself as holder."""
    elect(leases, clock).step()
    leases.foreign("go-host", "t9")
    assert elect(leases, clock, us("2")).step() is Standing.FOREIGN


def test_release_frees_it_only_if_it_is_held(leases, clock):
    """F-018: the next holder need not wait for the Lease to expire."""
    election = elect(leases, clock)
    election.step()
    election.release()
    assert leases.lease["spec"]["holderIdentity"] == ""
    assert elect(leases, clock, us("2")).step() is Standing.HELD
    election.release()
    assert leases.lease["spec"]["holderIdentity"] == str(us("2"))


def test_an_unreachable_api_server_stops_work_after_the_renew_deadline(leases, clock):
    election = elect(leases, clock)
    election.step()
    leases.is_away = True
    clock.now += 9
    assert election.step() is Standing.HELD
    assert election.may_work()
    clock.now += 1
    assert not election.may_work()  # whether a step is due or not, or hangs
    assert election.step() is Standing.UNKNOWN
    leases.is_away = False
    assert election.step() is Standing.HELD


def test_a_stranger_that_cannot_be_seen_any_more_is_not_known(leases, clock):
    """COR-5: a process that is cut off must stop reporting to its peers what it saw long ago."""
    lanes = FakeLanes()
    leadership = Leadership(leases, SETTINGS, us(), lanes, fellows=FakeFellows(), clock=clock)
    leases.foreign("go-host", "t1")
    leadership.step(ONE)
    leases.is_away = True
    clock.now += 5
    leadership.step(ONE)
    assert lanes.calls == [("pause", *LANES)]


def test_two_start_at_once_and_the_slower_one_works_too(leases, clock):
    """A worker that loses the race for an absent Lease checks again at once, not a period later."""
    slow = elect(leases, clock, us("2"))
    create = leases.create

    def beaten(resource, item):
        leases.create = create
        elect(leases, clock).step()
        return create(resource, item)

    leases.create = beaten
    assert slow.step() is Standing.HELD


def test_lanes_follow_the_lease(leases, clock, caplog):
    """They are paused at every step while another program holds it, also after Redis lost its data.

    The holder that csi-fleet waits for is logged once each time.
    """
    lanes = FakeLanes()
    leadership = Leadership(leases, SETTINGS, us(), lanes, fellows=FakeFellows(), clock=clock)
    leases.foreign("go-host", "t1")
    leadership.step(ONE)
    leadership.step(ONE)
    assert lanes.calls == [("pause", *LANES), ("pause", *LANES)]
    leases.foreign("", "t2")
    leadership.step(ONE)
    leadership.step(ONE)
    assert lanes.calls[2:] == [("resume", *LANES)]
    assert leadership.may_work("claims", "d")
    assert not leadership.may_work("claims", "unknown")
    told = "waiting because another program holds the Lease"
    assert caplog.messages.count(told) == 1
    leases.foreign("go-host", "t3")
    leadership.step(ONE)
    assert caplog.messages.count(told) == 2


def test_c143_health_complains_about_a_holder_that_does_not_renew(leases, clock):
    """F-022: it complains after the lease duration plus 20 s; a standby is healthy."""
    leadership = Leadership(leases, SETTINGS, us(), FakeLanes(), fellows=FakeFellows(), clock=clock)
    assert leadership.check() == ""
    leadership.step(ONE)
    clock.now += 34
    assert leadership.check() == ""
    clock.now += 2
    assert leadership.check() == "failed election to renew leadership on lease d"
    leadership.stop()
    assert leases.lease["spec"]["holderIdentity"] == ""


def test_lease_carries_nothing_that_the_sidecar_would_not_write(leases, clock):
    """A-007, F-020: recorded cases compare the Lease field by field (att-87, rsz-59)."""
    elect(leases, clock).step()
    assert "annotations" not in leases.lease["metadata"]

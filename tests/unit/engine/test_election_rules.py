"""Rules of one Lease about exact moments, counts and log messages (F-018, F-020)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.leases import SETTINGS, Clock, FakeLeases, elect, look, us
from workers.engine.election import Election, Standing


@pytest.fixture
def leases():
    return FakeLeases()


@pytest.fixture
def clock():
    return Clock()


def reads_of(leases):
    """Record every read of a Lease from now on."""
    reads, real = [], leases.get
    leases.get = lambda *args, **named: reads.append(1) or real(*args, **named)
    return reads


@pytest.mark.parametrize(("seconds", "reads"), [(15, 0), (15.1, 1)])
def test_a_holder_reads_first_once_its_lease_may_be_another_s(leases, clock, seconds, reads):
    """As client-go does, it writes without a read until the Lease expires, last moment included."""
    election = elect(leases, clock)
    election.step()
    seen = reads_of(leases)
    assert look(election, clock, seconds) is Standing.HELD
    assert len(seen) == reads


def test_nothing_is_fresh_before_the_first_look(leases, clock):
    """A standing that was never checked must not be reported to the peers."""
    election = elect(leases, clock)
    assert not election.is_fresh
    election.step()
    assert election.is_fresh


def test_only_a_change_of_the_holder_counts_as_a_transition(leases, clock):
    """As in client-go, a renewal, with or without a read, keeps count, acquire time and labels."""
    first, second = elect(leases, clock), elect(leases, clock, us("2"))

    def written():
        spec = leases.lease["spec"]
        return spec["leaseTransitions"], spec["acquireTime"], spec["renewTime"]

    first.step()
    count, acquired, renewed = written()
    assert (count, acquired) == (0, renewed)
    leases.lease["metadata"]["labels"]["mine"] = "kept"
    leases.put(leases.lease)  # touched: the next renewal has to read
    look(first, clock)
    assert written()[:2] == (0, acquired)
    look(first, clock)
    assert written()[:2] == (0, acquired)
    assert look(second, clock) is Standing.HELD
    assert (written()[0], written()[1]) == (1, written()[2])
    assert leases.lease["metadata"]["labels"] == {"team": "storage", "mine": "kept"}


@pytest.mark.parametrize(("duration", "lasts"), [(60, 60), (5, 5), (None, 15)])
def test_a_stranger_s_lease_lasts_as_long_as_it_says(leases, clock, duration, lasts):
    """M-020: the holder's own duration counts; csi-fleet's applies where the Lease names none."""
    leases.foreign("go-host", "t1")
    leases.lease["spec"]["leaseDurationSeconds"] = duration
    election = elect(leases, clock)
    election.step()
    assert look(election, clock, lasts) is Standing.FOREIGN
    assert look(election, clock, 0.1) is Standing.HELD


@pytest.mark.parametrize(
    ("age", "standing"),
    [
        pytest.param(15.0, Standing.FELLOW, id="as long as the latest next look"),
        pytest.param(15.5, Standing.HELD, id="it would end before the latest next look"),
    ],
)
def test_a_fellow_stands_by_while_a_renewal_lasts_until_its_next_look(leases, clock, age, standing):
    """COR-6: the latest next check is 1.2 periods away, and 0.9 of the duration has been used."""
    settings = replace(SETTINGS, lease_duration_seconds=20, retry_period_seconds=2.5)
    first, second = (Election(leases, "d", us(n), settings, clock=clock, now=clock) for n in "12")
    first.step()
    second.step()
    assert first.step() is Standing.FELLOW
    clock.now += age
    assert first.step() is standing


def test_what_becomes_of_a_lease_is_told_once(leases, clock, caplog):
    """Acquiring and losing it are logged once; a renewal, or a Lease never known, is not logged."""
    taken = "acquired the Lease"
    lost = "could not renew the Lease, so this worker stops the work that requires it"
    election = elect(leases, clock)
    leases.is_away = True
    election.step()
    assert lost not in caplog.messages
    leases.is_away = False
    leases.foreign("", "t1")
    with caplog.at_level("DEBUG"):
        election.step()
        look(election, clock)
    assert caplog.messages.count(taken) == 1
    leases.is_away = True
    for _ in range(3):
        look(election, clock, 20)
    assert caplog.messages.count(lost) == 1


def test_a_lease_that_was_never_known_is_told_again_and_again(leases, clock, caplog):
    """No other log explains why a worker that is not allowed to read its Lease does nothing."""
    election = elect(leases, clock)
    leases.is_away = True
    for _ in range(7):
        look(election, clock, 20)
    words = "could not read the Lease, so this worker does no work that requires it"
    told = [one for one in caplog.messages if one == words]
    assert len(told) == 3


def test_a_lease_that_was_given_back_is_read_before_it_is_taken_again(leases, clock):
    """F-018: what this worker last wrote is no longer its own."""
    election = elect(leases, clock)
    election.step()
    election.release()
    seen = reads_of(leases)
    assert election.step() is Standing.HELD
    assert seen

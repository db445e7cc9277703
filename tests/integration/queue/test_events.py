"""Two watchers report the same events: the queue handles each event once and loses none."""

from __future__ import annotations

import pytest

from workers.queue.catalog import CatalogWriter
from workers.queue.keys import claim_key

KEY = claim_key("d", "ns", "a", "u")


@pytest.fixture
def queue(start_queue):
    return start_queue()


def test_the_other_watchers_copy_changes_nothing_while_the_key_runs(bench, queue):
    """A second report of an event during the pass changes nothing.

    Otherwise the first failure of the key would be retried at once.
    """
    queue.add_events({KEY: "5"})
    lease = bench.run_next(queue)
    queue.add_events({KEY: "5"})
    queue.fail(lease, base_seconds=100, cap_seconds=100)
    queue.pump(period_seconds=0)
    assert bench.due == []


def test_the_other_watchers_copy_changes_nothing_after_the_pass(bench, queue):
    """A second report of an event after the pass changes nothing.

    Otherwise a cluster with one slow watcher would run each pass twice.
    """
    queue.add_events({KEY: "5"})
    queue.done(bench.run_next(queue))
    for version in ("4", "5"):
        queue.add_events({KEY: version})
    assert bench.due == []


@pytest.mark.parametrize("when", ["running", "retry planned", "done"])
def test_a_newer_event_is_worked_on_whenever_it_comes(bench, queue, when):
    """L-011: an update is handled at once. Versions with more digits are newer."""
    queue.add_events({KEY: "9"})
    lease = bench.run_next(queue)
    if when == "retry planned":
        queue.fail(lease, base_seconds=100, cap_seconds=100)
    elif when == "done":
        queue.done(lease)
    queue.add_events({KEY: "10"})
    if when == "running":
        queue.done(lease)
    assert bench.due == [KEY]


def test_an_add_for_another_reason_is_no_copy(bench, queue):
    """An add without a version always counts.

    After a new class, a resync or a loss of Redis, the object is unchanged but needs a pass.
    """
    queue.add_events({KEY: "5"})
    queue.done(bench.run_next(queue))
    queue.add([KEY])
    assert bench.due == [KEY]


def test_events_are_remembered_for_a_minute_at_least_and_not_for_ever(bench, queue, redis_client):
    """The versions of events are kept for a minute at least, and expire.

    Both watchers see an event within seconds.
    """
    queue.add_events({KEY: "5"})
    queue.done(bench.run_next(queue))
    bench.advance(59)
    queue.add_events({KEY: "5"})
    assert bench.due == []
    (name,) = redis_client.keys("*:seen:*")
    assert 0 < redis_client.ttl(name) <= 180
    bench.advance(120)
    queue.add_events({KEY: "5"})
    assert bench.due == [KEY]


@pytest.mark.parametrize("is_late", [False, True], ids=["while it runs", "after it"])
@pytest.mark.parametrize(
    ("event", "passes"), [("9", 0), ("10", 0), ("11", 1)], ids=["older", "own", "newer"]
)
def test_the_event_of_a_pass_own_write_leads_to_no_further_pass(
    bench, queue, event, passes, is_late
):
    """The event of a pass' own write causes no further pass, so a deletion needs one pass.

    The pass knows the version it wrote or read last.
    """
    queue.add_events({KEY: "5"})
    lease = bench.run_next(queue)
    if not is_late:
        queue.add_events({KEY: event})
    queue.done(lease, known="10")
    if is_late:
        queue.add_events({KEY: event})
    assert bench.due == [KEY] * passes


def test_an_add_for_another_reason_counts_whatever_the_pass_knows(bench, queue):
    """An add without a version causes a pass, whatever version the pass before knew.

    Such adds come after lists and for detached volumes.
    """
    queue.add_events({KEY: "5"})
    lease = bench.run_next(queue)
    queue.add([KEY])
    queue.add_events({KEY: "9"})
    queue.done(lease, known="10")
    assert bench.due == [KEY]


@pytest.mark.parametrize("end", ["fail", "release"])
def test_a_pass_that_does_not_end_well_knows_nothing(bench, queue, end):
    """L-011: after a pass that failed or was released,
    an event during the pass leads to a retry at once.
    """
    queue.add_events({KEY: "5"})
    lease = bench.run_next(queue)
    queue.add_events({KEY: "6"})
    if end == "fail":
        queue.fail(lease, base_seconds=100, cap_seconds=100)
    else:
        queue.release(lease, delay_seconds=100)
    assert bench.due == [KEY]


def test_an_event_is_not_lost_with_its_process(bench, queue, start_queue):
    """An event during the pass of a process that dies leads to one new pass."""
    queue.add_events({KEY: "5"})
    bench.run_next(queue)
    queue.add_events({KEY: "6"})
    queue.close()
    other = start_queue()
    assert bench.due == [KEY]
    other.done(bench.run_next(other))
    assert bench.due == []


# A lease carries the newest known version of its object: its owner reads no older version.


def test_a_lease_knows_the_newest_version_that_was_told(bench, queue):
    queue.add_events({KEY: "9"})
    queue.add_events({KEY: "10"})
    assert bench.run_next(queue).seen == 10


def test_and_what_the_pass_before_read_or_wrote(bench, queue):
    queue.add_events({KEY: "5"})
    queue.done(bench.run_next(queue), known="12")
    queue.add([KEY])
    assert bench.run_next(queue).seen == 12


def test_of_what_was_told_minutes_ago_nothing_is_known(bench, queue):
    """A version from minutes ago is forgotten, so the object is read as it is now."""
    queue.add_events({KEY: "5"})
    bench.advance(180)
    assert bench.run_next(queue).seen == 0


@pytest.mark.parametrize("stored", ["", "x", "-1", "1" * 20, b"\xff", "0"])
def test_what_is_no_version_is_none(bench, queue, redis_client, stored):
    """A stored value that is not a version counts as none."""
    queue.add_events({KEY: "5"})
    (name,) = redis_client.keys("*:seen:*")
    redis_client.hset(name, KEY.text, stored)
    assert bench.run_next(queue).seen == 0


@pytest.mark.parametrize("is_noticed", [False, True], ids=["unnoticed", "noticed by the worker"])
@pytest.mark.parametrize("is_late", [False, True], ids=["while it runs", "after it"])
def test_what_a_pass_read_before_etcd_was_restored_hides_no_event(
    bench, queue, redis_client, is_late, is_noticed
):
    """After a restore of etcd, new events lead to a pass,
    although the versions of the lost history are higher.
    """
    queue.add_events({KEY: "900"})
    lease = bench.run_next(queue)
    watcher = CatalogWriter(redis_client, now_ms=lambda: bench.now_ms)
    assert watcher.end_history(watcher.epoch())
    watcher.epoch()
    if is_noticed:
        assert not queue.heartbeat()
    if is_late:
        queue.done(lease, known="1000")
    queue.add_events({KEY: "300"})
    if not is_late:
        queue.done(lease, known="1000")
        queue.add_events({KEY: "301"})
    assert bench.due == [KEY]

"""Events of objects as two watchers tell them: each is worked on once, none is lost (COR-15)."""

from __future__ import annotations

import pytest

from workers.queue.keys import claim_key

KEY = claim_key("d", "ns", "a", "u")


@pytest.fixture
def queue(start_queue):
    return start_queue()


def test_the_other_watchers_copy_changes_nothing_while_the_key_runs(bench, queue):
    """Before, it made the key dirty: the first failure was retried at once."""
    queue.add_events({KEY: "5"})
    lease = bench.run_next(queue)
    queue.add_events({KEY: "5"})
    queue.fail(lease, base_seconds=100, cap_seconds=100)
    queue.pump(period_seconds=0)
    assert bench.tickets == []


def test_the_other_watchers_copy_changes_nothing_after_the_pass(bench, queue):
    """Before, each pass of a slow watcher's cluster was done twice."""
    queue.add_events({KEY: "5"})
    queue.done(bench.run_next(queue))
    for version in ("4", "5"):
        queue.add_events({KEY: version})
    assert bench.tickets == []


@pytest.mark.parametrize("when", ["running", "retry planned", "done"])
def test_a_newer_event_is_worked_on_whenever_it_comes(bench, queue, when):
    """L-011: an update is handled at once; versions of more digits are newer."""
    queue.add_events({KEY: "9"})
    lease = bench.run_next(queue)
    if when == "retry planned":
        queue.fail(lease, base_seconds=100, cap_seconds=100)
    elif when == "done":
        queue.done(lease)
    queue.add_events({KEY: "10"})
    if when == "running":
        queue.done(lease)
    assert bench.tickets == [KEY]


def test_an_add_for_another_reason_is_no_copy(bench, queue):
    """A class that came, a resync, a lost Redis: the object is as it was, the pass is needed."""
    queue.add_events({KEY: "5"})
    queue.done(bench.run_next(queue))
    queue.add([KEY])
    assert bench.tickets == [KEY]


def test_events_are_remembered_for_a_minute_at_least_and_not_for_ever(bench, queue, redis_client):
    """Both watchers see an event within seconds; memory must not grow with all keys ever seen."""
    queue.add_events({KEY: "5"})
    queue.done(bench.run_next(queue))
    bench.advance(59)
    queue.add_events({KEY: "5"})
    assert bench.tickets == []
    (name,) = redis_client.keys("*:seen:*")
    assert 0 < redis_client.ttl(name) <= 180
    bench.advance(120)
    queue.add_events({KEY: "5"})
    assert bench.tickets == [KEY]

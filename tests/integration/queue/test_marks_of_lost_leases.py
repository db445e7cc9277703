"""A frozen process resumes: the mark from before its call is kept, whoever removed it."""

from __future__ import annotations

import pytest

from workers.errors import LeaseLost
from workers.queue.keys import claim_key
from workers.queue.marks import Remembered
from workers.queue.seal import UNCHECKED

KEY = claim_key("d", "ns", "a", "u")
MARK = {"call": {"until": 1}}


def kept(bench):
    (found,) = Remembered(bench.client, UNCHECKED).marks_of([KEY])
    return found


@pytest.fixture
def frozen(bench, start_queue):
    """Return a function that writes marks as the first process and gives its lease to a fellow."""

    def freeze(*marks):
        one, two = start_queue(), start_queue()
        one.add([KEY])
        old = bench.run_next(one)
        for mark in marks:
            one.mark(old, mark)
        bench.advance(5)
        two.heartbeat()
        two.pump(period_seconds=0)
        return one, old, two, bench.run_next(two)

    return freeze


@pytest.mark.parametrize("end", ["done", "release", "fail"])
def test_a_mark_that_a_fellow_forgot_is_put_back_and_looked_at(bench, frozen, end):
    """The mark is restored and its key is added, so a pass handles the frozen process' call."""
    one, old, two, fellow = frozen({"call": {"until": 0}}, MARK)
    two.forget([KEY])
    two.done(fellow)
    assert (kept(bench), bench.due) == ({}, [])
    more = {"base_seconds": 1, "cap_seconds": 1} if end == "fail" else {}
    getattr(one, end)(old, **more)
    assert (kept(bench), bench.due) == (MARK, [KEY])


def test_a_fellows_mark_is_newer(bench, frozen):
    one, old, two, fellow = frozen(MARK)
    two.mark(fellow, {"theirs": 1})
    one.done(old)
    assert kept(bench) == {"theirs": 1}


def test_a_mark_that_was_removed_or_refused_is_not_put_back(bench, frozen):
    one, old, two, fellow = frozen(MARK, {})
    two.done(fellow)
    with pytest.raises(LeaseLost):
        one.mark(old, {"late": 1})
    one.done(old)
    assert kept(bench) == {}


def test_a_refused_mark_leaves_the_one_before(bench, frozen):
    one, old, two, fellow = frozen(MARK)
    two.forget([KEY])
    two.done(fellow)
    for late in ({"late": 1}, {}):
        with pytest.raises(LeaseLost):
            one.mark(old, late)
    one.done(old)
    assert kept(bench) == MARK


def test_a_redis_that_lost_its_data_has_the_mark_again(bench, start_queue):
    queue = start_queue()
    queue.add([KEY])
    queue.mark(bench.run_next(queue), MARK)
    bench.client.flushall()
    queue.heartbeat()
    assert kept(bench) == MARK

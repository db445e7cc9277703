"""Deadlines use the queue's clock, whatever the wall clocks of workers show."""

from __future__ import annotations

import pytest

from workers.deadlines import MARGIN_SECONDS, NONE, Deadline
from workers.queue.leases import Session

NOW = 1_700_000_000.0
LIFE = 1_699_999_000.0


class Local:
    """A local clock: seconds since boot."""

    def __init__(self, now: float = 50.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


def session(local: Local, *, now: float = NOW, life: float = LIFE) -> Session:
    found = Session(epoch=f"e:{round(life * 1000)}:run", clock=local)
    found.hear(round(now * 1000), local.now)
    return found


def test_two_workers_agree_whatever_their_own_clocks_say():
    writer, reader = Local(5.0), Local(9_000.0)
    deadline = session(writer).deadline(15)
    assert session(reader).seconds_left(deadline) == 15 + MARGIN_SECONDS
    reader.now += 10
    assert session(reader, now=NOW + 10).seconds_left(deadline) == 5 + MARGIN_SECONDS


def test_a_slow_answer_makes_a_deadline_later_and_a_wait_no_shorter():
    """The time that Redis returned lies between the request and its answer."""
    local = Local()
    found = Session(epoch=f"e:{round(LIFE * 1000)}:run", clock=local)
    asked_at, local.now = local.now, local.now + 3
    found.hear(round(NOW * 1000), asked_at)
    assert found.now() == NOW
    assert found.deadline(10).until == NOW + 3 + 10 + MARGIN_SECONDS


@pytest.mark.parametrize("ahead", [0, 3600, 24 * 3600, 3652 * 24 * 3600])
def test_a_deadline_of_an_earlier_life_is_waited_for_no_longer_than_its_call(ahead):
    """Redis lost its data at a start, and with it the record of how far its clock was ahead."""
    deadline = session(Local(), now=NOW + ahead, life=LIFE + ahead).deadline(15)
    now = session(Local(), now=NOW + 1, life=NOW)
    assert now.seconds_left(deadline) <= 15 + MARGIN_SECONDS - 1
    assert session(Local(), now=NOW + 17, life=NOW).seconds_left(deadline) == 0


def test_the_last_of_several_is_waited_for():
    here = session(Local())
    one, two = here.deadline(5), here.deadline(7)
    assert here.latest(NONE, one, two) == two
    assert here.seconds_left(one, NONE, two) == 7 + MARGIN_SECONDS
    assert here.latest(Deadline(NOW - 1), NONE) == NONE
    assert here.seconds_left() == 0


@pytest.mark.parametrize("deadline", [NONE, Deadline(7.0), Deadline(7.5, 3.0, 2.0)])
def test_a_deadline_reads_back_as_it_was_written(deadline):
    assert Deadline.read(deadline.data()) == deadline


@pytest.mark.parametrize("data", [None, "soon", [], [1], [1, "x", 3], {}, 10**400, float("inf")])
def test_what_is_no_deadline_is_none(data):
    assert Deadline.read(data) == NONE


def test_one_of_an_older_release_is_read_by_the_same_clock():
    assert session(Local()).seconds_left(Deadline.read(NOW + 5)) == 5

"""When a thread goes on with its driver's next key."""

from __future__ import annotations

import pytest

from workers.cli.nexttickets import FREE_EACH, QUICK_SECONDS, WAIT_SECONDS, NextTickets
from workers.drivers.seats import Seats
from workers.errors import QueueUnavailable
from workers.queue.keys import claim_key
from workers.queue.leases import CatalogState, Lease, Session

KEY = claim_key("d", "ns", "a", "uid-1")
NEXT = claim_key("d", "ns", "b", "uid-2")


class Consumers:
    """Whose tickets are fetched."""

    does_fetch = True

    def fetches(self, key):
        assert key == KEY
        return self.does_fetch


@pytest.fixture
def consumers():
    return Consumers()


@pytest.fixture
def seats():
    return Seats(lambda _: 2, threads=8)


@pytest.fixture
def asked():
    """What was waited for; an exception in front is raised."""
    return []


@pytest.fixture
def tickets(consumers, seats, asked):
    def await_ticket(key, seconds):
        asked.append((key, seconds))
        if isinstance(asked[0], Exception):
            raise asked[0]
        return NEXT

    return NextTickets(consumers, seats, await_ticket)


def lease(age=0.0):
    session = Session(epoch="e", clock=lambda: 100.0)
    state = CatalogState("e", {}, frozenset())
    return Lease(KEY, (), "t", 1, 0, "", 0.0, state, session, asked_at=100.0 - age)


def test_a_quick_pass_of_a_driver_with_a_seat_to_spare_is_followed(tickets, seats):
    with seats.seat("d"), seats.seat("d"):
        assert tickets.wanted(lease())


def test_each_so_many_ends_a_thread_is_free_for_whatever_else_waits(tickets):
    """Else one driver's flood could keep all threads for good: ticks and others wait behind it."""
    asked = [tickets.wanted(lease()) for _ in range(3 * FREE_EACH)]
    assert [index for index, is_wanted in enumerate(asked, 1) if not is_wanted] == [
        FREE_EACH,
        2 * FREE_EACH,
        3 * FREE_EACH,
    ]


def test_a_slow_pass_gives_its_thread_back(tickets):
    assert tickets.wanted(lease(age=QUICK_SECONDS * 0.9))
    assert not tickets.wanted(lease(age=QUICK_SECONDS))


def test_a_driver_with_more_seats_than_its_part_is_not_followed(tickets, seats):
    with seats.seat("d"), seats.seat("d"), seats.seat("d"):
        assert not tickets.wanted(lease())


def test_nor_one_whose_tickets_are_not_fetched_here(tickets, consumers):
    consumers.does_fetch = False
    assert not tickets.wanted(lease())


def test_scarce_threads_are_not_kept():
    """As if it had left: of the last threads a driver may have no more than are free then."""
    seats = Seats(lambda _: 8, threads=16)
    opened = [seats.seat(name) for name in "ddd" + "e" * 12]
    for seat in opened:
        seat.__enter__()
    assert not seats.has_room("d")
    opened[-1].__exit__(None, None, None)
    opened[-2].__exit__(None, None, None)
    assert seats.has_room("d")


def test_while_others_of_its_driver_are_at_work_a_thread_waits_for_the_next_ticket(
    tickets, seats, asked
):
    with seats.seat("d"), seats.seat("d"):
        assert tickets.awaited(KEY) == NEXT
    assert asked == [(KEY, WAIT_SECONDS)]


def test_at_rest_nobody_waits(tickets, seats, asked):
    """Celery's consumer is there first, and a thread less is busy for nothing."""
    with seats.seat("d"), seats.seat("e"):
        assert tickets.awaited(KEY) is None
    assert asked == []


def test_a_redis_that_is_away_ends_the_wait(tickets, seats, asked):
    asked.append(QueueUnavailable("away"))
    with seats.seat("d"), seats.seat("d"):
        assert tickets.awaited(KEY) is None

"""When a thread goes on with its driver's next ticket, and what it then hands to Celery."""

from __future__ import annotations

import json
from base64 import b64encode

import pytest

from workers.app import make_app
from workers.cli.nexttickets import FREE_EACH, QUICK_SECONDS, NextTickets
from workers.config.settings import Settings
from workers.drivers.seats import Seats
from workers.queue.keys import Key, claim_key
from workers.queue.leases import CatalogState, Lease, Session

KEY = claim_key("d", "ns", "a", "uid-1")


class Consumers:
    """What Celery would be given; `is_over`: its threads ended."""

    def __init__(self):
        self.does_fetch = True
        self.is_over = False
        self.begun = []

    def fetches(self, key):
        assert key == KEY
        return self.does_fetch

    def begin(self, task, ticket):
        if self.is_over:
            raise RuntimeError("cannot schedule new futures after shutdown")
        self.begun.append((task, ticket))


@pytest.fixture
def app():
    app = make_app(Settings())
    yield app
    app.close()


@pytest.fixture
def consumers():
    return Consumers()


@pytest.fixture
def seats():
    return Seats(lambda _: 2, threads=8)


@pytest.fixture
def tickets(app, consumers, seats):
    return NextTickets(app, consumers, seats)


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


def test_it_is_handed_to_celery_as_the_published_one_would_be(app, tickets, consumers):
    """Flower shows what it would have shown."""
    assert tickets.begin(KEY)
    ((task, ticket),) = consumers.begun
    assert (task, ticket.body[0]) == ("claims.sync", (KEY.text,))
    assert (ticket.headers["task"], ticket.headers["argsrepr"]) == ("claims.sync", "ns/a d")
    assert ticket.headers["ignore_result"]


def test_nothing_is_begun_when_the_threads_ended(tickets, consumers):
    consumers.is_over = True
    assert not tickets.begin(KEY)


def test_nor_for_a_kind_that_this_release_does_not_know(tickets, consumers):
    assert not tickets.begin(Key("ghosts", "d", "a"))
    assert consumers.begun == []


def message(body):
    return json.dumps({"body": b64encode(json.dumps(body).encode()).decode()}).encode()


def test_the_key_of_a_message_is_read(tickets):
    assert tickets.read(message([[KEY.text], {}, {}])) == KEY


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"nonsense",
        b"\xff\xfe",
        b"[]",
        b"7",
        b"{}",
        b'{"body": 7}',
        b'{"body": "@@@"}',
        b'{"body": "bm9uc2Vuc2U="}',
        message({}),
        message([]),
        message([[]]),
        message([[7], {}, {}]),
        message([[None], {}, {}]),
        message(["no key"]),
        message([["no key"], {}, {}]),
        b"[" * 100_000,
    ],
)
def test_what_is_no_ticket_is_one_kind_of_error(tickets, raw):
    """Anything may stand in Redis."""
    with pytest.raises(ValueError, match="no ticket of ours"):
        tickets.read(raw)

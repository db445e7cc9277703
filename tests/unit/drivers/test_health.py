"""What a failed call means for the calls to come."""

from __future__ import annotations

import pytest

from csi_client import errors
from csi_client.errors import CsiError
from workers.drivers.health import SharedHealth
from workers.drivers.seats import Seats, default_seats


class FakeBreakers:
    def __init__(self):
        self.told = []

    def failed(self, driver, reason):
        self.told.append(("failed", driver))
        return "closed"

    def succeeded(self, driver):
        self.told.append(("ok", driver))
        return "closed"

    def throttle(self, lane):
        self.told.append(("throttle", lane))
        return 1

    def pace(self, lane):
        self.told.append(("pace", lane))
        return 0.0


@pytest.fixture
def breakers():
    return FakeBreakers()


@pytest.fixture
def health(breakers):
    health = SharedHealth(breakers)
    health.attach("d")
    return health


CASES = [
    pytest.param("create", CsiError(14, "no"), [("failed", "d")], id="unavailable"),
    pytest.param("delete", CsiError(4, "late"), [("failed", "d")], id="delete timed out"),
    pytest.param("create", CsiError(4, "late"), [], id="create timed out, the attempt decides"),
    pytest.param("create", CsiError(8, "full"), [("throttle", "claims|d")], id="exhausted"),
    pytest.param("delete", CsiError(10, "busy"), [("throttle", "volumes|d")], id="aborted"),
    pytest.param("create", CsiError(13, "Throttling: x"), [("throttle", "claims|d")], id="words"),
    pytest.param("create", CsiError(8, "big", from_transport=True), [], id="message too large"),
    pytest.param("create", CsiError(13, "broken"), [], id="an answer like another"),
    pytest.param("create", CsiError(errors.CANCELLED, "x"), [], id="cancelled"),
]


@pytest.mark.parametrize(("operation", "error", "told"), CASES)
def test_error(health, breakers, operation, error, told):
    health.failed(operation, error)
    assert breakers.told == told


def test_answers_are_news_only_after_failures(health, breakers):
    """No round trip to Redis while all is well."""
    health.answered()
    assert breakers.told == []
    health.timed_out("create")
    health.answered()
    health.answered()
    assert breakers.told == [("failed", "d"), ("ok", "d")]


@pytest.mark.parametrize(
    ("threads", "drivers", "seats"),
    [(64, 1, 64), (64, 2, 16), (64, 200, 16), (4, 3, 2), (1, 3, 1)],
)
def test_a_driver_of_several_gets_a_part_of_the_threads(threads, drivers, seats):
    assert default_seats(threads, drivers) == seats


def test_seats_are_held_when_the_last_is_taken_and_freed_again():
    told = []
    seats = Seats(lambda _: 2, lambda name, is_full: told.append((name, is_full)))
    with seats.seat("d"), seats.seat("e"):
        with seats.seat("d"):
            assert told == [("d", True)]
            with seats.seat("d"):  # fetched a moment too late
                assert seats.taken("d") == 3
            assert told == [("d", True)]
        assert told == [("d", True), ("d", False)]
    assert (seats.taken("d"), told[-1]) == (0, ("d", False))


def test_calls_with_a_rate_ask_for_their_turn(health, breakers):
    """Others cost no round trip."""
    health.paced = frozenset({"delete"})
    health.wait_turn("create")
    health.wait_turn("delete")
    assert breakers.told == [("pace", "volumes|d")]


def test_scarce_threads_are_shared_so_that_one_is_always_free():
    """Five of six drivers may hang; without this rule four would take all threads."""
    held = set()
    seats = Seats(
        lambda _: 4, lambda name, is_full: (held.add if is_full else held.discard)(name), threads=16
    )
    open_seats = []
    for name in "abcde":
        while name not in held:
            seat = seats.seat(name)
            seat.__enter__()
            open_seats.append((name, seat))
    assert 16 - len(open_seats) >= 1
    assert {name: seats.taken(name) for name in "abc"} == {"a": 4, "b": 4, "c": 4}
    for _, seat in open_seats:
        seat.__exit__(None, None, None)
    assert held == set()


def test_a_driver_with_all_threads_shares_with_nobody():
    told = []
    seats = Seats(lambda _: 4, lambda *change: told.append(change), threads=4)
    with seats.seat("d"), seats.seat("d"), seats.seat("d"):
        assert told == []

"""How a failed call affects later calls."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from csi_client import errors
from csi_client.errors import CsiError
from workers.drivers.pace import SharedPace
from workers.drivers.seats import Seats, default_seats


class FakeLanes:
    def __init__(self):
        self.told = []

    def throttle(self, lane):
        self.told.append(("throttle", lane))
        return 1

    def pace(self, lane):
        self.told.append(("pace", lane))
        return 0.0


@pytest.fixture
def lanes():
    return FakeLanes()


@pytest.fixture
def pace(lanes):
    pace = SharedPace(lanes)
    pace.attach("d")
    return pace


HALVED = [("throttle", "claims|d")]


@pytest.mark.parametrize(
    ("operation", "error", "told"),
    [
        pytest.param("create", CsiError(14, "storage east does not answer"), [], id="unavailable"),
        pytest.param("create", CsiError(4, "late"), [], id="slow"),
        pytest.param("create", CsiError(8, "no space in zone a"), [], id="place is full"),
        pytest.param("delete", CsiError(10, "pending"), [], id="pending for this volume"),
        pytest.param("create", CsiError(10, "pvc throttle-test"), [], id="a claim's own name"),
        pytest.param("create", CsiError(8, "rate exceeded"), HALVED, id="too many"),
        pytest.param("create", CsiError(13, "Throttling: x"), HALVED, id="words"),
        pytest.param("create", CsiError(14, "too many requests"), HALVED, id="as unavailable"),
        pytest.param("list", CsiError(13, "Throttling: x"), [], id="no lane to halve"),
        pytest.param("create", CsiError(8, "slow down", from_transport=True), [], id="not its own"),
        pytest.param("create", CsiError(13, "broken"), [], id="an answer like another"),
        pytest.param("create", CsiError(errors.CANCELLED, "x"), [], id="cancelled"),
    ],
)
def test_only_words_of_throttling_mean_more_than_their_own_call(
    pace, lanes, operation, error, told
):
    """BUG-9: one storage of several fails. COR-3: texts about one volume or place mean only it."""
    for _ in range(20):
        pace.failed(operation, error)
    assert lanes.told == told * 20


def test_a_driver_whose_name_is_not_known_yet_has_no_lane(lanes):
    pace = SharedPace(lanes)
    pace.paced = frozenset({"create"})
    pace.wait_turn("create")
    pace.failed("create", CsiError(8, "rate exceeded"))
    assert lanes.told == []


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
            with seats.seat("d"):  # fetched just before the hold
                assert seats.taken("d") == 3
            assert told == [("d", True)]
        assert told == [("d", True), ("d", False)]
    assert (seats.taken("d"), told[-1]) == (0, ("d", False))


def test_calls_with_a_rate_ask_for_their_turn(pace, lanes):
    """Other calls cost no round trip."""
    pace.paced = frozenset({"delete"})
    pace.wait_turn("create")
    pace.wait_turn("delete")
    assert lanes.told == [("pace", "volumes|d")]


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
    with seats.seat("d"), seats.seat("d"), seats.seat("d"), seats.seat("d"):
        assert told == []  # without a free thread nothing is fetched anyway
    assert told == []


class Limited:
    """Slots of eight threads, whose limits change; `held` lists what is not fetched."""

    def __init__(self, **limits):
        self.limits, self.held = limits, set()
        self.seats = Seats(self.limits.__getitem__, self.hold, threads=8)

    def hold(self, name, is_full):
        (self.held.add if is_full else self.held.discard)(name)


def test_a_driver_that_is_alone_now_is_held_no_more_though_none_of_its_calls_ends():
    world = Limited(a=2)
    with world.seats.seat("a"), world.seats.seat("a"):
        assert world.held == {"a"}
        world.limits["a"] = 8  # the other driver has gone
        world.seats.look_again()
        assert world.held == set()
        world.limits["a"] = 2  # and is back
        with world.seats.seat("a"):
            assert world.held == {"a"}
    assert world.held == set()


def test_a_second_driver_comes_while_the_first_has_all_threads():
    """The first call that ends is not replaced."""
    world = Limited(a=8)
    with ExitStack() as inside:
        for _ in range(7):
            inside.enter_context(world.seats.seat("a"))
        with world.seats.seat("a"):
            assert world.held == set()
            world.limits.update(a=2, b=2)
        assert world.held == {"a"}
    assert world.held == set()

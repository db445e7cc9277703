"""What a failed call means for the calls to come."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest

from csi_client import errors
from csi_client.client import CsiClient
from csi_client.errors import CsiError
from tests.support.waiting import wait_until
from workers.cpuslots import CpuSlots
from workers.drivers.health import SharedHealth, WatchedClient
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


ALIVE, DEAD = True, False
CASES = [
    pytest.param("create", CsiError(14, "no"), ALIVE, [("failed", "d")], id="unavailable"),
    pytest.param("create", CsiError(4, "late"), ALIVE, [], id="slow to create"),
    pytest.param("delete", CsiError(4, "late"), ALIVE, [], id="slow to delete"),
    pytest.param("attach", CsiError(4, "late"), ALIVE, [], id="slow to attach"),
    pytest.param("create", CsiError(4, "late"), DEAD, [("failed", "d")], id="hangs"),
    pytest.param("create", CsiError(8, "no space in zone a"), ALIVE, [], id="place is full"),
    pytest.param("delete", CsiError(10, "pending"), ALIVE, [], id="pending for this volume"),
    pytest.param("create", CsiError(10, "pvc throttle-test"), ALIVE, [], id="a claim's own name"),
    pytest.param(
        "create", CsiError(8, "rate exceeded"), ALIVE, [("throttle", "claims|d")], id="too many"
    ),
    pytest.param(
        "create", CsiError(13, "Throttling: x"), ALIVE, [("throttle", "claims|d")], id="words"
    ),
    pytest.param("list", CsiError(13, "Throttling: x"), ALIVE, [], id="no lane to halve"),
    pytest.param("create", CsiError(8, "big", from_transport=True), ALIVE, [], id="too large"),
    pytest.param("create", CsiError(13, "broken"), ALIVE, [], id="an answer like another"),
    pytest.param("create", CsiError(errors.CANCELLED, "x"), ALIVE, [], id="cancelled"),
]


@pytest.mark.parametrize(("operation", "error", "is_alive", "told"), CASES)
def test_error(health, breakers, operation, error, is_alive, told):
    """COR-2: a slow driver is no dead one. COR-3: words about one volume or place are just that."""
    health.failed(operation, error, lambda: is_alive)
    assert breakers.told == told


def test_answers_are_news_only_after_failures(health, breakers):
    """No round trip to Redis while all is well."""
    health.answered()
    assert breakers.told == []
    health.failed("create", CsiError(14, "no"), lambda: True)
    health.answered()
    health.answered()
    assert breakers.told == [("failed", "d"), ("ok", "d")]


def test_probe_answered_in_place_of_a_slow_call_is_an_answer(health, breakers):
    """COR-2: or the polls of slow volumes would never close a breaker that a restart opened."""
    health.failed("create", CsiError(14, "restarting"), lambda: True)
    health.failed("create", CsiError(4, "late"), lambda: True)
    assert breakers.told == [("failed", "d"), ("ok", "d")]


class Count:
    """A clock that goes on by one each time it is looked at."""

    def __init__(self):
        self._lock = threading.Lock()
        self.looks = 0

    def monotonic(self):
        with self._lock:
            self.looks += 1
            return float(self.looks)


def test_many_that_time_out_together_share_a_probe(health, monkeypatch):
    """A driver that hangs must not cost each thread a Probe of its own, one after another."""
    clock, go, asked = Count(), threading.Event(), []
    monkeypatch.setattr("workers.drivers.health.time", clock)
    client = WatchedClient("/nowhere", health)

    def probe(*, timeout_seconds):
        asked.append(timeout_seconds)
        return go.wait(10)

    client.probe = probe
    with ThreadPoolExecutor(20) as pool:
        answers = [pool.submit(client.answers_probe) for _ in range(20)]
        # One look each, and one for the Probe that began before most of them asked.
        wait_until(lambda: clock.looks == 21, 10, "all have asked")
        go.set()
        assert all(answer.result() for answer in answers)
    assert len(asked) == 2
    client.close()


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
    with seats.seat("d"), seats.seat("d"), seats.seat("d"), seats.seat("d"):
        assert told == []  # without a free thread nothing is fetched anyhow
    assert told == []


class Limited:
    """Seats of eight threads, whose limits change; `held` is what is not fetched."""

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
    """The first of them to leave is not replaced."""
    world = Limited(a=8)
    with ExitStack() as inside:
        for _ in range(7):
            inside.enter_context(world.seats.seat("a"))
        with world.seats.seat("a"):
            assert world.held == set()
            world.limits.update(a=2, b=2)
        assert world.held == {"a"}
    assert world.held == set()


def test_a_pass_that_waits_for_the_driver_lets_another_in(health, monkeypatch):
    """SEC-4: for its turn and for the answer, whatever is called."""
    slots, let_in = CpuSlots(1, 3600), []

    def other_pass(*_, **__):
        with slots.taken():
            let_in.append(1)

    monkeypatch.setattr(CsiClient, "_call", other_pass)
    monkeypatch.setattr(health, "wait_turn", other_pass)
    client = WatchedClient("/nowhere", health)
    with slots.taken():
        client.delete_volume("v", {})
        client.call("Identity/Probe", None, object)
    assert len(let_in) == 3

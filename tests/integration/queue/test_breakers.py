"""Breakers, lowered lanes, shared limits, pauses and fairness, on a real Redis with a set clock."""

from __future__ import annotations

import pytest

from workers.kube.pauserecord import Recorded
from workers.queue.breakers import Breakers, BreakerState, record_text
from workers.queue.keys import claim_key, volume_key
from workers.queue.names import NAMES
from workers.queue.pauses import Pauses
from workers.queue.registry import DriverRegistry
from workers.queue.workqueue import WorkQueue

pytestmark = pytest.mark.integration


class World:
    """One queue, two processes' breakers, a clock that stands still."""

    def __init__(self, client):
        self.now = 1_000_000
        self.client = client
        self.tickets = []
        clock = {"now_ms": lambda: self.now}
        self.queue = WorkQueue(client, publish=self.tickets.extend, **clock)
        self.queue.register_process()
        self.one, self.two = (
            Breakers(client, publish=self.tickets.extend, **clock) for _ in range(2)
        )
        for kind in ("claims", "volumes", "capacity", "cloning", "sweep"):
            self.queue.set_limits(f"{kind}|d", 100)

    def later(self, seconds):
        self.now += round(seconds * 1000)

    def claims(self, count, namespace="ns", start=0):
        keys = [
            claim_key("d", namespace, f"c{i}", f"{namespace}{i}")
            for i in range(start, start + count)
        ]
        self.queue.add(keys)
        return keys

    def fresh(self):
        """Tickets since the last look."""
        found, self.tickets[:] = list(self.tickets), []
        return found

    def pump(self):
        self.queue.heartbeat()
        self.queue.pump(period_seconds=0)
        return self.fresh()

    def paused(self):
        return self.queue.stats()["claims|d"].paused


@pytest.fixture
def world(redis_client):
    return World(redis_client)


def open_breaker(world, failures=5):
    for _ in range(failures):
        state = world.one.failed("d", "rpc error: no")
    return state


def test_failures_of_all_processes_open_it_and_keys_wait(world):
    for breakers in (world.one, world.two, world.one, world.two):
        assert breakers.failed("d", "no") == "closed"
    assert world.one.failed("d", "rpc error: no") == "open"
    state = world.two.states()["d"]
    assert (state.state, state.reason, state.is_open) == ("open", "rpc error: no", True)
    assert world.paused() == {"breaker": "rpc error: no"}
    world.claims(3)
    assert world.pump() == []


def test_an_answer_between_failures_keeps_it_closed(world):
    open_breaker(world, 4)
    world.two.succeeded("d")
    assert open_breaker(world, 4) == "closed"
    world.later(31)  # a window later the old ones do not count
    assert open_breaker(world, 4) == "closed"


def test_half_open_lets_one_call_through_and_a_ramp_follows(world):
    open_breaker(world)
    world.claims(50)
    assert world.one.half_open("d") == "open"  # not yet
    world.later(3)
    assert world.one.half_open("d") == "half"
    assert len(world.fresh()) == 1
    assert world.pump() == []
    assert world.two.succeeded("d") == "closed"
    world.later(1)
    assert 1 < len(world.pump()) < 40
    world.later(10)
    assert len(world.pump()) >= 20
    assert world.one.states() == {}


@pytest.mark.parametrize(
    ("record", "state"),
    [
        ("open 5 1000 3000 0 rpc error: no", BreakerState("open", 5, 1000, 3000, "rpc error: no")),
        ("half 0 0 0 1 ", BreakerState("half", 0, 0, 0, "")),
        ("open 5 1000 3000", None),
        ("open five 1000 3000 0 no", None),
        ("open 5 1000 soon 0 no", None),
        ("", None),
    ],
)
def test_a_record_that_cannot_be_read_is_no_breaker(world, redis_client, record, state):
    redis_client.hset(NAMES["breakers"].full, "d", record)
    assert world.one.states() == ({} if state is None else {"d": state})


@pytest.mark.parametrize(
    ("state", "is_open"), [("closed", False), ("open", True), ("half", False), ("lost", True)]
)
def test_keys_are_held_back_while_nothing_is_called(state, is_open):
    assert BreakerState(state, 1, 0, 0, "").is_open is is_open


def test_a_failed_trial_opens_it_for_twice_as_long(world):
    open_breaker(world)
    first = world.one.states()["d"]
    world.later(3)
    world.one.half_open("d")
    assert world.one.failed("d", "still") == "open"
    second = world.one.states()["d"]
    assert 2000 <= first.until_ms - first.since_ms <= 2500
    assert 4000 <= second.until_ms - second.since_ms <= 5000


def test_half_open_takes_polls_first(world):
    """COR-2: a poll may find its volume ready; a first attempt of a slow driver proves nothing."""
    (poll,) = world.claims(1)
    world.queue.fail(world.queue.take(*world.fresh()), base_seconds=1, cap_seconds=1)
    open_breaker(world)
    world.claims(50, start=1)
    world.later(3)
    world.pump()
    world.one.half_open("d")
    assert world.fresh() == [poll]


def test_half_open_without_failures_closes_by_itself(world):
    open_breaker(world)
    world.later(3)
    world.one.half_open("d")
    world.later(31)
    assert world.one.half_open("d") == "closed"


def test_keys_wait_when_the_last_connection_is_lost(world):
    world.one.back("d", 15)
    world.two.back("d", 15)
    assert world.one.lost("d", "driver socket lost") == "closed"
    assert world.paused() == {}
    assert world.two.lost("d", "driver socket lost") == "lost"
    assert world.paused() == {"breaker": "driver socket lost"}
    world.claims(10)
    assert world.pump() == []
    assert world.one.back("d", 15) == "closed"
    assert len(world.fresh()) == 1  # one, then more
    world.later(2)
    assert len(world.pump()) == 10  # the first one's message is lost here, so it comes again


def test_a_driver_with_a_connected_worker_is_not_lost_after_a_wipe(world, redis_client):
    """COR-13: Redis forgot who is connected before the other worker told that it is not."""
    world.one.back("d", 15)
    world.two.back("d", 15)
    redis_client.flushall()
    world.queue.heartbeat()
    assert world.one.lost("d", "driver socket lost") == "lost"
    world.two.keep({"d": b"{}"}, {"d"}, ttl_seconds=15)
    assert world.two.states() == {}
    assert world.paused() == {}
    assert open_breaker(world) == "open"


def test_the_next_word_of_a_parted_worker_ends_lost_too(world, redis_client):
    """COR-13: also where the connected worker's own announcement came between."""
    world.one.lost("d", "driver socket lost")
    redis_client.zadd("csifleet:links:d", {"two": world.now + 15_000})
    assert world.one.lost("d", "driver socket lost") == "closed"


def test_a_worker_that_keeps_its_drivers_counts_as_connected(world):
    """What it says anew every few seconds, not only its first word."""
    world.two.keep({"d": b"{}"}, {"d"}, ttl_seconds=15)
    assert world.one.lost("d", "driver socket lost") == "closed"
    world.later(16)
    assert world.one.lost("d", "driver socket lost") == "lost"


def test_a_killed_process_does_not_count_as_connected_for_ever(world):
    world.one.back("d", 15)
    world.two.back("d", 15)
    world.later(16)
    assert world.one.lost("d", "gone") == "lost"


def test_too_much_halves_the_lane_down_to_one_and_it_recovers(world):
    assert world.one.throttle("claims|d") == 50
    assert world.two.throttle("claims|d") == 50  # calls that ran together fail together
    for expected in (25, 12, 6, 3, 1, 1):
        world.later(1.1)
        assert world.one.throttle("claims|d") == expected
    world.claims(100)
    assert len(world.fresh()) == 1
    world.later(5)
    assert len(world.pump()) == 3  # 2 % of the limit each 5 s; the first message comes again
    world.later(300)
    assert len(world.pump()) == 100


def test_calls_of_a_rate_take_turns_over_all_processes(world):
    world.queue.set_limits("claims|d", 100, rate_per_second=10, burst=2)
    waits = [each.pace("claims|d") for each in (world.one, world.two, world.one, world.two)]
    assert waits == [0, 0, 0.1, 0.2]
    world.later(10)
    assert [world.one.pace("claims|d") for _ in range(3)] == [0, 0, 0.1]
    assert world.one.pace("volumes|d") == 0


def test_a_serial_driver_has_one_call_of_any_kind_and_kinds_take_turns(world):
    for kind in ("claims", "volumes", "capacity"):
        world.queue.set_limits(f"{kind}|d", 1, total=1)
    world.queue.add([volume_key("d", f"pv{i}") for i in range(3)])
    world.claims(3)
    seen = []
    for _ in range(6):
        (ticket,) = world.fresh()
        seen.append(ticket.kind)
        world.queue.done(world.queue.take(ticket))
    assert seen == ["volumes", "claims"] * 3


def test_keep_announces_all_drivers_in_one_call(world, redis_client):
    registry = DriverRegistry(redis_client, now_ms=lambda: world.now)
    records = {f"d{i}": record_text({"name": f"d{i}"}) for i in range(200)}
    assert world.one.keep(records, records.keys(), ttl_seconds=15) is True
    assert world.one.keep(records, records.keys(), ttl_seconds=15) is False
    assert len(registry.alive()) == 200
    del records["d7"]
    world.later(10)
    world.one.keep(records, records.keys(), ttl_seconds=15)
    world.later(10)
    assert "d7" not in registry.alive()
    assert len(registry.alive()) == 199


def test_the_end_of_a_pause_is_told(world, redis_client):
    pauses = Pauses(redis_client, world.queue)
    pauses.mirror(Recorded("1", {"driver d": "0 new firmware"}))
    assert world.queue.stats()["claims|d"].paused_until == {}
    pauses.mirror(Recorded("2", {"driver d": f"{world.now + 60_000} new firmware"}))
    assert world.queue.stats()["claims|d"].paused_until == {"operator": world.now / 1000 + 60}


def test_pause_and_drain_of_a_driver(world, redis_client):
    pauses = Pauses(redis_client, world.queue)
    (key,) = world.claims(1)
    world.fresh()
    lease = world.queue.take(key)
    pauses.mirror(Recorded("1", {"driver d": "0 new firmware"}))
    assert pauses.draining("d") == 1
    world.claims(2, start=1)
    assert world.pump() == []
    assert world.paused() == {"operator": "new firmware"}
    world.queue.done(lease)
    assert pauses.draining("d") == 0
    pauses.mirror(Recorded("2"))
    assert len(world.fresh()) == 2


def test_one_claim_of_a_tenant_waits_for_no_flood_of_another(world):
    """10,000 against 1: it is the next one after the calls that run (issue 8)."""
    world.queue.set_limits("claims|d", 5)
    world.claims(10_000, "flood")
    running = world.fresh()
    assert len(running) == 5
    (single,) = world.claims(1, "small")
    assert world.fresh() == []
    world.queue.done(world.queue.take(running[0]))
    assert world.fresh() == [single]


def test_retries_of_a_flood_do_not_hold_up_first_attempts(world):
    world.queue.set_limits("claims|d", 1)
    world.claims(30, "flood")
    for _ in range(30):
        (ticket,) = world.fresh()
        world.queue.fail(world.queue.take(ticket), base_seconds=1, cap_seconds=1)
    world.later(2)
    (first_retry,) = world.pump()
    world.claims(10, "new")
    order = []
    ticket = first_retry
    for _ in range(12):
        world.queue.done(world.queue.take(ticket))
        (ticket,) = world.fresh()
        order.append(ticket.tenant)
    assert order.count("new") == 10
    assert order.count("flood") == 2


def test_the_bound_of_a_sweep_starves_no_lane(world):
    """A sweep admits 500 keys at most; each begins with another lane."""
    for kind in ("claims", "volumes"):
        world.queue.set_limits(f"{kind}|d", 5000)
        world.queue.pause(f"{kind}|d", "until all of them wait", seconds=1)
    world.claims(1100)
    world.queue.add([volume_key("d", f"pv{i}") for i in range(1100)])
    world.later(1)
    first = world.pump()
    world.later(0.1)
    second = world.pump()
    assert len(first) == len(second) == 500
    assert {key.kind for key in first} ^ {key.kind for key in second} == {"claims", "volumes"}

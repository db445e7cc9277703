"""Who comes before whom at a lock: the exclusive waiter in front, and its two seconds."""

from __future__ import annotations

import pytest

from tests.integration.queue.test_locks import PV, SHARED, key, start
from workers.queue.locks import Lock, Mode
from workers.queue.names import NAMES

NOW = 1_700_000_000_000
RESERVED, BLOCKED = NAMES["reserved"].full, NAMES["blocked"].full
HOLDERS, WAITERS = NAMES["holders"].full, NAMES["waiters"].full

WAITER, OURS = key("waiter").text, key("a").text


@pytest.fixture
def queue(start_queue):
    return start_queue()


@pytest.mark.parametrize(
    ("reserved", "waits_for", "is_taken"),
    [
        pytest.param(f"0 {WAITER}", "x:pv-1", False, id="parked"),
        pytest.param(f"0 {WAITER}", "s:pv-1", True, id="parked for a share of it"),
        pytest.param(f"0 {WAITER}", "x:other", True, id="parked for another"),
        pytest.param(f"0 {WAITER}", "", True, id="parked no more"),
        pytest.param(f"{NOW + 1} {WAITER}", "", False, id="woken"),
        pytest.param(f"{NOW} {WAITER}", "", True, id="woken and its time is over"),
        pytest.param(f"{NOW - 1} {WAITER}", "x:pv-1", True, id="over, and it waits again"),
        pytest.param(f"0 {OURS}", "", True, id="our own, parked"),
        pytest.param(f"{NOW + 1} {OURS}", "", True, id="our own, woken"),
    ],
)
def test_whom_a_new_shared_holder_lets_go_first(bench, queue, reserved, waits_for, is_taken):
    """MA-011: only an exclusive waiter that still waits, or was woken a moment ago."""
    queue.add([key("a")])
    bench.client.hset(RESERVED, PV.name, reserved)
    if waits_for:
        bench.client.hset(BLOCKED, WAITER, waits_for)
    lease = queue.take(bench.tickets.pop(), [SHARED])
    assert (lease is not None) == is_taken
    assert bench.client.hexists(RESERVED, PV.name) != is_taken, "what holds nobody up is gone"


@pytest.mark.parametrize("reserved", ["", "x", "0", f"x {WAITER}", f" {WAITER}"])
def test_a_place_that_nobody_can_read_is_none(bench, queue, reserved):
    """MA-011: somebody's hand wrote it; whoever wants a share drops it and goes on."""
    queue.add([key("a")])
    bench.client.hset(RESERVED, PV.name, reserved)
    assert queue.take(bench.tickets.pop(), [SHARED])
    assert not bench.client.exists(RESERVED)


def test_a_sweep_wakes_who_waits_for_a_share_behind_an_unreadable_place(bench, queue):
    """MA-011: else every sweep would fail there, and with it all that time makes due."""
    bench.client.hset(BLOCKED, OURS, "s:pv-1")
    bench.client.zadd(WAITERS, {f"pv-1\0{OURS}": 0})
    bench.client.hset(RESERVED, PV.name, "x")
    queue.pump(period_seconds=0)
    assert bench.tickets == [key("a")]
    assert not bench.client.exists(RESERVED)


def test_whoever_is_alone_asks_nobody_in_front(bench, queue):
    """An exclusive one may overtake another; its place stays."""
    bench.client.hset(RESERVED, PV.name, f"{NOW + 1} {WAITER}")
    assert start(bench, queue, "a", PV)
    assert bench.client.hget(RESERVED, PV.name) == f"{NOW + 1} {WAITER}".encode()


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param("", f"0 {OURS}", id="nobody"),
        pytest.param(f"0 {WAITER}", f"0 {WAITER}", id="another, parked"),
        pytest.param(f"{NOW + 1} {WAITER}", f"{NOW + 1} {WAITER}", id="another, woken"),
        pytest.param(f"{NOW} {WAITER}", f"0 {OURS}", id="another whose time is over"),
        pytest.param(f"0 {OURS}", f"0 {OURS}", id="itself, parked"),
        pytest.param(f"{NOW + 1} {OURS}", f"0 {OURS}", id="itself, woken"),
    ],
)
def test_the_first_exclusive_waiter_is_in_front(bench, queue, before, after):
    assert start(bench, queue, "holder", PV)
    if before:
        bench.client.hset(RESERVED, PV.name, before)
    assert start(bench, queue, "a", PV) is None
    assert bench.client.hget(RESERVED, PV.name) == after.encode()


def test_who_waits_for_a_share_is_never_in_front(bench, queue):
    assert start(bench, queue, "holder", PV)
    assert start(bench, queue, "a", SHARED) is None
    assert not bench.client.exists(RESERVED)


@pytest.mark.parametrize("is_woken", [False, True])
def test_who_gets_the_lock_leaves_its_place_and_nobody_elses(bench, queue, is_woken):
    until = NOW + 1 if is_woken else 0
    bench.client.hset(RESERVED, mapping={PV.name: f"{until} {OURS}", "pv-2": f"{until} {WAITER}"})
    assert start(bench, queue, "a", PV, Lock("pv-2"))
    assert bench.client.hgetall(RESERVED) == {b"pv-2": f"{until} {WAITER}".encode()}


def test_a_woken_waiter_has_two_seconds(bench, queue):
    lease = start(bench, queue, "holder", PV)
    assert start(bench, queue, "a", PV) is None
    bench.advance(1)
    queue.done(lease)
    assert bench.client.hget(RESERVED, PV.name) == f"{NOW + 3000} {OURS}".encode()
    assert bench.tickets == [key("a")]
    assert not bench.client.exists(BLOCKED)
    assert not bench.client.exists(WAITERS)


@pytest.mark.parametrize("mode", Mode)
def test_a_holder_whose_lease_is_nowhere_holds_nothing(bench, queue, mode):
    """Its record was lost by somebody's hand; it is swept out by whoever looks."""
    member = f"pv-1\0x{WAITER}"
    bench.client.zadd(HOLDERS, {member: 0})
    assert start(bench, queue, "a", Lock(PV.name, mode))
    assert bench.client.zrange(HOLDERS, 0, -1) == [f"pv-1\0{mode.value}{OURS}".encode()]


def test_a_lock_that_becomes_exclusive_is_held_once(bench, queue):
    lease = start(bench, queue, "a", SHARED, Lock("more"))
    assert queue.acquire(lease, PV) is None
    assert bench.client.zrange(HOLDERS, 0, -1) == [
        f"more\0x{OURS}".encode(),
        f"pv-1\0x{OURS}".encode(),
    ]
    locks = bench.client.hget(NAMES["leases"].full, OURS).split()[4:]
    assert locks == [b"x:more", b"x:pv-1"]


@pytest.mark.parametrize(
    ("until", "stays"), [(0, True), (NOW + 1, True), (NOW, False), (NOW - 1, False), ("x", False)]
)
def test_a_sweep_drops_places_whose_time_is_over(bench, queue, until, stays):
    """Those that nobody asks for any more, and what is no place at all."""
    bench.client.hset(RESERVED, "pv-9", f"{until} {WAITER}")
    queue.pump(period_seconds=0)
    assert bench.client.hexists(RESERVED, "pv-9") == stays


def test_a_sweep_wakes_who_waits_for_a_lock_that_nobody_holds(bench, queue):
    """The end of its holder was lost; who waits for a held one sleeps on."""
    assert start(bench, queue, "holder", PV)
    assert start(bench, queue, "a", PV) is None
    assert start(bench, queue, "other", Lock("pv-2"))
    assert start(bench, queue, "b", Lock("pv-2")) is None
    lease = key("other").text
    bench.client.hdel(NAMES["leases"].full, lease)
    bench.client.zrem(NAMES["leased"].full + "claims|d", lease)
    queue.pump(period_seconds=0)
    assert bench.tickets == [key("b")]
    assert bench.client.hkeys(BLOCKED) == [OURS.encode()]

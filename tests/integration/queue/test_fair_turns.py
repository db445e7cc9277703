"""The order in which keys are taken: tenants, kinds, retries and rates (G11, G12)."""

from __future__ import annotations

import pytest

from tests.support.taking import take_all
from workers.queue.keys import Key, claim_key, volume_key
from workers.queue.kinds import KINDS, place_of
from workers.queue.names import NAMES

CALL_KINDS = [kind.name for kind in KINDS if kind.calls_driver]
LANE = "claims|d"


def kinds_in(place: str) -> list[str]:
    """Return the kinds whose work is announced in one Celery list."""
    return [kind for kind in CALL_KINDS if place_of("d", kind) == place]


def claim(name: str, namespace: str = "ns") -> Key:
    return claim_key("d", namespace, name, f"uid-{name}")


def names(queue) -> list[str]:
    """Take all keys that can be taken now and return their objects in order; they keep running."""
    return [lease.key.object for lease in take_all(queue, "d", "claims", "volumes")]


def make_retries(bench, queue, *names_):
    """Make keys that failed once and are due again."""
    queue.add([claim(name) for name in names_])
    for _ in names_:
        queue.fail(queue.take("d", ["claims"]), base_seconds=1, cap_seconds=1)
    bench.advance(1)
    queue.heartbeat()


def test_a_tenant_that_comes_late_has_no_claim_to_the_turns_before(bench, start_queue):
    """G12: a tenant that arrives late takes turns
    with the waiting tenants, and does not catch up.
    """
    queue = start_queue(concurrency=1)
    queue.add([claim(f"a{number}", "early") for number in range(8)])
    for _ in range(4):
        queue.done(bench.run_next(queue))
    queue.add([claim(f"b{number}", "late") for number in range(4)])
    order = []
    for _ in range(6):
        lease = bench.run_next(queue)
        order.append(lease.key.tenant)
        queue.done(lease)
    assert order[1:] in (["early", "late"] * 2 + ["early"], ["late", "early"] * 2 + ["late"])


def test_turns_are_forgotten_when_nobody_waits(bench, start_queue):
    queue = start_queue(concurrency=2)
    queue.add([claim(name) for name in "ab"])
    share = NAMES["share"].full + LANE
    assert bench.client.exists(share)
    take_all(queue, "d", "claims")
    assert not bench.client.exists(share)


def test_kinds_of_a_driver_with_one_call_at_a_time_go_round_in_their_order(bench):
    """G11: the kinds of a driver with one call at a time take turns in a fixed order."""
    queue = bench.process()
    for kind in CALL_KINDS:
        queue.set_limits(f"{kind}|d", 1, total=1)
    queue.add([Key(kind, "d", f"object{i}", f"u{i}") for i in range(2) for kind in CALL_KINDS])
    order = []
    apart = {place_of("d", kind): kinds_in(place_of("d", kind)) for kind in CALL_KINDS}
    for _ in range(2 * len(CALL_KINDS)):
        taken = [lease for kinds in apart.values() for lease in take_all(queue, "d", *kinds)]
        (lease,) = taken
        order.append(lease.key.kind)
        queue.done(lease)
    start = CALL_KINDS.index(order[0])
    assert len(CALL_KINDS) > 2
    assert order == (CALL_KINDS[start:] + CALL_KINDS[:start]) * 2


@pytest.mark.parametrize(
    ("rate", "burst", "taken"), [(4, 1, 2), (2, 1, 1), (8, 1, 3), (4, 2, 3), (0, 1, 9)]
)
def test_a_rate_allows_its_burst_and_the_next_quarter_second(
    bench, start_queue, rate, burst, taken
):
    """A rate allows its burst and the tokens of the next quarter second.

    Exactly one token is enough for a call.
    """
    queue = start_queue(concurrency=9, rate_per_second=rate, burst=burst)
    queue.add([claim(str(number)) for number in range(9)])
    assert len(take_all(queue, "d", "claims")) == taken


def test_first_attempts_go_on_where_the_retries_end(bench, start_queue):
    queue = start_queue(concurrency=40)
    make_retries(bench, queue, "bad")
    queue.pump(period_seconds=0)
    queue.add([claim(f"new{number:02}") for number in range(20)])
    found = names(queue)
    assert len(found) == 21
    assert found.index("ns/bad") == 4, "it was a first attempt once, the fifth before its turn"


def test_retries_go_on_where_the_first_attempts_end(bench, start_queue):
    queue = start_queue(concurrency=40)
    make_retries(bench, queue, "bad1", "bad2", "bad3")
    queue.pump(period_seconds=0)
    queue.add([claim("new")])
    assert sorted(names(queue)) == ["ns/bad1", "ns/bad2", "ns/bad3", "ns/new"]


def test_five_first_attempts_lie_between_two_retries(bench, start_queue):
    """G12: there are five first attempts between two
    retries, counted from the last retry that was taken.
    """
    queue = start_queue(concurrency=40)
    make_retries(bench, queue, *(f"bad{number}" for number in range(5)))
    queue.pump(period_seconds=0)
    assert len(take_all(queue, "d", "claims")) == 5
    for lease in [*queue._leases.held.values()]:
        queue.release(lease)
    first = queue.take("d", ["claims"])
    assert first.key.object.startswith("ns/bad")
    queue.add([claim(f"new{number}") for number in range(6)])
    kinds = [name[3:6] for name in names(queue)]
    assert kinds[:7] == ["new"] * 5 + ["bad", "new"]


def test_the_lanes_of_a_driver_share_its_total(bench):
    """G11: the lanes of a driver share its total, so a running
    key of one kind leaves one call less for all others.
    """
    queue = bench.process()
    for kind in ("claims", "volumes"):
        queue.set_limits(f"{kind}|d", 3, total=4)
    queue.add([claim(str(number)) for number in range(5)])
    queue.add([volume_key("d", f"pv{number}") for number in range(5)])
    taken = [lease.key.kind for lease in take_all(queue, "d", "claims", "volumes")]
    assert sorted(taken) == ["claims"] * 2 + ["volumes"] * 2, "kinds take turns"


def test_a_member_that_is_no_key_leaves_nothing_behind(bench, start_queue):
    """A member that is not a key is removed with the stored time of its wait."""
    queue = start_queue()
    bench.client.zadd(NAMES["ready"].full + LANE, {"no key": 0})
    bench.client.hset(NAMES["since"].full, "no key", bench.now_ms)
    queue.add([claim("a")])
    assert names(queue) == ["ns/a"]
    assert not bench.client.exists(NAMES["since"].full)


def test_a_lease_tells_how_long_its_key_waited(bench, start_queue):
    queue = start_queue(concurrency=1)
    queue.add([claim("a"), claim("b")])
    first = queue.take("d", ["claims"])
    bench.advance(1.25)
    queue.heartbeat()
    queue.done(first)
    assert (first.waited_seconds, queue.take("d", ["claims"]).waited_seconds) == (0, 1.25)


ATTACHER = ("attachments", "detachments", "attach-finalizers")
ATTACHMENT = Key("attachments", "d", "va", "u")


def serial_queue(bench, *kinds: str):
    """Return a queue of a driver that takes one call at a time, with limits for these kinds."""
    queue = bench.process()
    for kind in kinds:
        is_call = kind in CALL_KINDS
        queue.set_limits(f"{kind}|d", 1 if is_call else 9, total=1 if is_call else 0)
    return queue


def grants_before(queue, key: Key, asks) -> int:
    """Return how many other calls run before this key's call, while `asks` repeat.

    Each ask is the kinds of one worker. A call ends when the next worker of its kind asks.
    """
    grants, running = 0, None
    while grants < 20:
        for kinds in asks:
            if running is not None and running.key.kind in kinds:
                queue.done(running)
                running = None
            lease = queue.take("d", kinds)
            if lease is None:
                continue
            assert queue.enter(lease, ())
            if lease.key == key:
                return grants
            if lease.key.kind not in CALL_KINDS:
                queue.done(lease)
                continue
            running, grants = lease, grants + 1
    return grants


def test_keys_without_calls_move_no_turn_of_a_serial_driver(bench):
    """Keys without calls do not change a serial driver's turn: an attachment is next, however many
    finalizers its workers remove meanwhile.
    """
    queue = serial_queue(bench, "claims", *ATTACHER)
    queue.add([claim(f"a{number}") for number in range(30)])
    queue.add([Key("attach-finalizers", "d", f"pv{number}") for number in range(60)])
    asks = [("claims",), ATTACHER]
    first = queue.take("d", ("claims",))
    queue.enter(first, ())
    queue.add([ATTACHMENT])
    queue.take("d", ATTACHER)
    queue.done(first)
    assert grants_before(queue, ATTACHMENT, asks) <= 1


def test_a_call_is_kept_for_two_seconds_for_a_kind_that_nobody_works_on(bench):
    """A serial driver keeps a call free for a kind for two seconds.

    Then the other kinds continue, because the kind's workers may be gone.
    """
    queue = serial_queue(bench, "claims", "changes")
    queue.add([Key("changes", "d", "ns/grows", "u"), claim("a"), claim("b"), claim("c")])
    queue.done(queue.take("d", ("claims",)))
    assert queue.take("d", ("claims",)) is None, "the turn of the resizer"
    bench.advance(1.9)
    queue.heartbeat()
    assert queue.take("d", ("claims",)) is None
    bench.advance(0.2)
    queue.heartbeat()
    queue.done(queue.take("d", ("claims",)))
    assert queue.take("d", ("claims",)) is not None, "its turn is not kept a second time"


def test_a_kind_whose_workers_were_slow_has_its_turn_when_they_ask(bench):
    queue = serial_queue(bench, "claims", *ATTACHER)
    queue.add([ATTACHMENT, *(claim(name) for name in "abcd")])
    queue.done(queue.take("d", ("claims",)))
    assert queue.take("d", ("claims",)) is None
    bench.advance(2.1)
    queue.heartbeat()
    second = queue.take("d", ("claims",))
    assert queue.take("d", ATTACHER) is None, "the one call runs"
    queue.done(second)
    assert queue.take("d", ("claims",)) is None, "they have asked, so it is kept again"
    assert queue.take("d", ATTACHER).key == ATTACHMENT


@pytest.mark.parametrize("damaged", ["9" * 30, f"{'9' * 30} 2000", "1700000000000", "x 1", ""])
def test_damaged_turns_do_not_stop_a_serial_driver(bench, damaged):
    """A fraction between two kinds is rounded, and a time in the future restarts now."""
    queue = serial_queue(bench, "claims", "changes")
    lane = "changes|d"
    damage = {"d": "1.5", "drv.d": "x", "drv.d#resizer": "-7.25", lane: damaged}
    bench.client.hset(NAMES["turns"].full, mapping=damage)
    queue.add([Key("changes", "d", "ns/grows", "u"), claim("a"), claim("b")])
    assert queue.take("d", ("claims",)) is None
    assert bench.client.hget(NAMES["turns"].full, lane) == f"{bench.now_ms} 2000".encode()
    bench.advance(2.1)
    queue.heartbeat()
    queue.done(queue.take("d", ("claims",)))
    assert queue.take("d", ("changes",)) is not None


def test_a_hold_that_was_damaged_ends_after_thirty_seconds(bench):
    queue = serial_queue(bench, "claims", "changes")
    bench.client.hset(NAMES["turns"].full, "changes|d", f"{bench.now_ms} {'9' * 20}")
    queue.add([Key("changes", "d", "ns/grows", "u"), claim("a"), claim("b")])
    queue.done(queue.take("d", ("claims",)))
    bench.advance(30.1)
    queue.heartbeat()
    assert queue.take("d", ("claims",)) is not None


@pytest.mark.parametrize("lag", [2.5, 5, 12])
def test_a_kind_whose_workers_always_come_late_has_turns_too(bench, lag):
    """Their threads are busy with other drivers, and claims run one after the other meanwhile."""
    queue = serial_queue(bench, "claims", *ATTACHER)
    queue.add([claim(str(number)) for number in range(300)])
    queue.add([Key("attachments", "d", f"va{number}", f"u{number}") for number in range(30)])
    done = {"claims": 0, "attachments": 0}
    running, next_ask = None, bench.now_ms + 1000 * lag
    end = bench.now_ms + 120_000
    while bench.now_ms < end:
        if running is not None:
            done[running.key.kind] += 1
            queue.done(running)
        running = queue.take("d", ("claims",))
        if bench.now_ms >= next_ask:
            running = running or queue.take("d", ATTACHER)
            if running is None or running.key.kind == "claims":
                assert queue.take("d", ATTACHER) is None
            next_ask = bench.now_ms + 1000 * lag
        bench.advance(0.5)
        queue.heartbeat()
    assert done["attachments"] >= 120 / lag / 3
    assert done["claims"] >= 20


def test_a_kind_whose_workers_died_after_they_came_late_costs_one_long_hold(bench):
    queue = serial_queue(bench, "claims", *ATTACHER)
    queue.add([ATTACHMENT, *(claim(str(number)) for number in range(200))])
    queue.done(queue.take("d", ("claims",)))
    assert queue.take("d", ("claims",)) is None
    bench.advance(600)
    queue.heartbeat()
    running = queue.take("d", ("claims",))
    assert queue.take("d", ATTACHER) is None, "they come back, and die at once"
    queue.done(running)
    idle = 0
    for _ in range(100):
        running = queue.take("d", ("claims",))
        idle += running is None
        if running is not None:
            queue.done(running)
        bench.advance(1)
        queue.heartbeat()
    assert idle == 31

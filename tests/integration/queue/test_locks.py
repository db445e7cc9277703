"""Several locks of one lease, shared and exclusive, taken with the key or inside a pass."""

from __future__ import annotations

import pytest

from tests.support.taking import take, take_all
from workers.errors import LeaseLost, RecordTooLarge
from workers.queue.inspect import read_key
from workers.queue.keys import Key, claim_key
from workers.queue.locks import Lock, Mode
from workers.queue.names import NAMES

PV = Lock("pv-1")
SHARED = Lock("pv-1", Mode.SHARED)
HANDLE = Lock("d#vol 1%")
HOLDERS = NAMES["holders"].full


def key(name: str) -> Key:
    return claim_key("d", "ns", name, f"uid-{name}")


@pytest.fixture
def queue(start_queue):
    return start_queue()


def start(bench, queue, name: str, *locks: Lock):
    """Add a key and take it with these locks."""
    queue.add([key(name)])
    return take(queue, key(name), *locks)


def ready(bench) -> list[str]:
    """Return the objects of the keys that are due, the next one first."""
    return [one.object.removeprefix("ns/") for one in bench.due]


def test_shared_holders_stand_side_by_side_an_exclusive_one_alone(bench, queue):
    """MA-011: a volume can be published to two nodes at once, but not while it is deleted."""
    first, second = start(bench, queue, "a", SHARED), start(bench, queue, "b", SHARED)
    assert first.locks == second.locks == (SHARED,)
    assert start(bench, queue, "x", PV) is None
    queue.done(first)
    assert ready(bench) == [], "one holder is left"
    queue.done(second)
    assert ready(bench) == ["x"]
    assert take(queue, key("x"), PV)
    assert start(bench, queue, "c", SHARED) is None


def test_all_locks_of_a_take_or_none(bench, queue):
    holder = start(bench, queue, "a", HANDLE)
    assert start(bench, queue, "b", PV, HANDLE) is None
    assert start(bench, queue, "c", PV), "a key that waits holds nothing"
    queue.done(holder)
    assert ready(bench) == ["b"]
    assert take(queue, key("b"), PV, HANDLE) is None


def test_a_key_that_was_woken_waits_for_what_it_found_busy_next(bench, queue):
    """A woken key waits only for the lock that it found busy next.

    Otherwise each release of the first lock would wake it again.
    """
    first, second = start(bench, queue, "a", PV), start(bench, queue, "c", HANDLE)
    assert start(bench, queue, "b", PV) is None
    queue.done(first)
    assert ready(bench) == ["b"]
    assert take(queue, key("b"), PV, HANDLE) is None
    queue.done(start(bench, queue, "d", PV))
    assert ready(bench) == []
    queue.done(second)
    assert ready(bench) == ["b"]


def test_only_a_holder_keeps_others_out(bench, queue):
    """A publish hangs and the deletion waits, but a detach from another node does not wait."""
    publish = start(bench, queue, "publish to a", SHARED, Lock("d#vol@a"))
    assert start(bench, queue, "deletion", PV) is None
    detach = start(bench, queue, "detach from b", SHARED, Lock("d#vol@b"))
    assert detach
    queue.done(detach)
    assert ready(bench) == []
    queue.done(publish)
    assert ready(bench) == ["deletion"]
    assert take(queue, key("deletion"), PV)


@pytest.mark.parametrize("waiters", [(1, 0), (0, 1), (2, 2)], ids=str)
@pytest.mark.parametrize("is_new_life", [False, True], ids=["", "Redis was restarted"])
def test_many_waiters_keep_nobody_out_and_all_come_when_a_hanging_call_ends(
    bench, queue, waiters, is_new_life
):
    """Waiting keys keep no other key out, and all wake when the holder's call ends.

    Some asked before their pass and some inside it.
    """
    before, inside = waiters
    hanging = start(bench, queue, "hanging publish", SHARED)
    names = [f"deletion {number}" for number in range(before)]
    assert [start(bench, queue, name, PV) for name in names] == [None] * before
    for number in range(inside):
        lease = start(bench, queue, f"expansion {number}")
        assert queue.acquire(lease, PV) == PV
        queue.block(lease, PV)
        names.append(f"expansion {number}")
    if is_new_life:
        bench.client.delete(NAMES["epoch"].full)
        assert not queue.heartbeat()
        bench.advance(4.1)
        assert not queue.heartbeat()
    for number in range(5):
        detach = start(bench, queue, f"detach {number}", SHARED, Lock(f"d#vol@{number}"))
        assert detach, number
        queue.done(detach)
    assert ready(bench) == []
    queue.done(hanging)
    left = sorted(names)
    assert sorted(ready(bench)) == left
    while left:
        lease = take(queue, key(left.pop(0)), PV)
        assert lease
        assert all(take(queue, key(one), PV) is None for one in left)
        queue.done(lease)


def test_a_chain_of_waiters_goes_on_when_the_process_at_its_end_dies(bench, start_queue):
    """A chain of waiting keys continues when its last process dies: `a` waits for a lock of `b`,
    and `b` for a lock of the dead process.
    """
    dead, alive = start_queue(), start_queue()
    start(bench, dead, "c", HANDLE)
    b = start(bench, alive, "b", PV)
    assert start(bench, alive, "a", PV) is None
    assert alive.acquire(b, HANDLE) == HANDLE
    alive.block(b, HANDLE)
    assert ready(bench) == ["a"], "who waits gives back what it held"
    alive.done(take(alive, key("a"), PV))
    bench.advance(4.1)
    alive.heartbeat()
    alive.pump(period_seconds=0)
    assert sorted(ready(bench)) == ["b", "c"]
    assert take(alive, key("b"), PV, HANDLE)


def test_a_waiter_that_asked_inside_its_pass_keeps_nobody_out(bench, queue):
    """A key that asked for a lock inside its pass keeps no sharer out.

    An expansion, for example, asks after it has read the volume.
    """
    publish = start(bench, queue, "publish to a", SHARED)
    expansion = start(bench, queue, "expansion")
    assert queue.acquire(expansion, PV) == PV
    queue.block(expansion, PV)
    assert start(bench, queue, "detach from b", SHARED)
    inside = start(bench, queue, "snapshot")
    assert queue.acquire(inside, SHARED) is None
    queue.done(publish)
    assert ready(bench) == []


def test_a_woken_waiter_whose_driver_is_paused_keeps_nobody_out(bench, queue):
    first = start(bench, queue, "a", SHARED)
    assert start(bench, queue, "deletion", PV) is None
    queue.pause("claims|d", "by hand")
    queue.done(first)
    assert ready(bench) == ["deletion"]
    assert take_all(queue, "d", "claims") == []
    other = Key("attachments", "d", "va-1", "uid-va")
    queue.set_limits(other.lane, 1)
    queue.add([other])
    assert take(queue, other, SHARED)


def test_of_several_exclusive_waiters_none_is_forgotten(bench, queue):
    first, second = start(bench, queue, "a", SHARED), start(bench, queue, "b", SHARED)
    assert start(bench, queue, "x", PV) is None
    assert start(bench, queue, "y", PV) is None
    queue.done(first)
    queue.done(second)
    assert sorted(ready(bench)) == ["x", "y"]
    lease = take(queue, key("x"), PV)
    assert take(queue, key("y"), PV) is None
    queue.done(lease)
    assert ready(bench) == ["y"]
    assert take(queue, key("y"), PV)


@pytest.mark.parametrize("mode", Mode)
def test_a_holder_whose_lease_is_nowhere_holds_nothing(bench, queue, mode):
    """A holder without a lease, whose record was removed by hand, holds nothing.

    The next key that asks removes the holder.
    """
    bench.client.zadd(HOLDERS, {f"pv-1\0x{key('gone').text}": 0})
    assert start(bench, queue, "a", Lock(PV.name, mode))
    assert bench.client.zrange(HOLDERS, 0, -1) == [f"pv-1\0{mode.value}{key('a').text}".encode()]


def test_a_lock_that_becomes_exclusive_is_held_once(bench, queue):
    lease, ours = start(bench, queue, "a", SHARED, Lock("more")), key("a").text
    assert queue.acquire(lease, PV) is None
    assert bench.client.zrange(HOLDERS, 0, -1) == [
        f"more\0x{ours}".encode(),
        f"pv-1\0x{ours}".encode(),
    ]
    locks = bench.client.hget(NAMES["leases"].full, ours).split()[4:]
    assert locks == [b"x:more", b"x:pv-1"]


def test_a_sweep_wakes_who_waits_for_a_lock_that_nobody_holds(bench, queue):
    """A sweep wakes a key that waits for a lock without a holder.

    A key that waits for a held lock keeps waiting.
    """
    assert start(bench, queue, "holder", PV)
    assert start(bench, queue, "a", PV) is None
    assert start(bench, queue, "other", Lock("pv-2"))
    assert start(bench, queue, "b", Lock("pv-2")) is None
    lease = key("other").text
    bench.client.hdel(NAMES["leases"].full, lease)
    bench.client.zrem(NAMES["leased"].full + "claims|d", lease)
    queue.pump(period_seconds=0)
    assert ready(bench) == ["b"]
    assert bench.client.hkeys(NAMES["blocked"].full) == [key("a").text.encode()]


def test_lock_taken_inside_a_pass_goes_with_the_lease(bench, queue):
    lease = start(bench, queue, "a", PV)
    assert queue.acquire(lease, HANDLE) is None
    assert queue.acquire(lease, HANDLE) is None, "what is held is held"
    assert lease.locks == (PV, HANDLE)
    assert start(bench, queue, "b", HANDLE) is None
    queue.release(lease, delay_seconds=60)
    assert ready(bench) == ["b"]


def test_busy_lock_inside_a_pass_takes_none_and_names_it(bench, queue):
    other, lease = start(bench, queue, "o", HANDLE), start(bench, queue, "a", PV)
    assert queue.acquire(lease, Lock("free"), HANDLE) == HANDLE
    assert start(bench, queue, "b", Lock("free")), "nothing was taken"
    assert queue.block(lease, HANDLE)
    assert read_key(bench.client, lease.key).blocked_by == other.key.text
    assert start(bench, queue, "c", PV), "it gave back what it held"
    queue.done(other)
    assert ready(bench) == ["a"]
    assert take(queue, key("a"), PV) is None


def test_lock_that_got_free_meanwhile_lets_the_key_go_on_at_once(bench, queue):
    other, lease = start(bench, queue, "o", HANDLE), start(bench, queue, "a", PV)
    assert queue.acquire(lease, HANDLE) == HANDLE
    queue.done(other)
    queue.block(lease, HANDLE)
    assert ready(bench) == ["a"]
    again = take(queue, key("a"), PV)
    assert again.fails == 0, "waiting for a lock counts no failure"


def test_shared_lock_becomes_exclusive_when_alone(bench, queue):
    lease, other = start(bench, queue, "a", SHARED), start(bench, queue, "b", SHARED)
    assert queue.acquire(lease, PV) == PV
    queue.done(other)
    assert queue.acquire(lease, PV) is None
    assert lease.locks == (PV,)
    assert queue.acquire(lease, SHARED) is None, "more than that is held already"
    assert start(bench, queue, "c", SHARED) is None
    queue.done(lease)
    assert ready(bench) == ["c"]


def test_lock_held_alone_stays_so_when_a_fail_over_forgot_it(bench, queue):
    """G9: an exclusive lock that a promoted replica lost
    stays exclusive, although the pass now asks to share it.
    """
    lease = start(bench, queue, "a", HANDLE)
    lease.locks = (*lease.locks, PV)
    assert queue.acquire(lease, SHARED) is None
    assert lease.locks == (HANDLE, PV)
    assert start(bench, queue, "b", SHARED) is None


def test_lock_given_back_early_wakes_its_waiters(bench, queue):
    lease = start(bench, queue, "a", PV, HANDLE)
    assert start(bench, queue, "b", HANDLE) is None
    queue.unlock(lease, HANDLE.name)
    queue.unlock(lease, "never held")
    assert lease.locks == (PV,)
    assert ready(bench) == ["b"]
    assert take(queue, key("b"), HANDLE)
    lease.check()


def test_locks_of_a_dead_process_go_with_its_leases(bench, start_queue):
    one, two = start_queue(), start_queue()
    lease = start(bench, one, "a", PV)
    one.acquire(lease, HANDLE)
    assert start(bench, two, "b", HANDLE) is None
    bench.advance(4.1)
    two.heartbeat()
    two.pump(period_seconds=0)
    assert sorted(ready(bench)) == ["a", "b"]
    assert take(two, key("b"), HANDLE)
    assert take(two, key("a"), PV)
    for lost in (lambda: one.acquire(lease, Lock("more")), lambda: one.mark(lease, {"a": 1})):
        with pytest.raises(LeaseLost):
            lost()


def test_nothing_is_taken_or_written_after_the_local_deadline(bench, queue):
    """G9: after the local deadline nothing is taken or written, although Redis would still allow
    it: the reply may arrive too late.
    """
    lease = start(bench, queue, "a", PV)
    bench.advance(lease.valid_until - bench.now_ms / 1000)
    for late in (lambda: queue.acquire(lease, HANDLE), lambda: queue.mark(lease, {"a": 1})):
        with pytest.raises(LeaseLost):
            late()
    assert lease.locks == (PV,)
    assert queue.done(lease), "to Redis it was the owner until the end"
    follower = start(bench, queue, "a", HANDLE)
    assert follower is not None
    assert follower.mark == {}


def test_redis_itself_refuses_locks_and_marks_of_a_lost_lease(bench, start_queue):
    """Redis itself refuses locks and marks of a lost lease, because the local clock can be slow."""
    one, two = start_queue(), start_queue()
    lease = start(bench, one, "a", PV)
    bench.advance(4.1)
    two.heartbeat()
    two.pump(period_seconds=0)
    assert take(two, bench.due.pop(), PV)
    lease.valid_until += 60
    lease.check()
    with pytest.raises(LeaseLost):
        one.acquire(lease, HANDLE)
    with pytest.raises(LeaseLost):
        one.mark(lease, {"a": 1})
    one.unlock(lease, PV.name)
    assert not one.block(lease, PV)
    assert start(bench, two, "b", PV) is None, "the new owner's lock stayed"


@pytest.mark.parametrize("name", ["a b", "ü%20", "tab\there", "x:y", "nul\0", "d#vol/1"])
def test_any_name_can_be_locked(bench, queue, name):
    """A lock can have any name, because handles come from drivers and can contain any character."""
    lease = start(bench, queue, "a", Lock(name))
    assert start(bench, queue, "b", Lock(name, Mode.SHARED)) is None
    assert start(bench, queue, "c", Lock(name + "x"))
    queue.unlock(lease, name)
    assert ready(bench) == ["b"]


def test_mark_reaches_the_next_lease_until_the_object_is_gone(bench, queue):
    lease = start(bench, queue, "a")
    assert lease.mark == {}
    queue.mark(lease, {"in_use": True})
    queue.done(lease)
    lease = start(bench, queue, "a")
    assert lease.mark == {"in_use": True}
    queue.mark(lease, {})
    assert lease.mark == {}
    queue.done(lease)
    lease = start(bench, queue, "a")
    assert lease.mark == {}
    queue.mark(lease, {"again": 1})
    queue.done(lease)
    queue.forget([key("a")])
    assert start(bench, queue, "a").mark == {}


def test_large_mark_is_refused_and_a_broken_one_set_aside(bench, queue, caplog):
    lease = start(bench, queue, "a")
    with pytest.raises(RecordTooLarge, match="at most 64 KiB"):
        queue.mark(lease, {"text": "x" * 65536})
    queue.release(lease, delay_seconds=60)
    bench.client.hset(NAMES["marks"].full + "d", key("a").text, "{oops")
    assert start(bench, queue, "a").mark == {}
    assert [record.fields["field"] for record in caplog.records] == [key("a").text]


def test_work_without_a_driver_has_limits_and_a_queue_of_its_own(bench, queue):
    """Keys of snapshot-controller have lane `<kind>|`, announced in `drv.system-<kind>`."""
    keys = [Key("snapshots", "", f"ns/{i}", str(i)) for i in range(3)]
    queue.add(keys)
    assert take_all(queue, "", "snapshots") == []
    queue.set_limits(keys[0].lane, 2)
    assert bench.woken == ["drv.system-snapshots"]
    assert [lease.key for lease in take_all(queue, "", "snapshots")] == keys[:2]

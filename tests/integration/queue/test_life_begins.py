"""The start of a new epoch of Redis: its quiet period, its fencing numbers, and the leases."""

from __future__ import annotations

import pytest

from workers.queue.keys import Key, claim_key
from workers.queue.locks import Lock
from workers.queue.names import NAMES
from workers.queue.scripts import Scripts

NOW = 1_700_000_000_000
TTL = 4000
EPOCH, QUIET, FENCE = (NAMES[name].full for name in ("epoch", "quiet", "fence"))
LEASES, LOST, PROCS = (NAMES[name].full for name in ("leases", "lost", "procs"))


def claim(name: str) -> Key:
    return claim_key("d", "ns", name, f"uid-{name}")


@pytest.fixture
def scripts(bench):
    return Scripts(bench.client, lambda: bench.now_ms)


def number(client, name):
    """Return the stored value as a number, or None if it is missing."""
    value = client.get(name)
    return None if value is None else int(value)


@pytest.mark.parametrize(
    ("epoch", "has_lease", "process_ended", "is_quiet"),
    [
        pytest.param("", True, 1, False, id="data without an epoch"),
        pytest.param("old:5:otherrun", False, None, False, id="nobody lived"),
        pytest.param("old:5:otherrun", True, None, True, id="a lease was held"),
        pytest.param("old:5:otherrun", False, TTL, True, id="a process lives"),
        pytest.param("old:5:otherrun", False, -59_999, True, id="one lived within the minute"),
        pytest.param("old:5:otherrun", False, -60_000, True, id="a minute ago"),
        pytest.param("old:5:otherrun", False, -60_001, False, id="longer ago"),
    ],
)
def test_a_new_life_is_silent_if_somebody_may_have_something_to_give_back(
    bench, scripts, epoch, has_lease, process_ended, is_quiet
):
    """A new epoch has a quiet period of one TTL if a process may have a lease to give back.

    No lease expires in it either.
    """
    if epoch:
        bench.client.set(EPOCH, epoch)
    if has_lease:
        bench.client.hset(LEASES, claim("a").text, "7 process token 5")
    if process_ended is not None:
        bench.client.zadd(PROCS, {"process": NOW + process_ended})
    found = scripts.run("epoch", "new", "", TTL).decode()
    run_id = bench.client.info("server")["run_id"]
    assert found == bench.client.get(EPOCH).decode() == f"new:{NOW}:{run_id}"
    assert number(bench.client, QUIET) == (NOW + TTL if is_quiet else None)


@pytest.mark.parametrize("later", [1, TTL - 1, TTL + 5])
def test_who_knew_another_life_makes_it_silent_from_its_birth(bench, scripts, later):
    """A process that knew another epoch starts the quiet period, however late it connects: others
    may hold leases of that epoch.
    """
    epoch = scripts.run("epoch", "new", "", TTL)
    bench.now_ms += later
    for known in ("", epoch):
        assert scripts.run("epoch", "other", known, TTL) == epoch
        assert number(bench.client, QUIET) is None
    assert scripts.run("epoch", "other", "earlier:5:run", TTL) == epoch
    assert number(bench.client, QUIET) == NOW + TTL


def test_a_silence_is_never_shortened(bench, scripts):
    bench.client.set(QUIET, NOW + 9 * TTL)
    scripts.run("epoch", "new", "earlier:5:run", TTL)
    assert number(bench.client, QUIET) == NOW + 9 * TTL


def test_the_silence_ends_with_its_last_millisecond(bench, start_queue):
    queue = start_queue()
    bench.client.set(QUIET, NOW + 100)
    queue.add([claim("a")])
    bench.now_ms += 99
    assert not bench.may_take(queue)
    bench.now_ms += 1
    assert bench.may_take(queue)


@pytest.mark.parametrize(
    ("stored", "fence"), [(None, NOW), (5, NOW), (NOW - 1, NOW), (NOW + 5, NOW + 5), ("x", NOW)]
)
def test_fences_of_a_new_life_are_above_all_earlier_ones(bench, scripts, stored, fence):
    """G9: the first fencing number of an epoch is above all
    earlier ones, although the clock or the counter can be behind.
    """
    if stored is not None:
        bench.client.set(FENCE, stored)
    scripts.run("epoch", "new", "", TTL)
    assert number(bench.client, FENCE) == fence


@pytest.mark.parametrize("damage", ["lost", "no number", "a list", "none"])
def test_fences_grow_though_their_counter_is_damaged(bench, start_queue, damage):
    """Fencing numbers grow although their counter is damaged.

    The time replaces the counter, and counting continues from it.
    """
    queue = start_queue()
    queue.add([claim(name) for name in "abc"])
    before = bench.run_next(queue).fence
    bench.advance(1)
    if damage != "none":
        bench.client.delete(FENCE)
    if damage == "no number":
        bench.client.set(FENCE, "x")
    elif damage == "a list":
        bench.client.rpush(FENCE, "x")
    after, last = bench.run_next(queue).fence, bench.run_next(queue).fence
    assert after == (before + 1 if damage == "none" else bench.now_ms)
    assert last == after + 1


def regain(scripts, key, fence, *records, token="token", locks="x:pv", process="p"):
    """Give back one lease of a process and return the tokens that the process lost."""
    one = (key.text, fence, token, NOW - 50, locks, len(records), *(p for r in records for p in r))
    reply = scripts.run("regain", process, "new", "known:5:run", TTL, *one)
    return [found.decode() for found in reply[2]]


@pytest.mark.parametrize(("fence", "is_ours"), [(8, True), (7, False), (6, False)])
@pytest.mark.parametrize("other", ["a", "b"])
def test_the_higher_fence_has_the_key_and_its_locks(bench, scripts, fence, is_ours, other):
    """When leases are given back, the higher fencing number gets the key and its locks.

    An equal number is not newer.
    """
    regain(scripts, claim(other), 7, token="theirs", process="q")
    lost = regain(scripts, claim("a"), fence, ("intents", "pv", "seal:ns:r"), token="ours")
    loser, winner = ("theirs", "ours") if is_ours else ("ours", "theirs")
    assert lost == ([] if is_ours else ["ours"])
    assert bench.client.zrange(LOST, 0, -1, withscores=True) == [(loser.encode(), NOW)]
    leases = [raw.split() for raw in bench.client.hvals(LEASES)]
    assert [raw[2].decode() for raw in leases] == [winner]
    owner = claim("a" if is_ours else other).text
    assert bench.client.zrange(NAMES["holders"].full, 0, -1) == [f"pv\0x{owner}".encode()]
    assert bench.client.hexists(NAMES["intents"].full + "d", "pv") == is_ours
    assert int(bench.client.get(FENCE)) == NOW, "it is above both"


def test_what_was_taken_back_is_not_restored(bench, scripts):
    bench.client.zadd(LOST, {"token": NOW - 1000})
    assert regain(scripts, claim("a"), 9) == ["token"]
    assert not bench.client.exists(LEASES)


def test_what_the_process_has_already_is_renewed(bench, scripts):
    """A second call renews the leases that the first
    call gave back, if only the first reply was lost.
    """
    assert regain(scripts, claim("a"), 9) == []
    bench.now_ms += 500
    assert regain(scripts, claim("a"), 9) == []
    assert (
        bench.client.zscore(NAMES["leased"].full + "claims|d", claim("a").text) == NOW + 500 + TTL
    )
    assert bench.client.zscore(PROCS, "p") == NOW + 500 + TTL
    assert not bench.client.exists(LOST)


def test_the_fence_that_was_given_back_is_below_the_next(bench, scripts):
    regain(scripts, claim("a"), NOW + 77)
    assert number(bench.client, FENCE) == NOW + 77
    regain(scripts, claim("b"), 9, locks="")
    assert number(bench.client, FENCE) == NOW + 77


PLACES = {
    "ready": lambda client, key: client.zadd(NAMES["ready"].full + key.lane, {key.text: 3}),
    "retry": lambda client, key: client.zadd(NAMES["retry"].full + key.lane, {key.text: 3}),
    "blocked": lambda client, key: client.hset(NAMES["blocked"].full, key.text, "x:busy"),
    "delayed": lambda client, key: client.zadd(NAMES["delayed"].full, {key.text: 3}),
}


@pytest.mark.parametrize("place", PLACES)
def test_a_key_that_is_restored_stands_nowhere_else(bench, scripts, place):
    """A key that was added before its owner returned
    is only leased, and runs once more afterwards.
    """
    key = claim("a")
    PLACES[place](bench.client, key)
    bench.client.hset(NAMES["since"].full, key.text, NOW)
    bench.client.zadd(NAMES["waiters"].full, {f"busy\0{key.text}": 0})
    shares = [NAMES[name].full + key.lane for name in ("share", "share_retry")]
    for share in shares:
        bench.client.hset(share, "v", "3")
    if place != "blocked":
        bench.client.delete(NAMES["waiters"].full)
    assert regain(scripts, key, 9) == []
    families = [NAMES[name].full + key.lane for name in ("ready", "retry")]
    gone = [NAMES[name].full for name in ("blocked", "waiters", "since", "delayed")]
    assert not bench.client.exists(*families, *shares, *gone)
    assert bench.client.smembers(NAMES["dirty"].full) == (
        set() if place == "delayed" else {key.text.encode()}
    )
    assert bench.client.smembers(NAMES["lanes"].full) == {key.lane.encode()}


def test_turns_of_those_who_wait_on_are_kept(bench, scripts):
    share = NAMES["share"].full + "claims|d"
    bench.client.hset(share, "v", "3")
    bench.client.zadd(NAMES["ready"].full + "claims|d", {claim("other").text: 4})
    assert regain(scripts, claim("a"), 9) == []
    assert bench.client.hget(share, "v") == b"3"


def test_a_lease_that_came_back_ends_with_its_process(bench, start_queue):
    """The sweep finds a restored lease whose process dies, although nothing added its key again."""
    one, two = start_queue(), start_queue()
    one.add([claim("a")])
    bench.run_next(one, "pv")
    bench.client.flushall()
    one.heartbeat()
    for _ in range(10):
        bench.advance(1)
        two.heartbeat()
        two.pump(period_seconds=0)
    assert set(bench.due) == {claim("a")}


OWNER = ("p", "token")


@pytest.mark.parametrize(
    ("process", "token", "is_renewed"),
    [(*OWNER, True), ("p", "older", False), ("q", "token", False), ("p", "", False)],
)
def test_a_renewal_names_the_lease_by_process_and_token(bench, scripts, process, token, is_renewed):
    """A renewal names process and token.

    A delayed copy of a renewal can name a lease that has ended; the token then counts as lost.
    """
    regain(scripts, claim("a"), 9)
    epoch = bench.client.get(EPOCH)
    bench.now_ms += 700
    reply = scripts.run("renew", process, epoch, TTL, claim("a").text, token)
    assert reply == [1, bench.now_ms, *([] if is_renewed else [token.encode()])]
    deadline = bench.client.zscore(NAMES["leased"].full + "claims|d", claim("a").text)
    assert deadline == NOW + TTL + (700 if is_renewed else 0)
    assert bench.client.zrange(LOST, 0, -1) == ([] if is_renewed else [token.encode()])
    assert bench.client.zscore(PROCS, process) == NOW + 700 + TTL


def test_a_renewal_of_another_life_changes_nothing(bench, scripts):
    regain(scripts, claim("a"), 9)
    bench.now_ms += 700
    assert scripts.run("renew", "p", "another:1:run", TTL, claim("a").text, "token") == [0]
    assert bench.client.zscore(PROCS, "p") == NOW + TTL


def test_a_lease_that_vanished_is_no_end_of_its_owner(bench, start_queue):
    """A process loses a lease whose record was removed by hand, and the key runs again."""
    queue = start_queue()
    queue.add([claim("a")])
    lease = bench.run_next(queue)
    bench.client.hdel(LEASES, claim("a").text)
    assert queue.heartbeat()
    assert not queue.done(lease)


def test_only_what_a_process_holds_is_handed_over_at_its_end(bench, start_queue):
    one, two = start_queue(), start_queue()
    one.add([claim("a"), claim("b")])
    first, second = bench.run_next(one), bench.run_next(two)
    one.close()
    assert bench.due == [first.key]
    second.check()
    assert two.done(second)
    assert bench.client.zcard(PROCS) == 1


def test_locks_come_back_in_their_modes(bench, scripts):
    assert regain(scripts, claim("a"), 9, token="t1", locks="s:pv x:more") == []
    assert regain(scripts, claim("b"), 10, token="t2", locks="s:pv") == []
    assert bench.client.zrange(NAMES["holders"].full, 0, -1) == [
        f"more\0x{claim('a').text}".encode(),
        f"pv\0s{claim('a').text}".encode(),
        f"pv\0s{claim('b').text}".encode(),
    ]


@pytest.mark.parametrize(("fence", "lost"), [(10, []), (12, ["t3"])], ids=["older", "newer"])
def test_every_sharer_is_judged_before_a_lock_is_held_alone(bench, scripts, fence, lost):
    """All sharers of a lock are compared before it is held exclusively, not only the first one."""
    assert regain(scripts, claim("a"), 9, token="t1", locks="s:pv") == []
    assert regain(scripts, claim("b"), fence, token="t2", locks="s:pv") == []
    assert regain(scripts, claim("c"), 11, token="t3", locks="x:pv") == lost
    left = {claim("a"), claim("b")} if lost else {claim("c")}
    assert set(bench.client.hkeys(LEASES)) == {one.text.encode() for one in left}


def test_locks_outlive_a_redis_that_loses_its_data_while_workers_are_woken(bench, start_queue):
    """The locks of a lease survive a loss of data during the sending of a message, which can take
    seconds when Redis fails over.
    """
    queue, key = start_queue(), claim("a")
    queue.add([key])
    lease = queue.take("d", ["claims"])

    def fail_over(_):
        bench.client.flushall()
        queue.heartbeat()

    queue._wakeups.hold([b"a list"])
    queue._wakeups._send = fail_over
    assert queue.enter(lease, [Lock("volume")])
    assert bench.client.hget(LEASES, key.text).split()[-1] == Lock("volume").text.encode()


def test_who_only_asks_for_a_lock_takes_it_from_nobody_in_a_new_life(bench, start_queue):
    """A lease that asks for a lock in a new epoch does not
    take it from an older holder, which still calls the driver.
    """
    holder, asking, lock = start_queue(), bench.process(), Lock("volume")
    holder.add([claim("a"), claim("b")])
    held = bench.run_next(holder, lock)
    lease, run = asking.take("d", ["claims"]), asking.scripts.run

    def fail_over(name, *args):
        bench.client.flushall()
        asking.heartbeat()
        holder.heartbeat()
        return run(name, *args)

    asking._leases._scripts.run = fail_over
    assert not asking.enter(lease, [lock])
    assert not holder.heartbeat()
    assert not held.is_lost

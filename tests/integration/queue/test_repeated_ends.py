"""A script call whose reply was lost is repeated and gets the reply of the first call."""

from __future__ import annotations

import pytest

from tests.support.taking import take
from workers.queue.holding import owner_of
from workers.queue.keys import Key, claim_key
from workers.queue.names import NAMES
from workers.queue.scripts import Scripts

NOW = 1_700_000_000_000
CLAIM = {"kind": "PersistentVolumeClaim", "namespace": "ns", "name": "data", "uid": "u"}


def claim(name: str) -> Key:
    return claim_key("d", "ns", name, f"uid-{name}")


@pytest.fixture
def scripts(bench):
    return Scripts(bench.client, lambda: bench.now_ms)


# Arguments (base, cap, minimum delay, threshold, memo) and reply (is_owner, failures, delay in ms).
FAILS = {
    "planned": ((1000, 9000, 0, 0, ""), [1, 3, 4000]),
    "at its cap": ((1000, 3000, 0, 0, ""), [1, 3, 3000]),
    "not before": ((1000, 9000, 7000, 0, ""), [1, 3, 7000]),
    "one try is left": ((1000, 9000, 0, 3, ""), [1, 3, 4000]),
    "given up": ((1000, 9000, 0, 2, ""), [1, 2, -1]),
}


@pytest.mark.parametrize("how", FAILS)
def test_a_failure_that_is_told_twice_counts_once(bench, start_queue, scripts, how):
    """L-015, L-016: a repeated failure counts once.

    The reply has the same owner and failures, and the rest of the delay.
    """
    queue = start_queue()
    queue.add([claim("a")])
    lease = bench.run_next(queue)
    bench.client.hset(NAMES["fails"].full, claim("a").text, 2)
    args, reply = FAILS[how]
    assert scripts.run("fail", *owner_of(lease), 0, *args)[1:] == reply
    assert scripts.run("fail", *owner_of(lease), 0, *args)[1:] == reply
    bench.now_ms += 400
    left = reply[2] - 400 if reply[2] > 0 else -1
    assert scripts.run("fail", *owner_of(lease), 0, *args)[1:] == [*reply[:2], left]
    is_given_up = how == "given up"
    assert bench.client.zscore(NAMES["abandoned"].full, claim("a").text) == (
        NOW if is_given_up else None
    )
    assert bench.client.zcard(NAMES["delayed"].full) == (0 if is_given_up else 1)


def test_a_failure_of_a_key_that_is_ready_again_waits_for_nothing(bench, start_queue, scripts):
    queue = start_queue()
    queue.add([claim("a")])
    lease = bench.run_next(queue)
    queue.add([claim("a")])
    for _ in range(2):
        assert scripts.run("fail", *owner_of(lease), 0, 1000, 9000, 0, 0, "")[1:] == [1, 1, 0]
    assert not bench.client.exists(NAMES["delayed"].full)


def test_a_given_up_key_that_got_dirty_runs_once_more(bench, start_queue):
    """L-016: a key that reached its retry limit runs once more
    if it was added meanwhile, because each add is an attempt.
    """
    queue = start_queue()
    queue.add([claim("a")])
    lease = bench.run_next(queue)
    bench.client.hset(NAMES["fails"].full, claim("a").text, 2)
    queue.add([claim("a")])
    queue.fail(lease, base_seconds=1, cap_seconds=1, threshold=2)
    assert bench.due == [claim("a")]


def test_a_failure_without_a_memo_drops_the_one_before(bench, start_queue):
    """L-063: a failure without a memo removes the earlier memo, whose content is no longer true."""
    queue = start_queue()
    queue.add([claim("a")])
    queue.fail(bench.run_next(queue), base_seconds=1, cap_seconds=1, memo="slow")
    bench.advance(1)
    queue.pump(period_seconds=0)
    lease = bench.run_next(queue)
    assert lease.memo == "slow"
    queue.fail(lease, base_seconds=1, cap_seconds=1)
    assert not bench.client.exists(NAMES["memos"].full + "d")


def test_only_the_lease_itself_ends_the_lease(bench, start_queue, scripts):
    """A late end of an earlier lease of the same process changes nothing: that lease was done."""
    queue = start_queue()
    queue.add([claim("a")])
    old = bench.run_next(queue)
    queue.done(old)
    queue.add([claim("a")])
    new = bench.run_next(queue, "pv")
    assert scripts.run("done", *owner_of(old), 0, "", "", "")[1:] == [1]
    assert scripts.run("acquire", *owner_of(old), "x:more") == -1
    assert scripts.run("unlock", *owner_of(old), "pv") == [[], 0]
    assert scripts.run("mark", *owner_of(old), "{}") == 0
    assert not bench.client.exists(NAMES["marks"].full + "d")
    assert bench.client.hget(NAMES["leases"].full, claim("a").text).split()[2] == new.token.encode()
    assert scripts.run("acquire", *owner_of(new), "x:more") == 0
    assert scripts.run("unlock", *owner_of(new), "pv") == [[], 1]


@pytest.mark.parametrize("busy", [1, 2, 3])
def test_the_first_busy_lock_is_named_by_its_place(bench, start_queue, scripts, busy):
    queue = start_queue()
    queue.add([claim("a"), claim("b")])
    assert take(queue, claim("a"), f"pv-{busy}", "pv-3" if busy < 3 else "pv-4")
    lease = take(queue, claim("b"))
    assert scripts.run("acquire", *owner_of(lease), "x:pv-1", "x:pv-2", "x:pv-3") == busy


def test_what_is_under_way_is_added_again_by_nobody(bench, start_queue):
    """M-010: `ensure` adds only a key that has no
    state; a key in any state needs no other entry.
    """
    queue = start_queue(concurrency=1)
    queue.add([claim("a")])
    assert bench.run_next(queue, "pv")
    queue.set_limits("claims|d", 2)
    queue.add([claim("blocked")])
    assert take(queue, claim("blocked"), "pv") is None
    queue.add([claim("ready")])
    queue.add([claim("delayed")], delay_seconds=60)
    bench.client.zadd(NAMES["abandoned"].full, {claim("given-up").text: NOW})
    bench.client.zadd(NAMES["retry"].full + "claims|d", {claim("retry").text: 0})
    names = ("a", "blocked", "ready", "delayed", "given-up", "retry", "nowhere")
    before = bench.client.zrange(NAMES["ready"].full + "claims|d", 0, -1)
    queue.ensure([claim(name) for name in names])
    after = bench.client.zrange(NAMES["ready"].full + "claims|d", 0, -1)
    assert before == [claim("ready").text.encode()]
    assert after == [*before, claim("nowhere").text.encode()]
    assert not bench.client.exists(NAMES["dirty"].full)


TAKE = ("take", "process", "token", 4000, 0, "d", "claims")


def test_a_lease_that_is_asked_for_twice_is_one(bench, start_queue, scripts):
    """The same token gets the same lease. Another token, also of the same process, gets none."""
    start_queue().add([claim("a")])
    bench.client.hset(NAMES["complete"].full, mapping={"nodes": "earlier", "classes": "x"})
    bench.client.hset(NAMES["complete"].full, "classes", bench.client.get(NAMES["epoch"].full))
    first = scripts.run(*TAKE)
    bench.now_ms += 300
    again = scripts.run(*TAKE)
    assert first[0] == again[0] == b"taken"
    state = first[2]
    waited = 6
    assert again[2][:waited] == state[:waited]
    assert state[0] == claim("a").text.encode()
    assert state[2] == str(NOW).encode()
    assert state[9] == [b"classes"], "what is complete in this life"
    assert scripts.run("take", "process", "another", 4000, 0, "d", "claims") == [b"none", [], None]
    assert bench.client.zscore(NAMES["leased"].full + "claims|d", claim("a").text) == NOW + 4000


def test_a_copy_of_a_take_that_comes_late_takes_no_other_key(bench, start_queue, scripts):
    """A late copy of a take takes no other key, because no process would work on that key."""
    queue = start_queue()
    queue.add([claim("a"), claim("b")])
    taken = scripts.run(*TAKE)[2]
    key, epoch = taken[0], taken[7]
    assert scripts.run("done", key, "process", "token", epoch, 0, "", "", "")[1] == 1
    queue.add([claim("a"), claim("b")])
    for _ in range(2):
        assert scripts.run(*TAKE) == [b"none", [], None]
    assert bench.client.hlen(NAMES["leases"].full) == 0
    assert 59_000 < bench.client.pttl(NAMES["took"].full + "token") <= 60_000


@pytest.mark.parametrize("is_busy", [False, True])
def test_locks_that_are_asked_for_twice_are_one_answer(bench, start_queue, scripts, is_busy):
    """The locks are held once, or the key waits for them once, which ends the lease."""
    queue = start_queue()
    queue.add([claim("b")])
    assert take(queue, claim("b"), "pv" if is_busy else "other")
    queue.add([claim("a")])
    state = scripts.run(*TAKE)[2]
    ask = ("enter", claim("a").text, "process", "token", state[7], "x:pv", "x:more")
    first, again = scripts.run(*ask), scripts.run(*ask)
    assert first[1] == (0 if is_busy else 1)
    assert again[1] == (-1 if is_busy else 1)
    assert bench.client.hkeys(NAMES["blocked"].full) == [claim("a").text.encode()] * is_busy
    if not is_busy:
        lease = bench.client.hget(NAMES["leases"].full, claim("a").text)
        assert lease.split()[4:] == [b"x:pv", b"x:more"]


def test_records_come_by_the_keys_own_name(bench, start_queue, scripts):
    """The records of a lease are found by the key's record name.

    The locks do not matter: the volume's name may have changed since.
    """
    queue = start_queue()
    queue.add([claim("a"), claim("b")])
    name = claim("a").record_name
    bench.client.hset(NAMES["intents"].full + "d", name, "intent")
    bench.client.hset(NAMES["unsaved"].full + "d", "more", "volume")
    bench.client.set(f"{NAMES['saved'].full}d|{name}", 1, ex=600)
    for token, found in (("t1", [b"intent", None, 1]), ("t2", [None, None, 0])):
        state = scripts.run("take", "p", token, 4000, 0, "d", "claims")[2]
        assert state[11:] == found


def test_locks_that_come_and_go_are_written_into_the_lease(bench, start_queue, scripts):
    queue = start_queue()
    queue.add([claim("a")])
    lease = bench.run_next(queue, "pv")

    def locks():
        return bench.client.hget(NAMES["leases"].full, claim("a").text).split()[4:]

    for _ in range(2):
        assert scripts.run("acquire", *owner_of(lease), "x:more", "s:shared") == 0
        assert locks() == [b"x:pv", b"x:more", b"s:shared"]
    for _ in range(2):
        assert scripts.run("unlock", *owner_of(lease), "more") == [[], 1]
        assert locks() == [b"x:pv", b"s:shared"]

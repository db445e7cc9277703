"""What a sweep removes, when a lease expires, and which workers a sweep wakes."""

from __future__ import annotations

import pytest

from tests.support.redis_server import delete_functions
from tests.support.taking import take_all
from workers.queue.keys import Key, claim_key, volume_key
from workers.queue.kinds import place_of
from workers.queue.names import NAMES, celery_queue
from workers.queue.scripts import Scripts

NOW = 1_700_000_000_000
TTL = 4000
LANE = "claims|d"
TICKETED, LEASED = NAMES["ticketed"].full, NAMES["leased"].full
LOST, PROCS, QUIET, PERIOD = (NAMES[n].full for n in ("lost", "procs", "quiet", "period"))
LIST = celery_queue("d")
WOKEN = NAMES["woken"].full + LIST
MORE_THAN_A_SWEEP = 600


def claim(name: str) -> Key:
    return claim_key("d", "ns", name, f"uid-{name}")


def names(bench) -> list[str]:
    """Return the objects of the keys that are due."""
    return [key.object for key in bench.due]


@pytest.mark.parametrize(
    ("deadline", "quiet", "is_taken_back"),
    [(1, 0, False), (0, 0, True), (-1, 0, True), (-1, 1, False), (-TTL, 1, False)],
)
def test_a_lease_runs_out_with_its_last_millisecond_unless_a_life_just_began(
    bench, start_queue, deadline, quiet, is_taken_back
):
    """A lease expires with its last millisecond, but not in the quiet period of a new epoch, in
    which processes restore their leases.
    """
    queue = start_queue()
    queue.add([claim("a")])
    lease = bench.run_next(queue)
    bench.client.zadd(LEASED + LANE, {claim("a").text: NOW + deadline})
    bench.client.set(QUIET, NOW + quiet)
    queue.pump(period_seconds=0)
    assert bench.due == [claim("a")] * is_taken_back
    lost = bench.client.zrange(LOST, 0, -1, withscores=True)
    assert lost == [(lease.token.encode(), NOW)] * is_taken_back


def test_one_look_per_period_and_one_check_per_five_seconds(bench, start_queue):
    """A sweep reserves its period, and a check reserves five seconds.

    A period never lasts longer, even if its process dies.
    """
    start_queue().pump(period_seconds=300)
    ends = {name: int(bench.client.get(PERIOD + name)) for name in ("sweep", "check")}
    assert ends == {"sweep": NOW + 300_000, "check": NOW + 5000}
    assert all(bench.client.pttl(PERIOD + name) <= ends[name] - NOW for name in ends)


def test_nothing_is_swept_before_the_life_has_a_name(bench):
    """Before the first heartbeat has begun the epoch, a sweep does nothing."""
    key = claim("a")
    bench.client.zadd(NAMES["delayed"].full, {key.text: NOW - 1})
    scripts = Scripts(bench.client, lambda: NOW)
    assert scripts.run("sweep", 0, 500, 0, TTL, 3_600_000) == [-1, []]
    assert bench.client.zcard(NAMES["delayed"].full) == 1
    assert not bench.client.exists(f"{PERIOD}sweep")


def test_a_check_drops_what_is_over(bench, start_queue):
    """A check removes dead processes, and tokens of lost leases after ten minutes."""
    queue = start_queue()
    bench.client.zadd(PROCS, {"over": NOW, "alive": NOW + 1})
    bench.client.zadd(LOST, {"old": NOW - 600_000, "young": NOW - 599_999})
    queue.pump(period_seconds=0)
    assert bench.client.zscore(PROCS, "over") is None
    assert bench.client.zscore(PROCS, "alive") == NOW + 1
    assert bench.client.zrange(LOST, 0, -1) == [b"young"]


@pytest.mark.parametrize(("age", "stays"), [(3_600_000, False), (3_599_999, True)])
def test_limits_go_an_hour_after_the_last_word(bench, start_queue, age, stays):
    queue = start_queue()
    queue.set_limits("claims|gone", 1)
    bench.client.zadd(NAMES["declared"].full, {"claims|gone": NOW - age})
    queue.pump(period_seconds=0)
    assert bench.client.exists(NAMES["limits"].full + "claims|gone") == stays
    assert (bench.client.zscore(NAMES["declared"].full, "claims|gone") is not None) == stays
    assert bench.client.exists(NAMES["limits"].full + LANE)


@pytest.mark.parametrize(
    ("driver", "age", "stays"),
    [("d@gone", 3_600_000, False), ("d@gone", 3_599_999, True), ("gone", 3_600_000, True)],
)
def test_what_waits_for_a_node_goes_with_its_limits(bench, start_queue, driver, age, stays):
    """Keys for a removed node are removed with its limits, so they cannot accumulate.

    A driver's own keys wait for it without limit.
    """
    queue, lane = start_queue(), f"claims|{driver}"
    keys = [claim_key(driver, "ns", f"pvc-{n}", f"uid-{n}") for n in range(MORE_THAN_A_SWEEP)]
    queue.set_limits(lane, 1)
    queue.add(keys[:1])
    queue.fail(bench.run_next(queue), base_seconds=0.1, cap_seconds=0.1)
    queue.add(keys[1:])
    bench.advance(0.2)
    queue.pump(period_seconds=0)
    bench.client.zadd(NAMES["declared"].full, {lane: bench.now_ms - age})
    for _ in range(3):
        queue.pump(period_seconds=0)
    families = [NAMES[name].full + lane for name in ("ready", "retry")]
    left = sum(bench.client.zcard(name) for name in families)
    assert left == bench.client.hlen(NAMES["since"].full) == (len(keys) if stays else 0)
    assert bench.client.sismember(NAMES["lanes"].full, lane) == stays
    assert bench.client.hexists(NAMES["fails"].full, keys[0].text) == stays
    assert (bench.client.exists(NAMES["share"].full + lane) == 1) == stays


@pytest.mark.parametrize("way", ["added", "due"])
def test_what_comes_late_for_a_node_that_went_goes_too(bench, start_queue, way):
    """A key that is added or becomes due for a removed node is removed an hour later."""
    queue, key = start_queue(), claim_key("d@gone", "ns", "pvc", "uid")
    lane, declared = "claims|d@gone", NAMES["declared"].full
    queue.set_limits(lane, 1)
    if way == "due":
        queue.add([key])
        queue.fail(bench.run_next(queue), base_seconds=7200, cap_seconds=7200)
    bench.client.zadd(declared, {lane: bench.now_ms - 3_600_000})
    queue.pump(period_seconds=0)
    assert bench.client.zscore(declared, lane) is None
    if way == "added":
        queue.add([key])
    else:
        bench.advance(7200)
    families = [NAMES[name].full + lane for name in ("ready", "retry")]
    queue.pump(period_seconds=0)
    bench.advance(3599)
    queue.pump(period_seconds=0)
    assert bench.client.exists(*families)
    bench.advance(1)
    queue.pump(period_seconds=0)
    assert not bench.client.exists(*families, NAMES["fails"].full, NAMES["since"].full)
    queue.pump(period_seconds=0)
    assert not bench.client.sismember(NAMES["lanes"].full, lane)


@pytest.mark.parametrize(("age", "stays"), [(604_800_000, False), (604_799_999, True)])
def test_a_key_that_was_given_up_is_forgotten_after_a_week(bench, start_queue, age, stays):
    """M-015: a key that reached its retry limit loses its counter and its entry after a week.

    Its memo's hash expires separately.
    """
    queue = start_queue()
    key = claim("a").text
    bench.client.zadd(NAMES["abandoned"].full, {key: NOW - age})
    bench.client.hset(NAMES["fails"].full, key, "3")
    queue.pump(period_seconds=0)
    left = bench.client.exists(NAMES["abandoned"].full, NAMES["fails"].full)
    assert left == (2 if stays else 0)


def test_memos_of_a_driver_go_a_week_after_the_last_one(bench, start_queue):
    """The memos of a driver expire a week after the last one, because a sweep may not reach them,
    and a claim's node may never return.
    """
    queue = start_queue()
    queue.add([claim("a")])
    queue.fail(bench.run_next(queue), base_seconds=1, cap_seconds=1, memo="why")
    assert 604_700 < bench.client.ttl(NAMES["memos"].full + "d") <= 604_800


@pytest.mark.parametrize("end", ["done", "forgotten"])
def test_a_key_that_was_given_up_is_as_new_after_its_end(bench, start_queue, end):
    queue = start_queue()
    bench.client.zadd(NAMES["abandoned"].full, {claim("a").text: NOW})
    if end == "done":
        queue.add([claim("a")])
        queue.done(bench.run_next(queue))
    else:
        queue.forget([claim("a")])
    assert not bench.client.exists(NAMES["abandoned"].full)


def test_lanes_without_work_are_looked_at_no_more(bench, start_queue):
    queue = start_queue(concurrency=1)
    queue.add([claim("a"), volume_key("d", "pvc-a")])
    leases = {lease.key.kind: lease for lease in take_all(queue, "d", "claims", "volumes")}
    assert bench.client.scard(NAMES["lanes"].full) == 2
    queue.done(leases["claims"])
    queue.pump(period_seconds=0)
    assert bench.client.smembers(NAMES["lanes"].full) == {b"volumes|d"}


def test_a_lease_without_a_deadline_gets_one(bench, start_queue):
    """A lease whose deadline was removed by hand gets a new one.

    A lease that has a deadline keeps it.
    """
    queue = start_queue()
    queue.add([claim("a"), claim("b")])
    bench.run_next(queue), bench.run_next(queue)
    bench.client.zrem(LEASED + LANE, claim("a").text)
    bench.client.delete(NAMES["lanes"].full)
    bench.advance(1)
    queue.pump(period_seconds=0)
    found = dict(bench.client.zrange(LEASED + LANE, 0, -1, withscores=True))
    assert found == {
        claim("a").text.encode(): NOW + 1000 + TTL,
        claim("b").text.encode(): NOW + TTL,
    }
    assert bench.client.smembers(NAMES["lanes"].full) == {LANE.encode()}


@pytest.mark.parametrize("hold_up", ["a pause", "the silence of a new life", "nothing"])
def test_no_worker_is_woken_for_a_lane_that_stands_still(bench, start_queue, hold_up):
    """No message is sent for a lane without a key that can be taken now."""
    queue = start_queue()
    queue.add([claim("a")])
    bench.woken.clear()
    bench.client.delete(WOKEN)  # the message was lost
    if hold_up == "a pause":
        queue.pause(LANE, "array is full")
    elif hold_up != "nothing":
        bench.client.set(NAMES["quiet"].full, NOW + 60_000)
    queue.pump(period_seconds=0)
    assert bench.woken == [LIST] * (hold_up == "nothing")


def test_a_wake_up_is_lost_after_two_seconds(bench, start_queue):
    """A message counts as lost after two seconds.

    No second message is sent while the first may still be on its way.
    """
    queue = start_queue()
    queue.add([claim("a")])
    queue.pump(period_seconds=0)
    assert bench.woken == [LIST]
    assert 0 < bench.client.pttl(WOKEN) <= 2000
    bench.client.persist(WOKEN)  # the clock of Redis' host may be set back
    bench.now_ms += 1999
    queue.pump(period_seconds=0)
    assert bench.woken == [LIST]
    bench.now_ms += 1
    queue.pump(period_seconds=0)
    assert bench.woken == [LIST] * 2


def test_a_message_that_waits_in_its_list_is_enough(bench, start_queue):
    """No message is sent to a list that has one.

    Claims and volumes of a driver share a list, and perhaps no worker reads it.
    """
    queue = start_queue()
    assert place_of("d", "claims") == place_of("d", "volumes")
    bench.client.lpush(LIST, "one")
    queue.add([claim("a")])
    queue.add([volume_key("d", "pvc-a")])
    bench.client.delete(WOKEN)
    queue.pump(period_seconds=0)
    assert bench.woken == []


def test_a_key_that_an_earlier_release_had_admitted_waits_again(bench, start_queue):
    """A key that an earlier release had admitted waits again after
    some seconds, because workers of that release may still run.
    """
    queue = start_queue()
    bench.client.zadd(TICKETED + LANE, {claim("a").text: NOW})
    bench.client.sadd(NAMES["lanes"].full, LANE)
    queue.pump(period_seconds=1)
    assert names(bench) == []
    bench.advance(6)
    queue.pump(period_seconds=0)
    assert names(bench) == ["ns/a"]
    assert not bench.client.exists(TICKETED + LANE)


def test_a_sweep_moves_what_is_due_to_the_millisecond(bench, start_queue):
    queue = start_queue()
    due = {claim("now").text: NOW, claim("past").text: NOW - 1, claim("soon").text: NOW + 1}
    bench.client.zadd(NAMES["delayed"].full, due)
    queue.pump(period_seconds=30)
    assert names(bench) == ["ns/past", "ns/now"]
    assert bench.client.zrange(NAMES["delayed"].full, 0, -1) == [claim("soon").text.encode()]


def test_a_sweep_alone_notices_that_room_gets_scarce(bench, start_queue):
    """A sweep notices scarce memory even if no process adds keys.

    For a minute, no trails are kept.
    """
    queue = start_queue()
    used = bench.client.info("memory")["used_memory"]
    try:
        bench.client.config_set("maxmemory", used * 3 // 2)
        delete_functions(bench.client)  # a new library checks at once
        queue.pump(period_seconds=0)
    finally:
        bench.client.config_set("maxmemory", 0)
        delete_functions(bench.client)
    assert 0 < bench.client.pttl(NAMES["tight"].full) <= 60_000


@pytest.mark.parametrize(("later", "looks"), [(999, 0), (1000, 1), (-999, 0), (-1000, 1)])
def test_room_is_looked_at_once_a_second(bench, start_queue, later, looks):
    """Scripts read Redis' memory once a second, because an INFO per call would cost more than the
    call.

    A clock that was set back causes no INFO.
    """
    queue = start_queue()
    delete_functions(bench.client)
    queue.add([claim("a")])

    def asked():
        return bench.client.info("commandstats")["cmdstat_info"]["calls"]

    before = asked()
    queue.add([claim("b")])
    alone = asked() - before
    bench.now_ms += later
    before = asked()
    queue.add([claim("c")])
    assert asked() - before - alone == looks


def test_an_unreadable_lease_is_set_aside_for_a_week(bench, start_queue):
    queue = start_queue()
    queue.add([claim("a")])
    bench.run_next(queue)
    bench.client.hset(NAMES["leases"].full, claim("a").text, "no lease")
    queue.pump(period_seconds=0)
    aside = NAMES["quarantine"].full
    assert bench.client.hgetall(aside) == {
        f"{NAMES['leases'].full} {claim('a').text}".encode(): b"no lease"
    }
    assert 600_000 < bench.client.ttl(aside) <= 604_800
    assert bench.due == [claim("a")]


def test_who_died_at_a_call_of_its_own_is_remembered_until_that_ends(bench, start_queue):
    """A dead worker's call blocks a serial driver until the call's deadline.

    The next declaration removes calls that have ended.
    """
    queue = start_queue(concurrency=1)
    queue.set_limits(LANE, 1, hold_seconds=600)
    queue.add([claim("a")])
    bench.run_next(queue)
    queue.close()
    ghosts = NAMES["ghosts"].full + LANE
    assert bench.client.zrange(ghosts, 0, -1, withscores=True) == [
        (claim("a").text.encode(), NOW + 600_000)
    ]
    bench.now_ms += 600_000
    start_queue(concurrency=1)
    assert not bench.client.exists(ghosts)


def test_a_hold_that_is_switched_off_forgets_nobody(bench, start_queue):
    """Switching the hold time off keeps the calls of processes
    that died before, because these calls may still run.
    """
    first, second = start_queue(concurrency=2), start_queue(concurrency=2)
    first.add([claim("a"), claim("b")])
    bench.run_next(first)
    bench.run_next(second)
    first.set_limits(LANE, 1, hold_seconds=600)
    first.close()
    second.set_limits(LANE, 1, hold_seconds=0)
    second.close()
    ghosts = bench.client.zrange(NAMES["ghosts"].full + LANE, 0, -1, withscores=True)
    assert [until for _, until in ghosts] == [NOW + 600_000]

"""Each fact about a key, about lanes and about Redis is read from its own record."""

from __future__ import annotations

import pytest

from workers.queue.inspect import (
    FailedKey,
    KeyState,
    Note,
    Pause,
    failed_keys,
    marks_of_driver,
    read_age,
    read_key,
    read_redis,
    read_sizes,
    waiting_keys,
)
from workers.queue.keys import Key, claim_key
from workers.queue.limits import LaneLimits, LaneStats, read_stats
from workers.queue.names import NAMES

KEY, OTHER, THIRD = (claim_key("d", "shop", name, f"uid-{name}") for name in ("a", "b", "c"))
LANE = KEY.lane
TRAIL = "claims|shop/a|uid-a"
FUTURE_MS = 4_000_000_000_000
LATEST = 32_503_680_000.0


def scores(*keys: Key) -> dict[str, float]:
    """Return scores with which the keys wait in this order."""
    return {key.text: float(rank) for rank, key in enumerate(keys)}


# For each state: rows of Redis command, declared name, the rest of the Redis key, and arguments;
# then the fields of the key's state.
RECORDS = {
    "nothing": ([], {}),
    "first attempt": (
        [("zadd", "ready", LANE, scores(OTHER, KEY, THIRD))], {"position": 2, "waiting": 3}),
    "retry": (
        [("zadd", "retry", LANE, scores(OTHER, KEY))],
        {"position": 2, "waiting": 2, "is_retry": True}),
    "both: the first attempt counts": (
        [("zadd", "ready", LANE, scores(KEY)), ("zadd", "retry", LANE, scores(OTHER, KEY))],
        {"position": 1, "waiting": 1}),
    "others wait": ([("zadd", "ready", LANE, scores(OTHER))], {}),
    "other retries wait": ([("zadd", "retry", LANE, scores(OTHER, THIRD))], {"waiting": 2}),
    "lease": (
        [("hset", "leases", "", KEY.text, "7 host:1:x token 9000 x:pv")],
        {"lease": ("host:1:x", 9.0)}),
    "broken lease": ([("hset", "leases", "", KEY.text, "7")], {"lease": ("", 0.0)}),
    "all that uses the lane": (
        [("zadd", "leased", LANE, scores(OTHER, THIRD)),
         ("zadd", "ghosts", LANE, scores(OTHER, THIRD, KEY))],
        {"in_use": 5}),
    "added while it runs": ([("sadd", "dirty", "", KEY.text)], {"is_dirty": True}),
    "an event while it runs": ([("hset", "news", "", KEY.text, "5")], {"is_dirty": True}),
    "blocked": (
        [("hset", "blocked", "", KEY.text, "x:pv"),
         ("zadd", "holders", "", {f"pv\0x{OTHER.text}": 0, f"pv2\0x{THIRD.text}": 0})],
        {"blocked_by": OTHER.text}),
    "blocked by nobody any more": ([("hset", "blocked", "", KEY.text, "x:pv")],
        {"blocked_by": "pv"}),
    "planned": ([("zadd", "delayed", "", {KEY.text: 7500})], {"due": 7.5}),
    "planned forever": ([("zadd", "delayed", "", {KEY.text: 1e300})], {"due": LATEST}),
    "given up": ([("zadd", "abandoned", "", {KEY.text: 8000})], {"abandoned_at": 8.0}),
    "added": ([("hset", "since", "", KEY.text, "3000")], {"since": 3.0}),
    "added at no time": ([("hset", "since", "", KEY.text, "soon")], {}),
    "failed": (
        [("hset", "fails", "", KEY.text, "4"), ("hset", "memos", "d", KEY.text, "-:shop:why")],
        {"fails": 4, "memo": "why"}),
    "limits": (
        [("hset", "limits", LANE, "concurrency", "5"), ("hset", "limits", LANE, "rate", "2.5"),
         ("hset", "limits", LANE, "burst", "3")],
        {"limits": LaneLimits(5, 2.5, 3)}),
    "limits without a burst": (
        [("hset", "limits", LANE, "concurrency", "5"), ("hset", "limits", LANE, "rate", "2")], {}),
    "endless limits": (
        [("hset", "limits", LANE, "concurrency", "5"), ("hset", "limits", LANE, "rate", "inf"),
         ("hset", "limits", LANE, "burst", "3")], {}),
    "pauses": (
        [("hset", "pauses", "", "driver d", "0 0 firmware"),
         ("hset", "paused", "", f"driver {LANE}", "5 over"),
         ("hset", "paused", "", f"lease {LANE}", f"{FUTURE_MS} held")],
        {"pauses": (Pause("operator", "firmware", 0.0), Pause("lease", "held", FUTURE_MS / 1000))}),
    "intent": ([("hset", "intents", "d", "pvc-uid-a", '{"stage":"calling"}')],
        {"intent": {"stage": "calling"}}),
    "unsaved": ([("hset", "unsaved", "d", "pvc-uid-a", '{"kind":"PV"}')],
        {"unsaved": {"kind": "PV"}}),
    "trail": (
        [("rpush", "trail", TRAIL, "1000 queued", "2500 rpc Create Volume"),
         ("expire", "trail", TRAIL, 60)],
        {"trail": (Note(1.0, "queued", ""), Note(2.5, "rpc", "Create Volume"))}),
}  # fmt: skip
KNOWN = {
    *("first attempt", "retry", "both: the first attempt counts", "lease"),
    *("broken lease", "blocked", "blocked by nobody any more", "planned", "planned forever"),
}


@pytest.mark.parametrize("what", RECORDS)
def test_each_record_is_told_as_what_it_is_and_nothing_else(redis_client, what):
    writes, told = RECORDS[what]
    for command, name, of, *arguments in writes:
        getattr(redis_client, command)(NAMES[name].full + of, *arguments)
    state = read_key(redis_client, KEY)
    assert state == KeyState(KEY, state.now, **told)
    assert state.is_known == (what in KNOWN)


def test_its_time_is_that_of_redis(redis_client):
    def now():
        seconds, microseconds = redis_client.time()
        return seconds + microseconds // 1000 / 1000

    before = now()
    assert before <= read_key(redis_client, KEY).now <= now()


@pytest.mark.parametrize(
    ("written", "age"),
    [
        pytest.param("x:{then}:{run}", 60, id="a minute"),
        pytest.param("", 7, id="nobody has begun"),
        pytest.param("x:{then}:other", 7, id="of the run before"),
        pytest.param("x:y:{run}", 7, id="no time"),
        pytest.param("x", 7, id="none of ours"),
    ],
)
def test_how_long_redis_has_its_data(redis_client, monkeypatch, written, age):
    """If no process has begun an epoch in this run of Redis, the run's age counts."""
    then = redis_client.time()[0] * 1000 - 60_000
    redis_client.set("csifleet:epoch", written.format(then=then, run="run"))
    facts = {"run_id": "run", "uptime_in_seconds": 7}
    monkeypatch.setattr(redis_client, "info", lambda _section: facts)
    assert age <= read_age(redis_client) < age + 5


@pytest.mark.parametrize(
    ("start", "count", "found"),
    [
        pytest.param(0, 1, [KEY], id="one"),
        pytest.param(0, 2, [KEY, OTHER], id="all first attempts"),
        pytest.param(1, 1, [OTHER], id="the second of each, a retry comes later"),
        pytest.param(0, 9, [KEY, OTHER, THIRD], id="first attempts, then retries"),
        pytest.param(2, 9, [], id="none so far behind"),
    ],
)
def test_keys_that_wait_are_told_by_their_rank(redis_client, start, count, found):
    """Waiting keys are returned by rank; a member that is not a key is left out."""
    redis_client.zadd(NAMES["ready"].full + LANE, scores(KEY, OTHER))
    redis_client.zadd(NAMES["retry"].full + LANE, {"no key": -1.0, **scores(THIRD)})
    assert waiting_keys(redis_client, LANE, start, count) == found


def test_failed_keys_come_with_all_that_is_known_most_failures_first(redis_client):
    fails = {KEY.text: "2", OTHER.text: "30", "no key": "99", THIRD.text: "x"}
    redis_client.hset(NAMES["fails"].full, mapping=fails)
    given_up = claim_key("d", "shop", "z", "uid-z")
    redis_client.zadd(NAMES["abandoned"].full, {given_up.text: 9000, KEY.text: 8000})
    redis_client.zadd(NAMES["delayed"].full, {KEY.text: 7000})
    redis_client.hset(NAMES["memos"].full + "d", KEY.text, '-:shop:{"slow_until": 1}')
    redis_client.hset(NAMES["memos"].full + "d", OTHER.text, "-:shop:{}")
    notes = ("1000 error first", "2000 error last", "3000 failed 2")
    redis_client.rpush(NAMES["trail"].full + TRAIL, *notes)
    redis_client.expire(NAMES["trail"].full + TRAIL, 60)
    found = [
        FailedKey(OTHER, 30, 0.0, 0.0, "", infeasible=False),
        FailedKey(KEY, 2, 7.0, 8.0, "last", infeasible=True),
        FailedKey(THIRD, 0, 0.0, 0.0, "", infeasible=False),
        FailedKey(given_up, 0, 0.0, 9.0, "", infeasible=False),
    ]
    assert failed_keys(redis_client) == found
    assert failed_keys(redis_client, limit=2) == found[:1], "what is no key counts, too"
    assert not FailedKey(KEY, 0, 0.0, 0.0, "").infeasible


def test_each_count_has_its_own_record(redis_client):
    counted = ["intents", "unsaved", "fails", "abandoned", "procs", "drivers_until", "quarantine"]
    for count, name in enumerate(counted, 1):
        for number in range(count):
            if NAMES[name].type == "hash":
                redis_client.hset(NAMES[name].full, f"one{number}", "{}")
            else:
                redis_client.zadd(NAMES[name].full, {f"one{number}": FUTURE_MS})
    assert read_sizes(redis_client) == {
        "intents": 1,
        "unsaved_volumes": 2,
        "failing_keys": 3,
        "abandoned_keys": 4,
        "worker_processes": 5,
        "registered_drivers": 6,
        "quarantined_records": 7,
    }
    redis_client.expire(NAMES["quarantine"].full, 60)


MEMORY = {"used_memory": 60, "mem_not_counted_for_evict": 10, "maxmemory": 200}
UNTOLD = dict.fromkeys(
    [
        *("version", "memory", "memory_limit", "memory_percent", "policy", "clients"),
        *("last_save", "role", "evicted"),
    ],
    "?",
)


@pytest.mark.parametrize(
    ("facts", "told"),
    [
        pytest.param({}, {}, id="nothing"),
        pytest.param(MEMORY, {"memory_percent": "25"}, id="share, without the buffers"),
        pytest.param({**MEMORY, "maxmemory": 0}, {}, id="a share of no limit"),
        pytest.param({"aof_enabled": 1}, {"appendonly": "yes"}, id="appendonly"),
        pytest.param(
            {"redis_version": "7.0.1", "role": "master", "evicted_keys": 0},
            {"version": "7.0.1", "role": "master", "evicted": "0"},
            id="facts",
        ),
    ],
)
def test_what_redis_does_not_tell_is_a_question_mark(redis_client, monkeypatch, facts, told):
    monkeypatch.setattr(redis_client, "info", lambda: facts)
    assert read_redis(redis_client) == {**UNTOLD, "appendonly": "no", **told}


def test_marks_of_a_driver_are_those_of_its_keys_and_kinds(redis_client):
    marks = {
        "claims|d|shop/a|u": "-:shop:" + '{"a":1}',
        "claims|d|shop/b|u": "unreadable",
        "claims|d2|shop/c|u": '{"c":1}',
        "volumes|d|pv|": '{"d":1}',
    }
    redis_client.hset(NAMES["marks"].full + "d", mapping=marks)
    assert marks_of_driver(redis_client, ["claims", "cloning"], "d") == {
        "claims|d|shop/a|u": {"a": 1},
        "claims|d|shop/b|u": {},
    }
    assert redis_client.hlen(NAMES["marks"].full + "d") == 4, "who only looks sets nothing aside"


def test_a_lane_is_told_with_all_that_waits_in_it(redis_client):
    """A lane's numbers cover all keys that wait in it.

    Its age is that of the next key: of a retry if no first attempt waits.
    """
    lane = f"{LANE}2"
    redis_client.zadd(NAMES["retry"].full + LANE, scores(KEY, OTHER))
    redis_client.zadd(NAMES["ready"].full + lane, scores(THIRD))
    redis_client.hset(NAMES["since"].full, mapping={KEY.text: 4000, OTHER.text: 1})
    redis_client.zadd(NAMES["leased"].full + LANE, scores(*(KEY, OTHER, THIRD)))
    redis_client.sadd(NAMES["lanes"].full, LANE, lane)
    redis_client.hset(NAMES["blocked"].full, mapping={KEY.text: "x:p", OTHER.text: "x:p"})
    redis_client.zadd(NAMES["delayed"].full, scores(KEY, OTHER, THIRD))
    redis_client.hset(NAMES["pauses"].full, "driver d", "0 0 why")
    redis_client.hset(NAMES["paused"].full, f"driver {LANE}", "10000 over")
    redis_client.hset(NAMES["paused"].full, f"lease {LANE}", "10001 held")
    found = read_stats(redis_client, 10_000)
    assert all(found[name].paused for name in found if name.endswith("|d")), "all of the driver"
    assert {name: found[name] for name in (LANE, lane)} == {
        LANE: LaneStats(
            LANE, 0, 2, 3, 6.0, None, delayed=3, blocked=2,
            paused={"operator": "why", "lease": "held"}, paused_until={"lease": 10.001},
        ),
        lane: LaneStats(lane, 1, 0, 0, 0.0, None),
    }  # fmt: skip


@pytest.mark.parametrize("name", ["paused", "delayed", "blocked", "declared"])
def test_a_lane_is_told_wherever_it_is_named(redis_client, name):
    """A lane is listed wherever Redis names it, even if no key waits in it."""
    if name == "paused":
        redis_client.hset(NAMES[name].full, f"driver {LANE}", "0 why")
    elif name == "blocked":
        redis_client.hset(NAMES[name].full, KEY.text, "x:p")
    else:
        redis_client.zadd(NAMES[name].full, {LANE if name == "declared" else KEY.text: 1})
    assert read_stats(redis_client).keys() == {LANE}

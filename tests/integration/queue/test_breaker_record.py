"""A driver's breaker, event by event: its record, the pause of its lanes and how they come back."""

from __future__ import annotations

import pytest

from workers.queue.keys import claim_key
from workers.queue.names import NAMES
from workers.queue.scripts import Scripts

NOW = 1_700_000_000_000
LANE = "claims|d"
LIMITS = NAMES["limits"].full + LANE
LINKS = NAMES["links"].full + "d"
# Threshold, window, first and longest time open, jitter in percent.
RULE = (3, 30_000, 2000, 5000, 20)


@pytest.fixture
def tell(bench):
    """One event of driver `d`, whose kind is `claims`; returns the state that follows."""
    scripts = Scripts(bench.client, lambda: bench.now_ms)

    def tell(event, *args):
        return scripts.run("breaker", event, "d", "claims", *args)[1].decode()

    return tell


@pytest.fixture
def record(bench):
    """What stands there: state, failures, since, until, span, reason."""

    def read():
        raw = bench.client.hget(NAMES["breakers"].full, "d")
        return None if raw is None else raw.decode()

    def write(text):
        bench.client.hset(NAMES["breakers"].full, "d", text)

    read.write = write
    return read


def paused(bench):
    raw = bench.client.hget(NAMES["paused"].full, f"breaker {LANE}")
    return None if raw is None else raw.decode()


def ramp(bench):
    """What the lane may do now, since when, and how much it gets back how often."""
    found = bench.client.hmget(LIMITS, "cap", "cap_at", "cap_step", "cap_gain")
    return [None if value is None else int(value) for value in found]


@pytest.mark.parametrize(
    ("before", "event", "after", "state"),
    [
        pytest.param(None, "failed", f"closed 1 {NOW} 0 0 why", "closed", id="the first failure"),
        pytest.param(
            f"closed 1 {NOW - 30_000} 0 0 old", "failed",
            f"closed 2 {NOW - 30_000} 0 0 why", "closed", id="just in the window",
        ),
        pytest.param(
            f"closed 2 {NOW - 30_001} 0 0 old", "failed",
            f"closed 1 {NOW} 0 0 why", "closed", id="the window is over",
        ),
        pytest.param(
            f"closed 2 {NOW - 9} 0 0 old", "failed",
            f"open 0 {NOW} {NOW + 2400} 2000 why", "open", id="one too many",
        ),
        pytest.param(
            f"half 0 {NOW - 9} {NOW + 9} 2000 old", "failed",
            f"open 0 {NOW} {NOW + 4800} 4000 why", "open", id="a failed trial: twice as long",
        ),
        pytest.param(
            f"half 0 {NOW - 9} {NOW + 9} 4000 old", "failed",
            f"open 0 {NOW} {NOW + 6000} 5000 why", "open", id="never longer than the longest",
        ),
        pytest.param(
            f"open 0 {NOW - 9} {NOW + 9} 2000 old", "failed",
            f"open 0 {NOW - 9} {NOW + 9} 2000 old", "open", id="open: late failures",
        ),
        pytest.param(
            f"lost 0 {NOW - 9} {NOW + 9} 0 old", "failed",
            f"lost 0 {NOW - 9} {NOW + 9} 0 old", "lost", id="lost: late failures",
        ),
        pytest.param(None, "ok", None, "closed", id="an answer"),
        pytest.param(f"closed 2 {NOW} 0 0 old", "ok", None, "closed", id="an answer between"),
        pytest.param(f"half 0 {NOW} {NOW + 9} 2000 old", "ok", None, "closed", id="a good trial"),
        pytest.param(
            f"open 0 {NOW} {NOW + 9} 2000 old", "ok",
            f"open 0 {NOW} {NOW + 9} 2000 old", "open", id="open: a late answer",
        ),
        pytest.param(
            f"lost 0 {NOW} {NOW + 9} 0 old", "ok",
            f"lost 0 {NOW} {NOW + 9} 0 old", "lost", id="lost: a late answer",
        ),
        pytest.param(None, "half", None, "closed", id="well: Probe"),
        pytest.param(
            f"open 0 {NOW - 9} {NOW + 1} 2000 old", "half",
            f"open 0 {NOW - 9} {NOW + 1} 2000 old", "open", id="a millisecond early",
        ),
        pytest.param(
            f"open 0 {NOW - 9} {NOW} 2000 old", "half",
            f"half 0 {NOW} {NOW + 30_000} 2000 old", "half", id="its time has come",
        ),
        pytest.param(
            f"half 0 {NOW - 9} {NOW + 1} 2000 old", "half",
            f"half 0 {NOW - 9} {NOW + 1} 2000 old", "half", id="half: a millisecond early",
        ),
        pytest.param(f"half 0 {NOW - 9} {NOW} 2000 old", "half", None, "closed", id="half: over"),
        pytest.param("no record", "failed", f"closed 1 {NOW} 0 0 why", "closed", id="unreadable"),
    ],
)  # fmt: skip
def test_the_next_state(bench, tell, record, before, event, after, state):
    """COR-2: as the table in breakers.py has it."""
    if before is not None:
        record.write(before)
    args = ("why", *RULE) if event == "failed" else ()
    assert tell(event, *args) == state
    assert record() == after
    if state in {"open", "lost"} and after != before:
        until = int(after.split()[3])
        assert paused(bench) == f"{until + 60_000} why", "a minute longer than it is open"
    else:
        assert paused(bench) is None


@pytest.mark.parametrize(("concurrency", "gain"), [(100, 5), (39, 1), (40, 2), (10, 1), (None, 1)])
def test_a_lane_comes_back_from_one_call_by_a_20th_each_quarter_second(
    bench, tell, record, concurrency, gain
):
    """Also a lane that nobody declared yet: its limits may come a moment later."""
    queue = bench.process()
    if concurrency:
        queue.set_limits(LANE, concurrency)
    record.write(f"half 0 {NOW} {NOW + 9} 2000 old")
    bench.client.hset(NAMES["paused"].full, f"breaker {LANE}", "0 old")
    tell("ok")
    assert ramp(bench) == [1, NOW, 250, gain]
    assert paused(bench) is None


def test_a_trial_is_one_call_whatever_its_time_and_a_retry_first(bench, tell, record):
    bench.process().set_limits(LANE, 100)
    record.write(f"open 0 {NOW - 9} {NOW} 2000 old")
    tell("half")
    assert ramp(bench)[:3] == [1, NOW, 0]
    assert int(bench.client.hget(LIMITS, "streak")) == 5


@pytest.mark.parametrize(
    ("later", "running"), [(249, 1), (250, 6), (499, 6), (500, 11), (9999, 100)]
)
def test_the_ramp_in_numbers(bench, tell, record, start_queue, later, running):
    queue = start_queue(concurrency=100)
    record.write(f"half 0 {NOW} {NOW + 9} 2000 old")
    tell("ok")
    bench.now_ms += later
    queue.heartbeat()
    queue.add([claim_key("d", "ns", str(number), f"u{number}") for number in range(120)])
    assert len(bench.tickets) == running


def test_the_last_connection_that_is_lost_holds_the_driver(bench, tell, record):
    """Fifteen seconds at a time: whoever is not connected says so again and again."""
    bench.client.zadd(LINKS, {"one": NOW + 1, "two": NOW + 9000, "dead": NOW})
    record.write(f"closed 2 {NOW - 5} 0 0 old")
    assert tell("lost", "socket is gone", "two") == "closed"
    assert bench.client.zrange(LINKS, 0, -1) == [b"one"], "neither who told it nor the dead"
    assert paused(bench) is None
    assert tell("lost", "socket is gone", "one") == "lost"
    assert record() == f"lost 0 {NOW} {NOW + 15_000} 0 socket is gone"
    assert paused(bench) == f"{NOW + 15_000} socket is gone"
    bench.now_ms += 5000
    assert tell("lost", "still", "one") == "lost"
    assert record() == f"lost 0 {NOW} {NOW + 20_000} 0 still", "since it began"


def test_one_that_is_connected_ends_it(bench, tell, record):
    record.write(f"lost 0 {NOW - 9} {NOW + 9} 0 gone")
    bench.client.hset(NAMES["paused"].full, f"breaker {LANE}", "0 gone")
    assert tell("back", "one", 15_000) == "closed"
    assert bench.client.zrange(LINKS, 0, -1, withscores=True) == [(b"one", NOW + 15_000)]
    assert 600_000 < bench.client.ttl(LINKS) <= 604_800
    assert (record(), paused(bench)) == (None, None)


@pytest.mark.parametrize("state", ["open", "half", "closed"])
def test_a_connection_says_nothing_of_calls(tell, record, state):
    """Who is connected may fail all the same: only a driver that was lost comes back by it."""
    record.write(f"{state} 1 {NOW - 9} {NOW + 9} 2000 old")
    assert tell("back", "one", 15_000) == state
    assert record() == f"{state} 1 {NOW - 9} {NOW + 9} 2000 old"

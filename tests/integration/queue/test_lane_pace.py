"""The pace of a lane: "too many" halves it, and rates delay its calls and writes."""

from __future__ import annotations

import pytest

from workers.queue.clock import read_clock
from workers.queue.names import NAMES
from workers.queue.scripts import Scripts

NOW = 1_700_000_000_000
LANE = "claims|d"
LIMITS = NAMES["limits"].full + LANE


@pytest.fixture
def scripts(bench):
    return Scripts(bench.client, lambda: bench.now_ms)


@pytest.mark.parametrize(
    ("concurrency", "cap", "gain"), [(100, 50, 2), (50, 25, 1), (149, 74, 2), (3, 1, 1), (1, 1, 1)]
)
def test_too_much_halves_a_lane_which_gets_a_50th_back(scripts, bench, concurrency, cap, gain):
    bench.process().set_limits(LANE, concurrency)
    assert scripts.run("throttle", LANE, 5000, 1000) == cap
    found = bench.client.hmget(LIMITS, "cap", "cap_at", "cap_step", "cap_gain")
    assert [int(value) for value in found] == [cap, NOW, 5000, gain]


@pytest.mark.parametrize(
    ("later", "now"), [(0, 50), (999, 50), (1000, 25), (5000, 26), (60_000, 37)]
)
def test_the_cool_down_ends_with_its_last_millisecond(scripts, bench, later, now):
    """In the cool-down a limit is halved only once, because calls that ran together fail together.

    After it, a partly recovered limit is halved too.
    """
    bench.process().set_limits(LANE, 100)
    scripts.run("throttle", LANE, 5000, 1000)
    bench.now_ms += later
    assert scripts.run("throttle", LANE, 5000, 1000) == now
    assert int(bench.client.hget(LIMITS, "cap_at")) == NOW + (later if later >= 1000 else 0)


def test_a_lane_that_nobody_declared_is_not_lowered(scripts, bench):
    assert scripts.run("throttle", LANE, 5000, 1000) == 0
    assert not bench.client.exists(LIMITS)


@pytest.mark.parametrize(("rate", "burst", "waits"), [
    (10, 1, [0, 100, 200]), (10, 3, [0, 0, 0, 100]), (4, 2, [0, 0, 250]), (0, 1, [0, 0, 0]),
    (3, 1, [0, 334, 667]),
])  # fmt: skip
def test_calls_of_a_rate_wait_for_their_places(scripts, bench, rate, burst, waits):
    bench.process().set_limits(LANE, 5, rate_per_second=rate, burst=burst)
    assert [scripts.run("pace", LANE) for _ in waits] == waits


@pytest.mark.parametrize("lost", ["calls", "calls_at"])
def test_a_bucket_of_which_a_part_is_lost_is_full(scripts, bench, lost):
    """A bucket of which somebody removed a field by hand counts as full."""
    bench.process().set_limits(LANE, 5, rate_per_second=10, burst=1)
    for _ in range(4):
        scripts.run("pace", LANE)
    bench.client.hdel(LIMITS, lost)
    assert [scripts.run("pace", LANE) for _ in range(2)] == [0, 100]


def test_a_clock_that_was_set_back_fills_no_bucket_and_empties_none(scripts, bench):
    bench.process().set_limits(LANE, 5, rate_per_second=10, burst=2)
    assert scripts.run("pace", LANE) == 0
    bench.now_ms -= 60_000
    assert [scripts.run("pace", LANE) for _ in range(2)] == [0, 100]


@pytest.mark.parametrize(("burst", "waits"), [
    (1, [0, 1, 2, 3]), (2, [0, 0, 1, 2]), (3, [0, 0, 0, 1]),
])  # fmt: skip
def test_writers_of_capacity_objects_take_turns(scripts, bench, burst, waits):
    """Each caller waits for its own turn, and each driver has its own bucket."""
    turn = 100_000
    found = [scripts.run("turn", "d", turn, burst) for _ in waits]
    assert found == [wait * turn for wait in waits]
    assert scripts.run("turn", "other", turn, burst) == 0
    key = NAMES["capacity_turn"].full + "d"
    assert float(bench.client.get(key)) == NOW + 4 * turn
    assert 0 < bench.client.pttl(key) <= 4 * turn
    bench.now_ms += 4 * turn
    assert scripts.run("turn", "d", turn, burst) == 0
    assert float(bench.client.get(key)) == NOW + 5 * turn


def test_a_pause_ends_after_its_span_or_never(scripts, bench):
    paused = NAMES["paused"].full
    scripts.run("pause", "driver", 1500, "new firmware", LANE)
    assert bench.client.hgetall(paused) == {
        b"driver " + LANE.encode(): b"%d new firmware" % (NOW + 1500)
    }
    scripts.run("pause", "driver", 0, "new firmware", LANE)
    assert bench.client.hget(paused, f"driver {LANE}") == b"0 new firmware"


PAUSED = NAMES["paused"].full


def test_the_time_of_a_script_is_the_queue_s(bench):
    """Without a settable clock, a script uses Redis' time, exact to the millisecond."""

    scripts, before = Scripts(bench.client), 0
    for _ in range(5):  # in the later half of a second, a rounded time would be in the future
        scripts.run("pause", "driver", 60_000, "x", LANE)
        until = int(bench.client.hget(PAUSED, f"driver {LANE}").split()[0])
        assert before <= until - 60_000 <= read_clock(bench.client).now_ms
        before = until - 60_000

"""The queue's guarantees to its process: deadlines, periods, and repeated declarations to Redis."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tests.support.taking import take
from workers.queue.holding import HeldLeases
from workers.queue.keys import claim_key
from workers.queue.limits import LaneLimits
from workers.queue.locks import Lock, Mode
from workers.queue.names import NAMES
from workers.queue.workqueue import WorkQueue

KEY, OTHER = (claim_key("d", "ns", name, f"uid-{name}") for name in ("a", "b"))
LANE = KEY.lane
USABLE = 3.5


class Sent:
    """Records a queue's commands by name; can answer in place of Redis."""

    def __init__(self, queue, answers=()):
        self.rows, self._answers = [], dict(answers)
        for scripts in (queue.scripts, queue._heartbeats):
            run = scripts.run
            scripts.run = lambda name, *args, run=run: self._run(run, name, args)
            scripts.run_each = self._run_each

    def _run(self, run, name, args):
        self.rows.append((name, *args))
        return self._answers[name] if name in self._answers else run(name, *args)

    def _run_each(self, name, rows):
        self.rows += [(name, *row) for row in rows]
        return [[] for _ in rows]

    def of(self, name):
        return [row[1:] for row in self.rows if row[0] == name]


@pytest.mark.parametrize(
    ("due_ms", "period", "seconds"),
    [
        pytest.param(-1, 5.0, 5.0, id="nothing is planned"),
        pytest.param(0, 5.0, 0.02, id="more is due than one call moves"),
        pytest.param(15, 5.0, 0.02, id="at once, but not for each key"),
        pytest.param(250, 5.0, 0.25, id="as soon as it is due"),
        pytest.param(9000, 5.0, 5.0, id="one look per period all the same"),
        pytest.param(-1, 0.0, 0.0, id="asked for at once"),
    ],
)
def test_the_next_look_comes_when_something_is_due(bench, due_ms, period, seconds):
    queue = bench.process()
    sent = Sent(queue, {"sweep": [due_ms, []]})
    assert queue.pump(period_seconds=period) == seconds
    ((period_ms, _, check_ms, ttl_ms, _),) = sent.of("sweep")
    assert (period_ms, ttl_ms) == (period * 1000, 4000)
    assert check_ms == (5000 if period else 0), "asked for at once: all of it"


@pytest.mark.parametrize(("took", "is_ours"), [(USABLE - 0.001, True), (USABLE, False)])
def test_a_lease_whose_answer_took_too_long_is_not_used(bench, took, is_ours):
    """G9: a lease whose reply took too long is not used, because the next owner may have the key.

    It expires in Redis.
    """
    queue = bench.process()
    queue.set_limits(LANE, 1)
    queue.add([KEY])
    run = queue.scripts.run

    def slow(name, *args):
        reply = run(name, *args)
        bench.advance(took if name == "take" else 0)
        return reply

    queue.scripts.run = slow
    lease = take(queue, KEY)
    assert (lease is not None) is is_ours
    assert bool(queue._leases.held) is is_ours


@pytest.mark.parametrize(("seconds", "is_said"), [(599.0, False), (600.0, False), (600.5, True)])
def test_limits_are_declared_again_every_ten_minutes(bench, seconds, is_said):
    """Limits are declared again every ten minutes, because Redis drops limits without a
    declaration.

    No process died, so no in-flight call is lost.
    """
    queue = bench.process()
    queue.set_limits(LANE, 3, hold_seconds=2)
    sent = Sent(queue)
    bench.advance(seconds)
    queue.heartbeat()
    expected = [(LANE, *LaneLimits(3, hold_seconds=2).args(), 0)]
    assert sent.of("limits") == (expected if is_said else [])
    queue.heartbeat()
    assert sent.of("limits") == (expected if is_said else []), "then again after ten minutes"


@pytest.mark.parametrize(
    ("kind", "seconds", "passed", "said"),
    [
        pytest.param("lease", 15.0, 5.0, [("lease", 10_000, "why", LANE)], id="for the rest"),
        pytest.param("lease", 15.0, 15.0, [], id="over: 0 would mean forever"),
        pytest.param("lease", 15.0, 20.0, [], id="long over"),
        pytest.param("lease", None, 5.0, [], id="without an end: told anew by whoever knows"),
        pytest.param("driver", 15.0, 5.0, [], id="a lost driver's is found out anew"),
    ],
)
def test_of_pauses_those_for_a_lease_are_said_again(bench, kind, seconds, passed, said):
    queue = bench.process()
    queue.pause(LANE, "why", seconds=seconds, kind=kind)
    sent = Sent(queue)
    bench.advance(passed)
    bench.client.flushall()
    queue.heartbeat()
    assert sent.of("pause") == said


@pytest.mark.parametrize(("kind", "is_said"), [("lease", False), ("driver", True)])
def test_a_resume_of_another_kind_leaves_the_pause_for_a_lease(bench, kind, is_said):
    queue = bench.process()
    queue.pause(LANE, "why", seconds=15, kind="lease")
    queue.resume(LANE, kind=kind)
    queue.resume("claims|never", kind=kind)
    sent = Sent(queue)
    bench.client.flushall()
    queue.heartbeat()
    assert bool(sent.of("pause")) is is_said


@pytest.mark.parametrize("seconds", [None, 2.0])
def test_a_pause_has_an_end_or_none(bench, seconds):
    queue = bench.process()
    queue.pause(LANE, "why", seconds=seconds)
    end = 0 if seconds is None else bench.now_ms + 2000
    raw = bench.client.hget(NAMES["paused"].full, f"driver {LANE}")
    assert raw.decode() == f"{end} why"


def test_a_process_that_ended_has_nothing_to_lose(bench, start_queue):
    queue = start_queue()
    queue.add([KEY])
    lease = bench.run_next(queue)
    queue.close()
    assert not lease.is_held()
    assert not queue.heartbeat()


def test_a_new_life_is_told_to_those_who_knew_the_old_one(bench, caplog):
    queue = bench.process()
    assert "Redis restarted" not in caplog.text
    bench.client.flushall()
    queue.heartbeat()
    assert "Redis restarted" in caplog.text


def test_locks_that_a_pass_takes_stand_once_whatever_it_asks_for(bench, start_queue):
    queue = start_queue()
    queue.add([KEY])
    lease = bench.run_next(queue, "pv")
    assert queue.acquire(lease, Lock("a"), Lock("a"), Lock("pv"), Lock("b")) is None
    assert [lock.name for lock in lease.locks] == ["pv", "a", "b"]
    queue.unlock(lease, "a")
    assert [lock.name for lock in lease.locks] == ["pv", "b"]


def test_a_lock_that_is_shared_is_taken_shared(bench, start_queue):
    """A lock that is asked for as shared is shared, as for snapshots of one volume.

    An exclusive lock stays exclusive.
    """
    queue = start_queue()
    queue.add([KEY, OTHER])
    one, two = bench.run_next(queue, "pv-a"), bench.run_next(queue, "pv-b")
    shared = Lock("volume", Mode.SHARED)
    for lease in (one, two):
        assert queue.acquire(lease, shared) is None
        assert lease.locks[-1] == shared
    alone = Lock("alone")
    assert queue.acquire(one, alone) is None
    assert queue.acquire(one, Lock("alone", Mode.SHARED), Lock("more")) is None
    assert one.locks == (Lock("pv-a"), shared, alone, Lock("more"))
    assert queue.acquire(two, Lock("alone", Mode.SHARED)) == Lock("alone", Mode.SHARED)


def test_wake_ups_of_a_new_life_are_left_to_others():
    """The heartbeat leaves the messages of a new epoch to the
    pump, because its thread must not wait for the broker.
    """
    held, sent = [], []
    replies = {"regain": [b"e", [b"drv.d"], [], 5]}
    scripts = SimpleNamespace(new_life=lambda: "e", run=lambda name, *_: replies[name])
    wakeups = SimpleNamespace(hold=held.extend, publish=sent.extend)
    leases = HeldLeases(
        scripts, scripts, wakeups, ttl_ms=4000, clock=lambda: 0.0,
        on_lost=lambda: None, remembered=None,
    )  # fmt: skip
    told = []
    assert not leases.heartbeat(lambda *, is_new_life: told.append(is_new_life))
    assert (held, sent, told, leases.session.epoch) == ([b"drv.d"], [], [False], "e")
    replies["renew"] = [0]
    leases.heartbeat(lambda *, is_new_life: told.append(is_new_life))
    assert told == [False, True]


def test_a_queue_without_a_clock_of_its_own_takes_redis_time(redis_client):
    with_time = WorkQueue(redis_client, publish=lambda _: None, now_ms=lambda: 5000)
    redis_client.zadd(NAMES["ready"].full + LANE, {KEY.text: 0})
    redis_client.hset(NAMES["since"].full, KEY.text, 1000)
    redis_client.sadd(NAMES["lanes"].full, LANE)
    assert with_time.stats()[LANE].head_age_seconds == 4
    without = WorkQueue(redis_client, publish=lambda _: None)
    assert without.stats()[LANE].head_age_seconds > 1e9

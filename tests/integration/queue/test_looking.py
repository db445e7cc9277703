"""Reading clocks, processes and pauses from Redis, with a settable time of Redis."""

from __future__ import annotations

import os

import pytest

from workers.kube.pauserecord import Recorded
from workers.queue import clock
from workers.queue.fellows import LeaseFellows
from workers.queue.keys import claim_key
from workers.queue.limits import read_stats
from workers.queue.names import NAMES
from workers.queue.pauses import Pause, Pauses
from workers.queue.periods import Periods
from workers.queue.presence import TTL_SECONDS, Presence, Process
from workers.queue.workqueue import WorkQueue

NOW = 1_000_000.5
NOW_MS = 1_000_000_500
LANE = claim_key("d", "ns", "a", "u").lane


@pytest.fixture
def at(redis_client, monkeypatch):
    """Return a function that sets the queue's clock, in seconds."""

    def set_time(seconds):
        now_ms = round(seconds * 1000)
        monkeypatch.setattr(clock, "clock_of", lambda *_: clock.Clock(now_ms, now_ms))

    set_time(NOW)
    return set_time


class Clock:
    """A local clock in seconds."""

    now = 50.0

    def __call__(self):
        return self.now


def test_the_queue_s_clock_has_fractions(redis_client, at):
    assert clock.read_clock(redis_client).shown_now == NOW
    redis_client.zadd(NAMES["ready"].full + LANE, {"claims|d|ns/a|u": 0})
    redis_client.hset(NAMES["since"].full, "claims|d|ns/a|u", NOW_MS - 2500)
    redis_client.sadd(NAMES["lanes"].full, LANE)
    assert read_stats(redis_client)[LANE].head_age_seconds == 2.5


def test_who_is_alive_says_so_for_a_while(redis_client, at):
    presence, name = Presence(redis_client), NAMES["presence"].full
    redis_client.zadd(name, {"beat h 7": NOW, "beat h 8": NOW - 1, "what is this": NOW + 99})
    redis_client.zadd(name, {"no role": NOW + 99})
    presence.announce("watcher")
    assert (role_of(presence), redis_client.zcard(name)) == (["watcher", "what"], 3)
    (own,) = (one for one in presence.alive() if one.role == "watcher")
    assert own == Process("watcher", own.host, str(os.getpid()))
    assert " " not in own.host
    at(NOW + TTL_SECONDS)
    assert "watcher" in role_of(presence)
    at(NOW + TTL_SECONDS + 0.01)
    assert role_of(presence) == ["what"]


def role_of(presence):
    return [one.role for one in presence.alive()]


def test_workers_are_the_processes_of_the_queue_that_live(redis_client, at):
    names = {"h:7:x": NOW_MS, "dead:8:x": NOW_MS - 1, "odd": NOW_MS + 1}
    redis_client.zadd(NAMES["procs"].full, names)
    assert Presence(redis_client).workers() == [
        Process("worker", "h", "7"),
        Process("worker", "odd", ""),
    ]


def test_who_works_by_a_lease_stands_there_for_its_time(redis_client, at):
    name = NAMES["fellows"].full + "lease"
    one = LeaseFellows(redis_client, settle_seconds=10)
    redis_client.zadd(name, {"dead": NOW_MS, "alive": NOW_MS + 1})
    one.works("lease", "w1", 13.0001)
    assert redis_client.zrange(name, 0, -1, withscores=True) == [
        (b"alive", NOW_MS + 1),
        (b"w1", NOW_MS + 13_001),
    ]
    assert 600_000 < redis_client.ttl(name) <= 604_800, "a Lease that went leaves nothing"
    one.is_last("lease", "w1")
    assert redis_client.zrange(name, 0, -1) == [b"alive"]


@pytest.mark.parametrize(
    ("waited", "is_there", "others", "is_last"),
    [
        pytest.param(10.0, True, {}, False, id="not for longer than everybody needs"),
        pytest.param(10.1, True, {}, True, id="alone"),
        pytest.param(10.1, True, {"w2": NOW_MS}, True, id="the other's time is over"),
        pytest.param(10.1, True, {"w2": NOW_MS + 1}, False, id="not alone"),
        pytest.param(10.1, False, {}, False, id="its entry was lost"),
    ],
)
def test_the_last_one_is_certain_of_it(redis_client, at, waited, is_there, others, is_last):
    clock, name = Clock(), NAMES["fellows"].full + "lease"
    one = LeaseFellows(redis_client, settle_seconds=10, clock=clock)
    one.works("lease", "w1", 60)
    clock.now += waited
    if not is_there:
        redis_client.delete(name)
    if others:
        redis_client.zadd(name, others)
    assert one.is_last("lease", "w1") is is_last
    assert not one.is_last("lease", "w1"), "it works no more, and knows of nobody"


def test_who_never_worked_is_not_the_last(redis_client):
    assert not LeaseFellows(redis_client, settle_seconds=0).is_last("lease", "w1")


def test_a_period_begins_when_it_is_due_or_the_work_was_done(redis_client):
    """M-004: all processes share one period, which
    starts when it is due or when its work was done.
    """
    one, two = Periods(redis_client), Periods(redis_client)
    assert one.is_due("thing", 100)
    assert not two.is_due("thing", 100)
    assert two.is_due("another", 100)
    two.restart("thing", 1000)
    assert 990_000 < redis_client.pttl(NAMES["period"].full + "thing") <= 1_000_000
    two.restart("new", 1000)
    assert not one.is_due("new", 1000)


def test_class_pauses_that_are_over_are_none(redis_client, at):
    """Expired pauses of classes are ignored but not removed,
    because an operator might write a pause at the same moment.
    """
    raw = {"over": f"{NOW_MS} 5 x", "broken": "soon x", "on": f"{NOW_MS + 1} 5 y", "ever": "0 0 z"}
    raw = {f"class {name}": value for name, value in raw.items()} | {"driver d": "0 0 x"}
    redis_client.hset(NAMES["pauses"].full, mapping=raw)
    assert Pauses(redis_client).classes() == {
        "on": Pause("y", NOW_MS + 1),
        "ever": Pause("z", 0),
    }
    assert redis_client.hlen(NAMES["pauses"].full) == len(raw)
    redis_client.delete(NAMES["pauses"].full)
    assert Pauses(redis_client).classes() == {}


class Queue:
    """The part of the queue that pauses read."""

    epoch = "one"


@pytest.mark.parametrize(
    ("seconds", "epoch", "is_read"),
    [(0.0, "one", False), (0.99, "one", False), (1.0, "one", True), (0.0, "two", True)],
)
def test_a_class_is_read_once_a_second_and_in_each_life_of_redis(
    redis_client, seconds, epoch, is_read
):
    clock, queue = Clock(), Queue()
    pauses = Pauses(redis_client, queue, clock=clock)
    assert pauses.of_class("gold") is None
    other = Pauses(redis_client, WorkQueue(redis_client, publish=lambda _: None))
    other.mirror(Recorded("5", {"class gold": "0 by another"}))
    clock.now += seconds
    queue.epoch = epoch
    assert (pauses.of_class("gold") is not None) is is_read
    other.mirror(Recorded("6"))
    assert (pauses.of_class("gold") is not None) is is_read, "once"


def test_what_this_process_mirrors_counts_at_once(redis_client):
    clock = Clock()
    pauses = Pauses(redis_client, WorkQueue(redis_client, publish=lambda _: None), clock=clock)
    assert pauses.of_class("gold") is None
    assert pauses.mirror(Recorded("5", {"class gold": "0 audit"}))
    assert pauses.of_class("gold") == Pause("audit", 0)
    assert pauses.mirror(Recorded("6"))
    assert pauses.of_class("gold") is None


def test_pauses_are_mirrored_through_the_queue_alone(redis_client):
    with pytest.raises(ValueError, match="without a queue"):
        Pauses(redis_client).mirror(Recorded("5"))

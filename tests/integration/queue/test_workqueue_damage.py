"""The queue goes on when Redis lost or damaged what it held, on a real Redis."""

from __future__ import annotations

import pytest

from workers.errors import QueueUnavailable
from workers.queue.keys import Key, claim_key
from workers.queue.names import NAMES, PREFIX, celery_queue
from workers.queue.workqueue import WorkQueue

BACKOFF = {"base_seconds": 1, "cap_seconds": 300}


def claim(name: str) -> Key:
    return claim_key("d", "ns", name, f"uid-{name}")


def test_wiped_redis_gets_leases_and_limits_back(bench, start_queue):
    """Architecture 1: no operator step; who works goes on, nobody else begins it again."""
    queue = start_queue()
    queue.add([claim("a"), claim("b")])
    old, old_epoch = bench.run_next(queue, "pvc-a"), queue.epoch
    bench.client.flushall()
    bench.tickets.clear()
    queue.add([claim("a"), claim("b")])
    assert queue.take(claim("a")) is None
    assert not queue.heartbeat()
    assert queue.epoch != old_epoch
    old.check()
    assert bench.tickets == [], "nothing is admitted until all processes spoke"
    bench.advance(4.1)
    queue.heartbeat()
    queue.pump(period_seconds=0)
    assert bench.tickets == [claim("b")]
    assert queue.done(old)
    assert bench.tickets == [claim("b"), claim("a")], "it was added while it ran"
    bench.tickets.pop(0)
    assert bench.run_next(queue, "pvc-a").fence > old.fence


def test_take_in_a_new_life_wakes_the_heartbeat(bench):
    """Whoever holds leases gives them back at once, not with the next beat."""
    woken = []
    queue = WorkQueue(
        bench.client,
        publish=bench.tickets.extend,
        now_ms=lambda: bench.now_ms,
        on_lost=lambda: woken.append("now"),
    )
    queue.register_process()
    queue.set_limits("claims|d", 1)
    queue.add([claim("a")])
    assert queue.take(claim("a")) is not None
    assert woken == []
    bench.client.flushall()
    assert queue.take(claim("a")) is None
    assert woken == ["now"]


def test_lease_whose_deadline_was_deleted_ends_all_the_same(bench, start_queue):
    """By somebody's hand, and its lane's place too: the key of a dead process runs again."""
    one, two = start_queue(), start_queue()
    one.add([claim("a")])
    bench.run_next(one)
    bench.client.delete(NAMES["leased"].full + "claims|d", NAMES["lanes"].full)
    two.pump(period_seconds=0)
    bench.advance(4.1)
    two.heartbeat()
    two.pump(period_seconds=0)
    assert bench.tickets == [claim("a")]


def test_broken_tickets_channel_is_repaired_by_the_sweep(bench, start_queue):
    """Pitfalls 2.4: a failed publish after ADD is harmless."""
    start_queue()

    def refuse(_: list[Key]) -> None:
        raise QueueUnavailable("broker is away")

    broken = WorkQueue(bench.client, publish=refuse, now_ms=lambda: bench.now_ms)
    broken.add([claim("a")])
    bench.advance(2.1)
    bench.process().pump(period_seconds=0)
    assert bench.tickets == [claim("a")]


@pytest.mark.parametrize(
    "name", ["leases", "dirty", "delayed", "procs", "epoch", "lanes", "ready:claims|d", "fails"]
)
def test_wrong_typed_key_is_set_aside_and_the_queue_goes_on(bench, start_queue, caplog, name):
    """One error names the key; the next calls work, after a heartbeat even with leases."""
    queue = start_queue(concurrency=1)
    queue.add([claim("a"), claim("b")])
    wrong = PREFIX + name
    bench.client.delete(wrong)
    if name == "epoch":
        bench.client.rpush(wrong, "x")
    else:
        bench.client.set(wrong, "x")
    is_done = False
    for _ in range(5):
        bench.tickets.clear()
        queue.add([claim("a"), claim("b"), claim("c")])
        bench.advance(3)
        queue.heartbeat()
        queue.pump(period_seconds=0)
        lease = queue.take(bench.tickets[0]) if bench.tickets else None
        is_done = lease is not None and queue.done(lease)
    assert is_done
    errors = [r for r in caplog.records if r.levelname == "ERROR"]
    assert [r.fields["redis_key"] for r in errors] == [wrong]


def test_a_wrong_typed_list_of_tickets_stops_no_other_driver(bench, start_queue, caplog):
    """Each driver's worker may write to all lists of tickets; the sweep reads their lengths."""
    queue = start_queue()
    queue.set_limits("claims|e", 1)
    queue.add([claim("a"), claim_key("e", "ns", "b", "uid-b")])
    lost = set(bench.tickets)
    bench.tickets.clear()
    bench.client.set(celery_queue("d"), "somebody's")
    bench.advance(2.1)
    queue.pump(period_seconds=0)
    bench.advance(2.1)
    queue.pump(period_seconds=0)
    assert set(bench.tickets) == lost
    assert not bench.client.exists(celery_queue("d"))
    errors = [r for r in caplog.records if r.levelname == "ERROR"]
    assert [r.fields["redis_key"] for r in errors] == [celery_queue("d")]


@pytest.mark.parametrize("value", ["", "not a lease", '{"json": true}'])
def test_unreadable_lease_is_dropped_and_its_key_runs_again(bench, start_queue, value):
    queue = start_queue()
    queue.add([claim("a")])
    bench.run_next(queue)
    bench.client.hset(NAMES["leases"].full, claim("a").text, value)
    assert queue.take(claim("a")) is None
    bench.advance(1)
    queue.pump(period_seconds=0)
    assert bench.run_next(queue).key == claim("a")


def test_unreadable_key_text_is_reported_not_raised(bench, start_queue, caplog):
    queue = start_queue()
    bench.client.zadd(NAMES["ready"].full + "claims|d", {"no key": 0})
    queue.set_limits("claims|d", 5)
    bench.advance(3)
    queue.pump(period_seconds=0)
    assert caplog.text.count("unreadable key") == 1
    assert bench.tickets == []
    assert queue.stats()["claims|d"].ticketed == 0

"""The queue continues after Redis lost or damaged its data, on a real Redis."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.support.taking import take
from workers.errors import QueueUnavailable
from workers.queue.keys import Key, claim_key
from workers.queue.names import NAMES, PREFIX, celery_queue
from workers.queue.scripts import repair, text
from workers.queue.workqueue import WorkQueue

BACKOFF = {"base_seconds": 1, "cap_seconds": 300}


def claim(name: str) -> Key:
    return claim_key("d", "ns", name, f"uid-{name}")


def test_wiped_redis_gets_leases_and_limits_back(bench, start_queue):
    """After a loss of data, leases and limits are restored without an operator.

    The owner continues, and no other process begins its key.
    """
    queue = start_queue()
    queue.add([claim("a"), claim("b")])
    old, old_epoch = take(queue, claim("a"), "pvc-a"), queue.epoch
    bench.client.flushall()
    queue.add([claim("a"), claim("b")])
    assert take(queue, claim("a")) is None
    assert not queue.heartbeat()
    assert queue.epoch != old_epoch
    old.check()
    assert take(queue, claim("b")) is None, "nothing is taken until all processes spoke"
    bench.advance(4.1)
    queue.heartbeat()
    queue.pump(period_seconds=0)
    assert bench.due == [claim("b")]
    assert queue.done(old)
    assert bench.due == [claim("b"), claim("a")], "it was added while it ran"
    assert take(queue, claim("a"), "pvc-a").fence > old.fence


def test_take_in_a_new_life_wakes_the_heartbeat(bench):
    """A take in a new epoch triggers a heartbeat at once, so
    that leases are given back before the next regular one.
    """
    woken = []
    queue = WorkQueue(
        bench.client,
        publish=bench.woken.extend,
        now_ms=lambda: bench.now_ms,
        on_lost=lambda: woken.append("now"),
    )
    queue.register_process()
    queue.set_limits("claims|d", 1)
    queue.add([claim("a")])
    assert take(queue, claim("a")) is not None
    assert woken == []
    bench.client.flushall()
    assert queue.take("d", ["claims"]) is None
    assert woken == ["now"]


def test_lease_whose_deadline_was_deleted_ends_all_the_same(bench, start_queue):
    """A lease whose deadline and lane entry were
    deleted by hand expires, and its key runs again.
    """
    one, two = start_queue(), start_queue()
    one.add([claim("a")])
    bench.run_next(one)
    bench.client.delete(NAMES["leased"].full + "claims|d", NAMES["lanes"].full)
    two.pump(period_seconds=0)
    bench.advance(4.1)
    two.heartbeat()
    two.pump(period_seconds=0)
    assert bench.due == [claim("a")]


def test_a_wake_up_that_could_not_be_sent_is_repeated_by_the_sweep(bench, start_queue):
    """A message that could not be sent is repeated by the
    sweep, so a failed publish after the add does no harm.
    """
    start_queue()

    def refuse(_: list[str]) -> None:
        raise QueueUnavailable("broker is away")

    broken = WorkQueue(bench.client, publish=refuse, now_ms=lambda: bench.now_ms)
    broken.add([claim("a")])
    bench.client.delete(NAMES["woken"].full + celery_queue("d"))  # two seconds pass
    bench.process().pump(period_seconds=0)
    assert bench.woken == [celery_queue("d")]


@pytest.mark.parametrize(
    "name", ["leases", "dirty", "delayed", "procs", "epoch", "lanes", "ready:claims|d", "fails"]
)
def test_wrong_typed_key_is_set_aside_and_the_queue_goes_on(bench, start_queue, caplog, name):
    """A key of a wrong type is quarantined with one error that names it.

    The next calls succeed, with leases after one heartbeat.
    """
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
        queue.add([claim("a"), claim("b"), claim("c")])
        bench.advance(3)
        queue.heartbeat()
        queue.pump(period_seconds=0)
        lease = queue.take("d", ["claims"])
        is_done = lease is not None and queue.done(lease)
    assert is_done
    errors = [r for r in caplog.records if r.levelname == "ERROR"]
    assert [r.fields["redis_key"] for r in errors] == [wrong]


def test_a_wrong_typed_celery_list_stops_no_other_driver(bench, start_queue, caplog):
    """A driver's Celery list of a wrong type does not stop other drivers.

    Each driver's worker can write to all these lists, and scripts read their lengths.
    """
    queue = start_queue()
    queue.set_limits("claims|e", 1)
    bench.client.set(celery_queue("d"), "somebody's")
    queue.add([claim("a"), claim_key("e", "ns", "b", "uid-b")])
    assert set(bench.woken) == {celery_queue("d"), celery_queue("e")}
    assert repair(bench.client)
    assert not bench.client.exists(celery_queue("d"))
    errors = [r for r in caplog.records if r.levelname == "ERROR"]
    assert [r.fields["redis_key"] for r in errors] == [celery_queue("d")]


@pytest.mark.parametrize("value", ["", "not a lease", '{"json": true}'])
def test_unreadable_lease_is_dropped_and_its_key_runs_again(bench, start_queue, value):
    queue = start_queue()
    queue.add([claim("a")])
    bench.run_next(queue)
    bench.client.hset(NAMES["leases"].full, claim("a").text, value)
    assert take(queue, claim("a")) is None
    bench.advance(1)
    queue.pump(period_seconds=0)
    assert bench.run_next(queue).key == claim("a")


STRAYS = {
    "no key": b"no key",
    "encoded without need": b"claims|d|ns%2Fa|u",
    "in small letters": b"claims|d|ns/a%7c|u",
    "a percent sign": b"claims|d|ns/100%|u",
    "a control character": b"claims|d|ns/\x01|u",
    "no UTF-8": b"claims|d|ns/\xff|u",
    "another lane's": b"claims|e|ns/a|u",
}


@pytest.mark.parametrize("family", ["ready", "retry", "leased"])
@pytest.mark.parametrize("member", STRAYS.values(), ids=STRAYS)
def test_a_member_that_no_worker_can_take_is_named_once_and_costs_no_slot(
    bench, start_queue, caplog, family, member
):
    """A member that no worker can take, written by
    hand, is reported once and uses no slot of its lane.
    """
    queue = start_queue(concurrency=1)
    bench.client.zadd(NAMES[family].full + "claims|d", {member: 0})
    queue.add([claim("a")])
    for _ in range(3):
        bench.advance(3)
        queue.heartbeat()
        queue.pump(period_seconds=0)
    lease = queue.take("d", ["claims"])
    assert lease.key == claim("a")
    queue.done(lease)
    assert queue.take("d", ["claims"]) is None
    found = queue.stats()["claims|d"]
    assert (found.ready, found.retry, found.running) == (0, 0, 0)
    named = [r.fields["key"] for r in caplog.records if "unreadable key" in r.getMessage()]
    assert named == [text(member)]


PIECES = [b"%", b"%25", b"%7C", b"%7c", b"%7F", b"%00", b"%1F", b"%1f", b"%2", b"5", b"7C", b"|"]
PIECES += [b"\x00", b"\x1f", b"\x7f", b"\x80", b"\xc3", b"\xc0\x80", b"\xe0\x80\x80"]
PIECES += [b"\xed\xa0\x80", b"\xf4\x90\x80\x80", *(c.encode() for c in "aäࠀ€퟿\ue000😀\U0010ffff")]


def is_canonical(member: bytes) -> bool:
    try:
        return Key.parse(member.decode()).text.encode() == member
    except ValueError:
        return False


@settings(
    max_examples=200,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    database=None,
    phases=[Phase.generate],
)
@given(st.lists(st.sampled_from(PIECES) | st.binary(max_size=2), max_size=6).map(b"".join))
def test_redis_knows_the_one_spelling_of_a_key_as_we_do(redis_client, rest):
    """Redis accepts a key only in the one spelling that
    csi-fleet writes, so a worker sends a key back unchanged.
    """
    redis_client.flushall()
    queue = WorkQueue(redis_client, publish=lambda _: None)
    queue.register_process()
    member = b"claims|d|" + rest + b"|u"
    redis_client.zadd(NAMES["ready"].full + "claims|d", {member: 0})
    queue.set_limits("claims|d", 1)
    lease = queue.take("d", ["claims"])
    assert (lease is not None) == is_canonical(member)
    assert lease is None or lease.key.text.encode() == member

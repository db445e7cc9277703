"""The end of a lease brings the driver's next ticket, in the order that was decided."""

from __future__ import annotations

import pytest

from workers.errors import QueueUnavailable
from workers.queue.keys import Key, claim_key, volume_key
from workers.queue.locks import Lock
from workers.queue.names import celery_queue

LIST = celery_queue("d")
ENDS = {
    "done": lambda queue, lease: queue.done(lease),
    "fail": lambda queue, lease: queue.fail(lease, base_seconds=60, cap_seconds=60),
    "release": lambda queue, lease: queue.release(lease, delay_seconds=60),
    "block": lambda queue, lease: queue.block(lease, Lock("pvc-held")),
}


def claim(name: str) -> Key:
    return claim_key("d", "ns", name, f"uid-{name}")


class Begun:
    """A process' threads: what they were given, and whether they take more."""

    def __init__(self):
        self.keys = []
        self.wants = self.works = True
        self.asked = []

    def wanted(self, lease):
        self.asked.append(lease.key)
        return self.wants

    def read(self, message):
        return Key.parse(message.decode())

    def begin(self, key):
        if self.works:
            self.keys.append(key)
        return self.works


@pytest.fixture
def begun():
    return Begun()


@pytest.fixture
def queue(bench, begun):
    """Two claims of driver `d` at a time."""
    one = bench.process(begun)
    one.set_limits("claims|d", 2)
    one.set_limits("volumes|d", 2)
    return one


def send_all(bench):
    """What was published stands in Celery's list, the oldest at its right end."""
    for key in bench.tickets:
        bench.client.lpush(LIST, key.text)
    bench.tickets.clear()


@pytest.mark.parametrize("how", ENDS)
def test_the_end_of_a_lease_brings_the_oldest_ticket_and_sends_what_it_admits(
    bench, queue, begun, how
):
    """Whoever admits decides the order: a thread that goes on takes nobody's turn."""
    holder = bench.process()
    bench.process().set_limits("volumes|d", 2)
    holder.add([volume_key("d", "pvc-held")])
    assert holder.take(bench.tickets.pop(0), [Lock("pvc-held")])
    queue.add([claim(name) for name in "abcd"])
    lease = bench.run_next(queue, "pvc-a")
    send_all(bench)
    ENDS[how](queue, lease)
    assert (begun.asked, begun.keys) == ([claim("a")], [claim("b")])
    assert bench.tickets == [claim("c")]
    assert bench.client.llen(LIST) == 0


def test_an_admitted_key_is_begun_without_a_message_when_none_waits(bench, queue, begun):
    queue.add([claim(name) for name in "abcd"])
    one, two = bench.run_next(queue, "pvc-a"), bench.run_next(queue, "pvc-b")
    queue.done(one)
    queue.done(two)
    assert begun.keys == [claim("c"), claim("d")]
    assert bench.tickets == []


def test_a_key_of_another_list_is_sent(bench, queue, begun):
    """Waiters of a lock may belong to another worker: of another driver or controller."""
    other = claim_key("e", "ns", "a", "uid")
    queue.set_limits(other.lane, 1)
    queue.add([claim("a")])
    lease = bench.run_next(queue, "pvc-a")
    queue.add([other])
    assert queue.take(bench.tickets.pop(0), [Lock("pvc-a")]) is None
    queue.done(lease)
    assert (begun.keys, bench.tickets) == ([], [other])


def test_a_process_that_wants_none_leaves_the_list_alone(bench, queue, begun):
    begun.wants = False
    queue.add([claim(name) for name in "abc"])
    lease = bench.run_next(queue, "pvc-a")
    send_all(bench)
    queue.done(lease)
    assert (begun.keys, bench.client.llen(LIST), bench.tickets) == ([], 1, [claim("c")])


@pytest.mark.parametrize("has_message", [True, False])
def test_what_cannot_be_begun_any_more_is_sent(bench, queue, begun, has_message):
    """The pool of threads ended meanwhile."""
    begun.works = False
    queue.add([claim(name) for name in "abc"])
    one, two = bench.run_next(queue, "pvc-a"), bench.run_next(queue, "pvc-b")
    if has_message:
        bench.client.lpush(LIST, claim("z").text)
    queue.done(one)
    assert sorted(bench.tickets) == [claim("c"), *([claim("z")] if has_message else [])]
    assert queue.done(two)


def test_an_unreadable_message_is_dropped_and_told(bench, queue, begun, caplog):
    queue.add([claim(name) for name in "abc"])
    lease = bench.run_next(queue, "pvc-a")
    bench.client.rpush(LIST, "nonsense")
    queue.done(lease)
    assert "ticket dropped" in caplog.text
    assert (begun.keys, bench.tickets[-1:]) == ([], [claim("c")])


def test_a_list_of_a_wrong_type_delays_no_end(bench, queue, begun):
    """By somebody's hand; what its tickets stood for is sent again by the sweep."""
    queue.add([claim(name) for name in "abc"])
    lease = bench.run_next(queue, "pvc-a")
    bench.tickets.clear()
    bench.client.set(LIST, "somebody's")
    assert queue.done(lease)
    bench.advance(2.1)
    queue.pump(period_seconds=0)
    assert sorted(bench.tickets) == [claim("b"), claim("c")]


def test_only_the_end_of_a_lease_takes_a_ticket(bench, queue, begun):
    """Neither a repeated call, whose first reply may have been read, nor a lost lease."""
    queue.add([claim("a"), claim("b")])
    one, two = bench.run_next(queue, "pvc-a"), bench.run_next(queue, "pvc-b")
    queue.done(one)
    bench.client.lpush(LIST, claim("z").text)
    queue.done(one)
    other = bench.process()
    bench.advance(4.1)
    other.heartbeat()
    other.pump(period_seconds=0)
    queue.done(two)
    assert begun.keys == []
    assert bench.client.llen(LIST) == 1


def test_an_end_that_redis_did_not_confirm_takes_none_later(bench, queue, begun, monkeypatch):
    """The heartbeat repeats it, and its thread begins no work."""
    queue.add([claim(name) for name in "abc"])
    lease = bench.run_next(queue, "pvc-a")
    send_all(bench)
    scripts = queue._leases._scripts

    def away(*_args):
        raise QueueUnavailable("away")

    with monkeypatch.context() as patch:
        patch.setattr(scripts, "run", away)
        with pytest.raises(QueueUnavailable):
            queue.done(lease)
    queue.heartbeat()
    assert (begun.keys, bench.client.llen(LIST)) == ([], 1)
    queue.add([])
    queue.pump(period_seconds=0)
    assert bench.tickets == [claim("c")]

"""Who ends a lease goes on with the oldest ticketed key, whose message then stands for another."""

from __future__ import annotations

import pytest

from workers.app import _message, make_app, ticket
from workers.config.settings import Settings
from workers.controllers import catalogue
from workers.errors import QueueUnavailable
from workers.queue.intents import IntentStore
from workers.queue.keys import Key, claim_key, volume_key
from workers.queue.kinds import place_of
from workers.queue.leases import Lease
from workers.queue.locks import Lock
from workers.queue.names import NAMES, celery_queue

LIST = celery_queue("d")
RULES = "claims x:pvc-\2\nvolumes x:\1"
ENDS = {
    "done": lambda queue, lease: queue.done(lease),
    "fail": lambda queue, lease: queue.fail(lease, base_seconds=60, cap_seconds=60),
    "release": lambda queue, lease: queue.release(lease, delay_seconds=60),
    "block": lambda queue, lease: queue.block(lease, Lock("pvc-held")),
}


def claim(name: str) -> Key:
    return claim_key("d", "ns", name, name)


def end(queue, lease, how="done", rules=RULES):
    """Ends it as a thread that goes on; the key that it goes on with, None for none."""
    lease.rules = rules
    ENDS[how](queue, lease)
    return lease.successor and lease.successor.key


@pytest.fixture
def queue(bench):
    """Two claims and two volumes of driver `d` at a time."""
    one = bench.process()
    one.set_limits("claims|d", 2)
    one.set_limits("volumes|d", 2)
    return one


def send_all(bench):
    """What was published stands in Celery's list, the oldest at its right end."""
    for key in bench.tickets:
        bench.client.lpush(LIST, key.text)
    bench.tickets.clear()


def begun(bench, queue, names):
    """The first of these claims is worked on, the messages of the others are out."""
    queue.add([claim(name) for name in names])
    lease = bench.run_next(queue, f"pvc-{names[0]}")
    send_all(bench)
    return lease


@pytest.mark.parametrize("how", ENDS)
def test_the_oldest_ticketed_key_follows_and_its_message_stands_for_what_is_admitted(
    bench, queue, how
):
    """So neither is a message made nor one read."""
    holder = bench.process()
    holder.add([volume_key("d", "pvc-held")])
    assert holder.take(bench.tickets.pop(0), [Lock("pvc-held")])
    lease = begun(bench, queue, "abcd")
    assert end(queue, lease, how) == claim("b")
    assert lease.successor.locks == (Lock("pvc-b"),)
    assert (bench.tickets, bench.client.llen(LIST)) == ([], 1)
    other = bench.process().take_any(claim("b"), [Lock("pvc-b")], RULES)
    assert isinstance(other, Lease)
    assert (other.key, other.locks) == (claim("c"), (Lock("pvc-c"),))


def test_what_is_admitted_follows_without_a_message_when_none_waits(bench, queue):
    queue.add([claim(name) for name in "abcd"])
    one, two = bench.run_next(queue, "pvc-a"), bench.run_next(queue, "pvc-b")
    assert [end(queue, one), end(queue, two)] == [claim("c"), claim("d")]
    assert (bench.tickets, bench.client.llen(LIST)) == ([], 0)


def test_the_message_of_the_last_key_goes_with_it(bench, queue):
    """Else workers would read as many messages that stand for nothing as were ever out."""
    assert end(queue, begun(bench, queue, "ab")) == claim("b")
    assert bench.client.llen(LIST) == 0


def test_a_message_that_other_keys_need_stays(bench, queue):
    lease = begun(bench, queue, "ab")
    queue.add([volume_key("d", "pv")])
    send_all(bench)
    assert end(queue, lease) == claim("b")
    assert bench.client.lrange(LIST, 0, -1) == [volume_key("d", "pv").text.encode()]


def test_the_oldest_of_all_kinds_comes_first(bench, queue):
    """A flood of claims does not keep the deletions of the same driver waiting."""
    lease = begun(bench, queue, "a")
    queue.add([volume_key("d", "pv")])
    bench.advance(0.1)
    queue.add([claim("b")])
    bench.advance(0.1)
    assert end(queue, lease) == volume_key("d", "pv")
    assert lease.successor.locks == (Lock("pv"),)


def test_a_key_of_another_list_is_sent(bench, queue):
    """Waiters of a lock may belong to another worker: of another driver or controller."""
    other = claim_key("e", "ns", "a", "uid")
    queue.set_limits(other.lane, 1)
    queue.add([claim("a")])
    lease = bench.run_next(queue, "pvc-a")
    queue.add([other])
    assert queue.take(bench.tickets.pop(0), [Lock("pvc-a")]) is None
    assert end(queue, lease) is None
    assert bench.tickets == [other]


def test_a_thread_that_does_not_go_on_leaves_all_to_messages(bench, queue):
    lease = begun(bench, queue, "abc")
    assert end(queue, lease, rules="") is None
    assert (bench.client.llen(LIST), bench.tickets) == (1, [claim("c")])


def test_the_lease_of_what_follows_is_like_any_other(bench, queue):
    """It has what is remembered of its key, and the heartbeat renews it."""
    queue.add([claim("b")])
    failed = bench.run_next(queue, "pvc-b")
    IntentStore(bench.client).begin("pvc-b", {"stage": "begun"}, failed)
    queue.mark(failed, {"seen": 1})
    queue.fail(failed, base_seconds=1, cap_seconds=1, memo="why")
    lease = begun(bench, queue, "a")
    bench.advance(1.1)
    queue.heartbeat()
    queue.pump(period_seconds=0)
    assert end(queue, lease) == claim("b")
    found = lease.successor
    assert (found.fails, found.memo, found.mark) == (1, "why", {"seen": 1})
    assert found.records[0] is not None
    assert found.fence > lease.fence
    for _ in range(5):
        bench.advance(1)
        queue.heartbeat()
    assert found.is_held()
    assert queue.done(found)


def test_who_finds_a_lock_busy_is_parked_and_the_next_one_follows(bench, queue):
    holder = bench.process()
    holder.add([volume_key("d", "pvc-b")])
    held = holder.take(bench.tickets.pop(0), [Lock("pvc-b")])
    lease = begun(bench, queue, "abc")
    assert end(queue, lease) == claim("c")
    assert bench.client.llen(LIST) == 0
    holder.done(held)
    assert bench.tickets == [claim("b")]


def test_a_paused_lane_is_not_gone_on_with(bench, queue):
    lease = begun(bench, queue, "abc")
    queue.pause("claims|d", "an operator said so")
    assert end(queue, lease) is None
    assert bench.client.zcard(NAMES["ready"].full + "claims|d") == 2
    queue.resume("claims|d")
    assert bench.tickets == [claim("b"), claim("c")]


@pytest.mark.parametrize(
    ("rules", "second"),
    [
        pytest.param("claims -\nvolumes x:\1", claim("b"), id="no rule"),
        pytest.param(RULES, claim_key("d", "ns", "b", "b%"), id="unusual letters"),
        pytest.param(RULES, claim_key("d", "ns", "b", ""), id="no uid"),
        pytest.param(RULES, Key("volumes", "d", "", "u"), id="no object"),
    ],
)
def test_a_key_whose_locks_no_rule_says_is_left_to_a_message(bench, queue, rules, second):
    """Any message: who has read one of a key that is gone is told which key it stands for."""
    queue.add([claim("a")])
    queue.add([second])
    lease = bench.run_next(queue, "pvc-a")
    send_all(bench)
    assert end(queue, lease, rules=rules) is None
    assert bench.client.llen(LIST) == 1
    assert queue.take_any(claim("a"), [Lock("pvc-a")], rules) == second
    assert queue.take(second, [Lock("pvc-b")])


def test_a_kind_that_is_not_named_is_not_gone_on_with(bench, queue):
    """This process may not work on it, by the Lease of a Go sidecar for example."""
    lease = begun(bench, queue, "ab")
    assert end(queue, lease, rules="volumes x:\1") is None
    assert queue.take_any(claim("a"), [Lock("pvc-a")], "volumes x:\1") is None
    assert bench.client.llen(LIST) == 1


def test_only_the_end_of_a_lease_goes_on(bench, queue):
    """Neither a repeated call, whose first reply may have been read, nor a lost lease."""
    queue.add([claim("a"), claim("b")])
    one, two = bench.run_next(queue, "pvc-a"), bench.run_next(queue, "pvc-b")
    assert end(queue, one) is None
    queue.add([claim("c")])
    assert end(queue, one) is None
    other = bench.process()
    bench.advance(4.1)
    other.heartbeat()
    other.pump(period_seconds=0)
    assert end(queue, two) is None


def test_an_end_that_redis_did_not_confirm_goes_on_with_nothing_later(bench, queue, monkeypatch):
    """The heartbeat repeats it, and its thread begins no work."""
    lease = begun(bench, queue, "abc")
    scripts = queue._leases._scripts

    def away(*_args):
        raise QueueUnavailable("away")

    with monkeypatch.context() as patch:
        patch.setattr(scripts, "run", away)
        with pytest.raises(QueueUnavailable):
            end(queue, lease)
    queue.heartbeat()
    assert (lease.successor, bench.client.llen(LIST)) == (None, 1)
    queue.add([])
    queue.pump(period_seconds=0)
    assert bench.tickets == [claim("c")]


def test_nothing_follows_in_a_life_of_redis_that_nobody_has_begun(bench, queue):
    """Others may hold leases that this Redis, restarted with older data, does not know."""
    lease = begun(bench, queue, "ab")
    epoch = NAMES["epoch"].full
    bench.client.set(epoch, bench.client.get(epoch).decode().rpartition(":")[0] + ":otherrun")
    assert end(queue, lease) is None


def test_nothing_follows_while_a_new_life_is_quiet(bench, queue):
    lease = begun(bench, queue, "ab")
    bench.client.set(NAMES["quiet"].full, str(bench.now_ms + 1000))
    assert end(queue, lease) is None
    assert bench.client.llen(LIST) == 1


def test_a_reply_that_comes_too_late_leaves_the_key_to_its_time_out(bench, queue):
    """A lease that could be over by now is not worked on, and nobody renews it."""
    lease = begun(bench, queue, "ab")
    scripts = queue._leases._scripts
    run = scripts.run

    def slow(*args):
        reply = run(*args)
        bench.advance(3.6)
        return reply

    scripts.run = slow
    assert end(queue, lease) is None
    scripts.run = run
    for _ in range(2):
        queue.heartbeat()
        bench.advance(1)
    queue.pump(period_seconds=0)
    assert bench.tickets == [claim("b")]


def test_a_list_of_a_wrong_type_delays_no_end(bench, queue):
    """By somebody's hand; what its tickets stood for is sent again by the sweep."""
    queue.add([claim(name) for name in "abc"])
    lease = bench.run_next(queue, "pvc-a")
    bench.tickets.clear()
    bench.client.set(LIST, "somebody's")
    assert end(queue, lease) == claim("b")
    assert end(queue, lease.successor) == claim("c")
    assert end(queue, lease.successor.successor) is None


def test_a_key_by_somebodys_hand_is_not_gone_on_with(bench, queue):
    """The sweep drops it, and what waits behind it follows again."""
    lease = begun(bench, queue, "ab")
    bench.client.zadd(NAMES["ticketed"].full + "claims|d", {"claims|e|ns/x|x": 1, "x": 2})
    assert end(queue, lease) is None


def test_a_key_that_is_spelled_by_somebodys_hand_leads_nobody_in_a_circle(bench, queue):
    """It would be asked for in its right spelling, which is not there, again and again."""
    lease = begun(bench, queue, "a")
    queue.pause("claims|d", "an operator said so")  # the sweep drops nothing of such a lane
    bench.client.zadd(NAMES["ticketed"].full + "claims|d", {"claims|d|ns/%41|x": 1})
    assert queue.take_any(claim("a"), [Lock("pvc-a")], RULES) is None
    assert end(queue, lease) is None


@pytest.mark.parametrize("state", ["worked on", "done"])
def test_a_message_whose_key_was_begun_leads_to_the_oldest_other(bench, queue, state):
    """What that admits gets a message of its own: this one is used up."""
    lease = begun(bench, queue, "abcd")
    assert end(queue, lease, rules="") is None
    bench.tickets.clear()
    taken = queue.take(claim("b"), [Lock("pvc-b")])
    if state == "done":
        queue.done(taken)
        assert bench.tickets == [claim("d")]
        bench.tickets.clear()
    found = queue.take_any(claim("b"), [Lock("pvc-b")], RULES)
    assert (found.key, found.locks) == (claim("c"), (Lock("pvc-c"),))
    queue.add([claim("e")])
    assert bench.tickets == []


def test_a_message_that_stands_for_nothing_is_dropped(bench, queue):
    lease = begun(bench, queue, "a")
    assert queue.take_any(claim("a"), [Lock("pvc-a")], RULES) is None
    assert end(queue, lease) is None
    assert queue.take_any(claim("a"), [Lock("pvc-a")], RULES) is None


def test_the_key_of_a_ticket_comes_before_older_ones(bench, queue):
    queue.add([claim("a"), claim("b")])
    assert queue.take_any(claim("b"), [Lock("pvc-b")], RULES).key == claim("b")


def test_a_ticket_is_awaited_as_celery_would_read_it(bench, queue, caplog):
    """The oldest first; what is no ticket is dropped, and an empty list is no error."""
    app = make_app(Settings())
    for name in "ab":
        wanted = ticket(app, catalogue.kinds()["claims"], claim(name))
        bench.client.lpush(LIST, _message(wanted, LIST))
    bench.client.lpush(LIST, "nonsense")
    app.close()
    found = [queue.await_ticket(volume_key("d", "any"), 0.01) for _ in range(4)]
    assert found == [claim("a"), claim("b"), None, None]
    assert caplog.text.count("ticket dropped") == 1


def test_of_another_list_none_is_awaited(bench, queue):
    bench.client.lpush(celery_queue("e"), "another driver's")
    bench.client.lpush(celery_queue(place_of("d", "attachments")), "another controller's")
    assert queue.await_ticket(claim("a"), 0.01) is None


def test_a_list_of_a_wrong_type_ends_the_wait(bench, queue):
    bench.client.set(LIST, "somebody's")
    with pytest.raises(QueueUnavailable):
        queue.await_ticket(claim("a"), 0.01)


# One message for each ticketed key, no more and no less.


def messages(bench, name=LIST):
    return [raw.decode() for raw in bench.client.lrange(name, 0, -1)]


def test_a_message_that_was_read_is_used_up_by_the_key_that_it_led_to(bench, queue):
    """Those that wait are other keys'."""
    lease = begun(bench, queue, "abcd")
    queue.done(queue.take(claim("b"), [Lock("pvc-b")]))
    send_all(bench)
    before = messages(bench)
    assert queue.take_any(claim("b"), [Lock("pvc-b")], RULES).key == claim("c")
    assert (messages(bench), bench.tickets) == (before, [])
    assert lease.is_held()


def test_a_message_that_was_read_pays_for_one_key_only(bench, queue):
    """It led to one that waits for a lock, and the thread went on: that one's message goes."""
    queue.set_limits("claims|d", 3)
    holder = bench.process()
    holder.add([volume_key("d", "pvc-b")])
    assert holder.take(bench.tickets.pop(0), [Lock("pvc-b")])
    begun(bench, queue, "abc")
    assert len(messages(bench)) == 2
    assert queue.take_any(claim("a"), [Lock("pvc-a")], RULES).key == claim("c")
    assert len(messages(bench)) == 1


def test_no_message_goes_while_as_many_keys_wait(bench, queue):
    """That of the key that follows is in somebody's hand."""
    lease = begun(bench, queue, "ab")
    bench.client.delete(LIST)
    queue.add([volume_key("d", "pv")])
    send_all(bench)
    assert end(queue, lease) == claim("b")
    assert messages(bench) == [volume_key("d", "pv").text]


def test_keys_of_no_driver_have_a_list_for_each_kind(bench, queue):
    keys = [Key("snapshots", "", f"ns/{name}", name) for name in "abc"]
    queue.set_limits("snapshots|", 3)
    queue.add(keys)
    lease = queue.take(bench.tickets[0])
    name = celery_queue(place_of("", "snapshots"))
    bench.client.lpush(name, keys[2].text)
    assert end(queue, lease, rules="snapshots") == keys[1]
    assert messages(bench, name) == [keys[2].text]


def test_of_several_that_an_end_admits_the_one_that_follows_is_not_sent(bench, queue):
    """Its message would lead somebody to a key that is worked on."""
    queue.set_limits("claims|d", 3)
    queue.add([claim(name) for name in "abc"])
    lease = bench.run_next(queue, "pvc-a")
    for _ in range(2):
        assert queue.take(bench.tickets.pop(0), [Lock("pvc-a")]) is None
    assert end(queue, lease) == claim("b")
    assert bench.tickets == [claim("c")]

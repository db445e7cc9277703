"""Only the owner of the lease writes a volume's records, and each namespace's bytes are counted."""

from __future__ import annotations

import pytest

from workers.queue.holding import owner_of
from workers.queue.keys import claim_key
from workers.queue.names import NAMES
from workers.queue.scripts import Scripts

KEY = claim_key("d", "ns", "a", "u")
INTENTS, UNSAVED = (NAMES[name].full + "d" for name in ("intents", "unsaved"))
HELD = NAMES["held"].full
# workers/queue/seal.py writes records as 'seal:namespace:record'.
OLD, NEW = b"seal:ns:old", b"seal:ns:newer"


@pytest.fixture
def scripts(bench):
    return Scripts(bench.client, lambda: bench.now_ms)


def write(scripts, name, key="", process="", token=""):
    """Run one of the three scripts that check the lease."""
    args = {"begin": (NEW,), "created": (NEW, b"seal:ns:pv"), "finish": ()}[name]
    more = (10**6, "") if name == "begin" else ()
    return scripts.run(name, "d", "pvc-a", *args, key, process, token, *more)


@pytest.mark.parametrize("name", ["begin", "created", "finish"])
@pytest.mark.parametrize("who", ["nobody", "another process", "the same process anew"])
def test_a_lease_that_is_over_writes_nothing(bench, start_queue, scripts, name, who):
    """G9: a lease that ended writes nothing, whether its key now has no owner, another process or
    the same process by a new lease.
    """
    one, two = start_queue(), start_queue()
    one.add([KEY])
    old = bench.run_next(one)
    one.done(old)
    if who != "nobody":
        one.add([KEY])
        assert bench.run_next(one if "same" in who else two)
    bench.client.hset(INTENTS, "pvc-a", OLD)
    key, process, token, _ = owner_of(old)
    assert write(scripts, name, key, process, token) == 0
    assert bench.client.hgetall(INTENTS) == {b"pvc-a": OLD}
    assert not bench.client.exists(UNSAVED, HELD)


@pytest.mark.parametrize("name", ["begin", "created", "finish"])
def test_a_token_counts_with_its_own_process_only(bench, start_queue, scripts, name):
    one = start_queue()
    one.add([KEY])
    key, _, token, _ = owner_of(bench.run_next(one))
    assert write(scripts, name, key, "another", token) == 0
    assert not bench.client.exists(INTENTS)


@pytest.mark.parametrize("has_lease", [True, False])
@pytest.mark.parametrize("name", ["begin", "created", "finish"])
def test_the_owner_writes_and_so_does_who_needs_no_lease(
    bench, start_queue, scripts, name, has_lease
):
    queue = start_queue()
    queue.add([KEY])
    owner = owner_of(bench.run_next(queue))[:3] if has_lease else ()
    bench.client.hset(INTENTS, "pvc-a", OLD)
    bench.client.hset(UNSAVED, "pvc-a", b"seal:ns:pv")
    bench.client.hset(HELD, "ns", len(OLD))
    assert write(scripts, name, *owner) == 1
    is_kept = name != "finish"
    assert bench.client.hget(INTENTS, "pvc-a") == (NEW if is_kept else None)
    assert bench.client.hexists(UNSAVED, "pvc-a") == is_kept
    assert bench.client.hgetall(HELD) == ({b"ns": b"%d" % len(NEW)} if is_kept else {})


def test_the_end_of_a_pass_gives_its_bytes_back(bench, start_queue, scripts):
    """`finish_intent` releases the bytes of this claim and of no other."""
    queue, other = start_queue(), claim_key("d", "ns", "b", "v")
    for key in (KEY, other):
        assert scripts.run("begin", "d", key.record_name, NEW, "", "", "", 10**6, "") == 1
    assert bench.client.hget(HELD, "ns") == b"%d" % (2 * len(NEW))
    queue.add([KEY])
    queue.done(bench.run_next(queue), finish_intent=True)
    assert bench.client.hgetall(HELD) == {b"ns": b"%d" % len(NEW)}
    queue.add([other])
    queue.done(bench.run_next(queue))
    assert bench.client.hgetall(HELD) == {b"ns": b"%d" % len(NEW)}
    queue.add([other])
    queue.done(bench.run_next(queue), finish_intent=True)
    assert not bench.client.exists(HELD, INTENTS)


@pytest.mark.parametrize(("spare", "status"), [(0, 1), (-1, 2), (1, 1)])
def test_a_namespace_is_full_with_the_first_byte_too_many(bench, scripts, spare, status):
    """A record that just fills its namespace's share is written.

    A record that does not fit changes no count.
    """
    assert scripts.run("begin", "d", "pvc-old", OLD, "", "", "", 100, "") == 1
    most = len(OLD) + len(NEW) + spare
    assert scripts.run("begin", "d", "pvc-new", NEW, "", "", "", most, "") == status
    held = len(OLD) + (len(NEW) if status == 1 else 0)
    assert bench.client.hget(HELD, "ns") == b"%d" % held
    assert bench.client.hexists(INTENTS, "pvc-new") == (status == 1)


def test_a_volume_that_has_an_intent_is_never_refused(bench, scripts):
    scripts.run("begin", "d", "pvc-a", OLD, "", "", "", 100, "")
    assert scripts.run("begin", "d", "pvc-a", NEW, "", "", "", 1, "") == 1
    assert bench.client.hget(HELD, "ns") == b"%d" % len(NEW)


@pytest.mark.parametrize("record", [b"seal::no namespace", b"no seal", b'{"stage": "a:b:c"}'])
def test_a_record_of_no_namespace_is_written_and_not_counted(bench, scripts, record):
    assert scripts.run("begin", "d", "pvc-a", record, "", "", "", 1, "") == 1
    assert bench.client.hget(INTENTS, "pvc-a") == record
    assert not bench.client.exists(HELD)


def test_a_count_that_somebody_made_too_small_ends_at_nothing(bench, scripts):
    scripts.run("begin", "d", "pvc-a", NEW, "", "", "", 100, "")
    bench.client.hset(HELD, "ns", 3)
    assert scripts.run("finish", "d", "pvc-a", "", "", "") == 1
    assert not bench.client.exists(HELD)

"""Intents and unsaved PVs outlive leases, and unreadable records stop no worker."""

from __future__ import annotations

import pytest

from tests.support.taking import take
from workers.errors import LeaseLost, QueueUnavailable
from workers.queue.intents import IntentStore
from workers.queue.keys import claim_key, volume_key
from workers.queue.locks import Lock
from workers.queue.names import NAMES, PREFIX
from workers.queue.seal import Seal

KEY = claim_key("d", "ns", "a", "u")
INTENT = {"stage": "calling", "claim": {"uid": "u"}}
PV = {"metadata": {"name": "pvc-u"}}


@pytest.fixture
def store(redis_client) -> IntentStore:
    return IntentStore(redis_client, driver="d")


def taken(queue, key):
    """Return the lease of a key of one node's driver."""
    queue.set_limits(key.lane, 1)
    queue.add([key])
    lease = take(queue, key, Lock("pvc-u"))
    assert lease is not None
    return lease


def test_life_of_an_intent(store, bench, start_queue):
    """M-010, M-011: intent before the call, PV before the save, and `done` removes both."""
    queue = start_queue()
    queue.add([KEY])
    lease = bench.run_next(queue, "pvc-u")
    store.begin("pvc-u", INTENT, lease)
    store.created("pvc-u", INTENT | {"stage": "created"}, PV)
    assert (store.get("pvc-u"), store.all_pvs().get("pvc-u")) == (
        {**INTENT, "stage": "created"},
        PV,
    )
    assert queue.done(lease, finish_intent=True)
    assert (store.all(), store.all_pvs()) == ({}, {})


def test_lease_brings_the_records_of_its_volume(store, bench, start_queue, redis_client):
    """The lease carries the records of an earlier owner without another round trip."""
    queue = start_queue()
    queue.add([KEY])
    first = bench.run_next(queue, "pvc-u")
    assert store.opened(first) == (None, None, False)
    store.created("pvc-u", INTENT, PV)
    store.created("pvc-other", INTENT | {"stage": "other"}, PV)
    queue.release(first)
    second = bench.run_next(queue, "pvc-u")
    assert store.opened(second) == (INTENT, PV, False)
    queue.done(second, finish_intent=True)
    queue.add([KEY])
    third = bench.run_next(queue, "pvc-u")
    assert store.opened(third) == (None, None, True)
    redis_client.hset(NAMES["intents"].full + "d", "pvc-u", b"not a record")
    queue.release(third)
    assert store.opened(bench.run_next(queue, "pvc-u"))[0] is None


def test_nodes_have_records_of_their_own(store, start_queue):
    """The records of nodes are separate, because each node has
    its own storage, and perhaps a volume for the same claim.
    """
    queue = start_queue()
    keys = [claim_key(f"d@{node}", "ns", "a", "u") for node in ("n1", "n2")]
    for key in keys:
        lease = taken(queue, key)
        assert store.opened(lease) == (None, None, False)
        store.begin(lease.domain, INTENT | {"key": key.text}, lease)
        queue.release(lease)
    assert {*store.all_of("d")} == {"pvc-u@n1", "pvc-u@n2"}
    assert store.all_of("other") == store.all() == {}
    lease = taken(queue, keys[0])
    assert store.opened(lease)[0] == INTENT | {"key": keys[0].text}
    store.created(lease.domain, INTENT | {"key": keys[0].text}, PV, lease)
    queue.done(lease, finish_intent=True)
    assert {*store.all_of("d")} == {"pvc-u@n2"}
    assert all(one.all_pvs() == {} for one in store.everywhere())
    lease = taken(queue, keys[1])
    assert store.opened(lease) == (INTENT | {"key": keys[1].text}, None, False)


def test_a_record_is_found_whatever_the_volume_is_called(store, bench, start_queue):
    """Two workers with different flags lock different names but share the claim's record."""
    queue = start_queue()
    queue.add([KEY])
    first = bench.run_next(queue, "vol-u")
    store.begin(first.domain, INTENT, first)
    queue.release(first)
    assert store.opened(bench.run_next(queue, "other-u"))[0] == INTENT
    assert [*store.all()] == ["pvc-u"]


def test_a_deletion_has_no_record(store, start_queue):
    """A deletion does not use the record of the claim with the same uid."""
    store.begin("pvc-u", INTENT)
    lease = taken(start_queue(), volume_key("d", "pvc-u", "ns"))
    assert (lease.domain, store.opened(lease)) == ("", (None, None, False))


def test_lost_lease_may_not_begin_nor_clear_the_next_owners_intent(store, bench, start_queue):
    """G9: Redis itself checks the lease; the local clock is not the only check."""
    one, two = start_queue(), start_queue()
    one.add([KEY])
    old = bench.run_next(one, "pvc-u")
    bench.advance(5)
    two.heartbeat()
    two.pump(period_seconds=0)
    store.begin("pvc-u", INTENT, bench.run_next(two, "pvc-u"))
    with pytest.raises(LeaseLost):
        store.begin("pvc-u", {"stage": "stale"}, old)
    assert not store.finish("pvc-u", old)
    assert not one.done(old, finish_intent=True)
    assert store.get("pvc-u") == INTENT


def test_a_lease_that_ended_may_begin_nothing(store, bench, start_queue):
    """A lease that ended cannot begin an attempt, while no
    process has the key and after the same process took it again.
    """
    queue = start_queue()
    queue.add([KEY])
    old = bench.run_next(queue, "pvc-u")
    queue.done(old)
    with pytest.raises(LeaseLost):
        store.begin("pvc-u", INTENT, old)
    queue.add([KEY])
    bench.run_next(queue, "pvc-u").check()
    with pytest.raises(LeaseLost):
        store.begin("pvc-u", INTENT, old)
    assert store.get("pvc-u") is None


def test_plain_reads_and_writes(store):
    store.created("pvc-1", INTENT, PV)
    assert store.all() == {"pvc-1": INTENT}
    assert store.all_pvs() == {"pvc-1": PV}
    store.delete("pvc-1")
    assert store.get("pvc-1") is None
    assert store.all_pvs().get("pvc-1") == PV
    store.delete_pv("pvc-1")
    assert (store.get("pvc-1"), store.all_pvs().get("pvc-1")) == (None, None)
    store.begin("pvc-2", INTENT)
    assert store.finish("pvc-2")
    assert store.get("pvc-2") is None


def test_unreadable_intent_is_set_aside_once(store, redis_client, caplog):
    redis_client.hset(NAMES["intents"].full + "d", "pvc-bad", "{oops")
    store.put("pvc-good", INTENT)
    assert store.all() == {"pvc-good": INTENT}
    assert store.get("pvc-bad") is None
    assert len(caplog.records) == 1
    assert redis_client.hget(NAMES["quarantine"].full, f"{PREFIX}intents:d pvc-bad") == b"{oops"


def test_wrong_typed_key_fails_once_then_counts_as_empty(store, redis_client, caplog):
    redis_client.set(NAMES["unsaved"].full + "d", "x")
    with pytest.raises(QueueUnavailable):
        store.delete_pv("pvc-1")
    store.created("pvc-1", INTENT, PV)
    assert store.all_pvs().get("pvc-1") == PV
    assert caplog.records[0].fields["redis_key"] == NAMES["unsaved"].full + "d"


SIGNED_BY = {"us": Seal((b"a" * 32,)), "another": Seal((b"b" * 32,))}


@pytest.mark.parametrize(
    ("by", "domain", "key", "uid", "is_ours"),
    [
        pytest.param("us", "pvc-u", KEY, "m1", True, id="as it was made"),
        pytest.param("us", "pvc-u", KEY, "m2", False, id="the ConfigMap was made again"),
        pytest.param("us", "pvc-u", KEY, "", False, id="a ConfigMap without uid"),
        pytest.param("us", "pvc-o", KEY, "m1", False, id="of another volume"),
        pytest.param("us", "pvc-u", claim_key("d", "ns", "b", "u"), "m1", False, id="other claim"),
        pytest.param("another", "pvc-u", KEY, "m1", False, id="by somebody else"),
    ],
)
def test_a_copy_counts_where_it_was_made(redis_client, by, domain, key, uid, is_ours):
    """A copy counts only in the ConfigMap in which it was made.

    A ConfigMap restored from a backup does not prove an open attempt.
    """
    record = INTENT | {"key": KEY.text, "copy_uid": "m1"}
    copy = IntentStore(redis_client, SIGNED_BY[by], driver="d").sealed("pvc-u", record)
    reader = IntentStore(redis_client, SIGNED_BY["us"], driver="d")
    assert reader.is_our_copy(domain, copy, key, uid) is is_ours

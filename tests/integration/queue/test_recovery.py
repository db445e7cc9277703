"""Nothing is left behind: leases whose end was not written, and records without a key."""

from __future__ import annotations

import pytest

from tests.support.taking import take
from workers.errors import ProvisionerError, QueueUnavailable
from workers.queue.intents import IntentStore
from workers.queue.keys import claim_key
from workers.queue.locks import Lock
from workers.queue.names import NAMES
from workers.queue.recovery import Recovery

KEY = claim_key("d", "ns", "a", "u")
RECORD = {"key": KEY.text, "stage": "calling"}
PV = {
    "metadata": {"name": "pvc-u"},
    "spec": {"csi": {"driver": "d"}, "claimRef": {"namespace": "ns", "name": "a", "uid": "u"}},
}


def keys_of_volume(volume):
    """Return the keys that the watcher's rules derive from an unsaved PV."""
    if "claimRef" not in volume["spec"]:
        raise ProvisionerError("no claim")
    return [KEY]


class Cut:
    """Cuts the connection at one script: its reply is lost, or the script does not run."""

    def __init__(self, queue, script: str, *, arrives: bool) -> None:
        self._inner, self._script, self._arrives = queue.scripts.run, script, arrives
        queue.scripts.run = self

    def __call__(self, name, *args):
        if name != self._script:
            return self._inner(name, *args)
        self._script = ""
        if self._arrives:
            self._inner(name, *args)
        raise QueueUnavailable("connection cut")


@pytest.mark.parametrize("arrives", [True, False])
def test_take_without_reply_leaves_no_lease_behind(bench, start_queue, arrives):
    """A take without a reply leaves no lease.

    A living process renews all its leases, so a lease it does not know would stay forever.
    """
    queue = start_queue()
    queue.add([KEY])
    ticket = bench.due.pop()
    Cut(queue, "take", arrives=arrives)
    with pytest.raises(QueueUnavailable):
        take(queue, ticket, Lock("pvc-u"))
    for _ in range(4):
        bench.advance(1)
        queue.heartbeat()
        queue.pump(period_seconds=0)
    assert bench.run_next(queue, "pvc-u")


@pytest.mark.parametrize("arrives", [True, False])
@pytest.mark.parametrize("end", ["done", "fail", "release"])
def test_end_that_redis_did_not_confirm_is_written_later(bench, start_queue, end, arrives):
    """M-019: an end that Redis did not confirm is kept in memory and written later."""
    queue = start_queue()
    queue.add([KEY])
    lease = bench.run_next(queue, "pvc-u")
    Cut(queue, end, arrives=arrives)
    options = {"base_seconds": 1, "cap_seconds": 9} if end == "fail" else {}
    with pytest.raises(QueueUnavailable):
        getattr(queue, end)(lease, **options)
    queue.heartbeat()
    assert not queue.scripts.client.exists(NAMES["leases"].full)
    assert bool(queue.scripts.client.zscore(NAMES["delayed"].full, KEY.text)) == (end == "fail")
    assert bench.due == [KEY] * (end == "release")


def test_m010_record_whose_key_is_nowhere_gets_it_back(bench, start_queue, redis_client):
    queue, store = start_queue(), IntentStore(redis_client, driver="d")
    store.put("pvc-u", RECORD)
    assert Recovery(redis_client, queue).run(keys_of_volume)
    assert bench.due == [KEY]


def test_m010_unsaved_volume_without_intent_gets_its_key_back(bench, start_queue, redis_client):
    queue, store = start_queue(), IntentStore(redis_client, driver="d")
    store.created("pvc-u", RECORD, PV)
    store.delete("pvc-u")
    assert Recovery(redis_client, queue).run(keys_of_volume)
    assert bench.due == [KEY]


@pytest.mark.parametrize("where", ["ready", "running", "delayed"])
def test_m010_record_in_progress_is_left_alone(bench, start_queue, redis_client, where):
    queue, store = start_queue(), IntentStore(redis_client, driver="d")
    queue.add([KEY])
    if where != "ready":
        lease = bench.run_next(queue, "pvc-u")
    if where == "delayed":
        queue.fail(lease, base_seconds=100, cap_seconds=100)
    store.put("pvc-u", RECORD)
    before = list(bench.due)
    Recovery(redis_client, queue).run(keys_of_volume)
    assert bench.due == before
    assert not redis_client.exists(NAMES["dirty"].full)


def test_of_all_processes_one_looks_per_period(bench, start_queue, redis_client):
    one, two = (Recovery(redis_client, start_queue()) for _ in range(2))
    assert one.run(keys_of_volume)
    assert not two.run(keys_of_volume)


def test_unreadable_records_are_skipped(bench, start_queue, redis_client):
    queue, store = start_queue(), IntentStore(redis_client, driver="d")
    redis_client.hset(NAMES["intents"].full, "bad", "{")
    store.put("no-key", {"stage": "calling"})
    store.created("no-claim", RECORD, {"spec": {}})
    store.delete("no-claim")
    store.put("pvc-u", RECORD)
    Recovery(redis_client, queue).run(keys_of_volume)
    assert bench.due == [KEY]

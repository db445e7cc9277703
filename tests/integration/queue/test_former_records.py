"""Records that the previous release kept in one hash for all drivers move to keys per driver."""

from __future__ import annotations

import json

import pytest

from tests.support.secure_redis import SecureRedis
from workers.queue import formerrecords
from workers.queue.intents import IntentStore
from workers.queue.keys import Key, claim_key
from workers.queue.marks import Remembered
from workers.queue.names import FORMER, NAMES, driver_key
from workers.queue.recovery import Recovery
from workers.queue.seal import Seal
from workers.queue.workqueue import WorkQueue

SEAL = Seal.of_lines(["k" * 64])
KEYS = [
    claim_key("a.example.org", "ns", "data", "u1"),
    claim_key("b.example.org@node-1", "ns", "data", "u2"),
]
PV = {"metadata": {"name": "pvc-u"}}


def former(name):
    return NAMES[name].full.removesuffix(":")


def keep_as_before(client, key):
    """Write each record type of a key as the previous release did."""
    intent = json.dumps({"key": key.text, "stage": "stranded"}).encode()
    rows = {
        "intents": (key.record_name, intent),
        "unsaved": (key.record_name, json.dumps(PV).encode()),
        "marks": (key.text, b'{"mark":1}'),
        "memos": (key.text, b"why"),
    }
    assert rows.keys() == FORMER
    for name, (field, record) in rows.items():
        client.hset(former(name), field, SEAL.close(former(name), field, key.tenant, record))


def found(client, key):
    """Return the same records as this release reads them, with their signatures checked."""
    store, remembered = IntentStore(client, SEAL).of(key.driver), Remembered(client, SEAL)
    memo = client.hget(driver_key(client, "memos", key.driver), key.text)
    return (
        (store.get(key.record_name) or {}).get("stage"),
        store.all_pvs(),
        remembered.marks_of([key]),
        remembered.memo_of(key, memo),
    )


def test_each_type_moves_to_its_driver_and_is_believed(redis_client):
    for key in KEYS:
        keep_as_before(redis_client, key)
    queue = WorkQueue(redis_client, publish=lambda _: None)
    assert Recovery(redis_client, queue).run(lambda _: [])
    for key in KEYS:
        assert found(redis_client, key) == ("stranded", {key.record_name: PV}, [{"mark": 1}], "why")
    assert not redis_client.exists(*map(former, FORMER), NAMES["quarantine"].full)


def test_an_older_attempt_waits_until_the_newer_one_has_ended(redis_client):
    """An older attempt waits until the newer one has ended, whose call may still run.

    Only the newer record contains that call's request (G7).
    """
    key = KEYS[0]
    keep_as_before(redis_client, key)
    store = IntentStore(redis_client, SEAL, driver=key.driver)
    store.put(key.record_name, {"key": key.text, "stage": "calling"})
    mark = Remembered(redis_client, SEAL).sealed_mark(key, {"mark": 2})
    redis_client.hset(driver_key(redis_client, "marks", key.driver), key.text, mark)
    recovery = Recovery(redis_client, WorkQueue(redis_client, publish=lambda _: None))
    assert recovery.adopt() == recovery.adopt() == []
    assert found(redis_client, key) == ("calling", {}, [{"mark": 2}], "why")
    store.finish(key.record_name)
    redis_client.delete(driver_key(redis_client, "marks", key.driver))
    recovery.run(lambda _: [])
    assert found(redis_client, key) == ("stranded", {key.record_name: PV}, [{"mark": 1}], "why")
    (ready,) = redis_client.keys(NAMES["ready"].full + "*")
    assert redis_client.zrange(ready, 0, -1) == [key.text.encode()]


def test_what_an_old_worker_writes_meanwhile_is_moved_as_it_is_then(redis_client, monkeypatch):
    key = KEYS[0]
    keep_as_before(redis_client, key)
    later = json.dumps({"key": key.text, "stage": "later"}).encode()
    row = key.record_name, SEAL.close(former("intents"), key.record_name, key.tenant, later)
    driver_of = formerrecords._driver_of

    def rewritten(client, name, field, raw):
        if name == "intents":
            redis_client.hset(former("intents"), *row)
        return driver_of(client, name, field, raw)

    monkeypatch.setattr(formerrecords, "_driver_of", rewritten)
    formerrecords.adopt(redis_client)
    assert found(redis_client, key)[0] is None
    formerrecords.adopt(redis_client)
    assert found(redis_client, key)[0] == "later"


@pytest.mark.parametrize("raw", [b"{", b"mac:ns:{}", b'{"key":"no key"}', b"\xff:\xff:\xff", b""])
def test_what_tells_no_driver_is_set_aside(redis_client, raw):
    for name in FORMER - {"unsaved"}:
        redis_client.hset(former(name), "no key", raw)
    keep_as_before(redis_client, KEYS[0])
    formerrecords.adopt(redis_client)
    assert found(redis_client, KEYS[0])[0] == "stranded"
    assert redis_client.hlen(NAMES["quarantine"].full) == 3


def test_a_watcher_moves_what_it_may_write_and_leaves_the_rest(redis_binary, tmp_path):
    """A watcher moves the records that it is allowed to write. users.acl forbids it to write
    unsaved PVs; by its intent, such a volume is requested again.
    """
    server = SecureRedis(redis_binary, tmp_path).start()
    try:
        with server.client("tester") as client:
            keep_as_before(client, KEYS[0])
        with server.client("watcher") as client:
            formerrecords.adopt(client)
            formerrecords.adopt(client)
        with server.client("worker") as client:
            stage, unsaved, marks, memo = found(client, KEYS[0])
        assert (stage, unsaved, marks, memo) == ("stranded", {}, [{"mark": 1}], "why")
        with server.client("tester") as client:
            assert client.keys(f"{former('unsaved')}*") == [former("unsaved").encode()]
    finally:
        server.stop()


def test_a_key_of_no_driver_has_a_key_of_its_own(redis_client):
    key = Key("snapshots", "", "ns/snap", "u")
    raw = Remembered(redis_client, SEAL).sealed_mark(key, {"a": 1})
    redis_client.hset(driver_key(redis_client, "marks", ""), key.text, raw)
    assert Remembered(redis_client, SEAL).marks_of([key]) == [{"a": 1}]

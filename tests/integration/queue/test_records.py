"""Records that lead to an effect: quarantined without a valid signature, restored after a loss."""

from __future__ import annotations

import pytest

from workers.errors import NamespaceFull, ProvisionerError, RecordTooLarge
from workers.queue import records
from workers.queue.intents import IntentStore
from workers.queue.keys import claim_key
from workers.queue.leases import CatalogState, Lease, Session
from workers.queue.marks import LONGEST_MARK, Remembered
from workers.queue.names import NAMES, PREFIX
from workers.queue.records import encode, peek, unseal
from workers.queue.recovery import Recovery
from workers.queue.registry import DriverRegistry
from workers.queue.seal import UNCHECKED, Seal

KEY = claim_key("d", "team", "a", "u")
OURS, THEIRS = Seal.of_lines(["1" * 64]), Seal.of_lines(["2" * 64])
INTENT = {"key": KEY.text, "stage": "calling"}
PV = {"metadata": {"name": "pvc-u"}}
MARKS, MEMOS = NAMES["marks"].full + "d", NAMES["memos"].full + "d"
INTENTS = NAMES["intents"].full + "d"


def aside(client):
    """Return hash and field of each quarantined record."""
    return {name.decode() for name in client.hkeys(NAMES["quarantine"].full)}


@pytest.mark.parametrize(
    ("seal", "found"),
    [(OURS, "why"), (THEIRS, ""), (UNCHECKED, "")],
    ids=["ours", "another key's", "unsigned"],
)
def test_a_memo_counts_if_it_is_ours(redis_client, seal, found):
    """A memo counts only with a valid signature, because it leads to an effect, as a mark does."""
    raw = Remembered(redis_client, seal).sealed_memo(KEY, "why")
    redis_client.hset(MEMOS, KEY.text, raw)
    assert Remembered(redis_client, OURS).memo_of(KEY, raw) == found
    assert aside(redis_client) == (set() if found else {f"{MEMOS} {KEY.text}"})
    assert redis_client.hexists(MEMOS, KEY.text) is bool(found)


def test_no_memo_and_no_mark_are_nothing_to_store(redis_client):
    remembered = Remembered(redis_client, OURS)
    assert remembered.sealed_memo(KEY, "") == remembered.sealed_mark(KEY, {}) == b""
    assert remembered.memo_of(KEY, b"") == remembered.memo_of(KEY, None) == ""
    assert remembered.mark_of(KEY, b"") == remembered.mark_of(KEY, None) == {}
    assert aside(redis_client) == set()


@pytest.mark.parametrize(("over", "fits"), [(0, True), (1, False)])
def test_a_mark_has_64_kib_at_most(redis_client, over, fits):
    remembered = Remembered(redis_client, OURS)
    record = {"text": "x" * (LONGEST_MARK - len(encode({"text": ""})) + over)}
    if fits:
        raw = remembered.sealed_mark(KEY, record)
        assert remembered.mark_of(KEY, raw) == record
    else:
        record["text"] += "x" * 1024
        with pytest.raises(RecordTooLarge, match=r"65 KiB about .* at most 64 KiB"):
            remembered.sealed_mark(KEY, record)


@pytest.mark.parametrize("as_text", [False, True])
def test_marks_of_others_are_set_aside_and_ours_are_read(redis_client, as_text):
    other = claim_key("d", "team", "b", "u2")
    ours = Remembered(redis_client, OURS).sealed_mark(KEY, {"a": 1})
    theirs = Remembered(redis_client, THEIRS).sealed_mark(other, {"b": 2})
    redis_client.hset(MARKS, mapping={KEY.text: ours, other.text: theirs})
    remembered = Remembered(redis_client, OURS)
    if as_text:
        assert remembered.mark_of(KEY, ours.decode()) == {"a": 1}
        assert remembered.mark_of(other, theirs.decode()) == {}
    else:
        assert remembered.marks_of([KEY, other]) == [{"a": 1}, {}]
    assert aside(redis_client) == {f"{MARKS} {other.text}"}
    assert redis_client.hkeys(MARKS) == [KEY.text.encode()]


@pytest.mark.parametrize(
    ("raw", "record"),
    [
        (b'{"a":1}', {"a": 1}),
        ('-:team:{"a":1}', {"a": 1}),
        (b"[1]", None),
        ("{", None),
        (b"", None),
        (b"[" * 9999, None),
        (b'{"a":"\xff"}', None),
    ],
)
def test_who_looks_reads_what_can_be_read(redis_client, raw, record):
    """A reader that only shows data reads what it can.

    A reader that acts on a record moves an unreadable one to the quarantine, once.
    """
    assert peek(raw) == record
    redis_client.hset(MARKS, "field", raw)
    assert unseal(redis_client, UNCHECKED, "marks", MARKS, field="field", raw=raw) == record
    assert aside(redis_client) == (set() if record else {f"{MARKS} field"})


RECORD = {"name": "d", "queue_name": "d", "controllers": ["provisioner"]}
WRONG = {
    **dict.fromkeys(["name", "queue_name", "controllers", "plugin_capabilities"], 7),
    "in_tree_name": 7,
    "additional_names": ["a", 7],
    "node": {},
    "node_segments": {"zone": 1},
    "controller_capabilities": "ALL",
    "system_namespace": [],
    "capacity": {"namespace": "ns"},
    "rules": {"volume_name_uuid_length": "long"},
}


@pytest.mark.parametrize("field", WRONG)
def test_a_driver_whose_record_is_not_as_it_must_be_is_set_aside(redis_client, field):
    """An invalid record of a driver is quarantined,
    because one invalid field must not stop all drivers.
    """
    registry = DriverRegistry(redis_client)
    registry.register("good", RECORD, ttl_seconds=60)
    registry.register("bad", {**RECORD, field: WRONG[field]}, ttl_seconds=60)
    assert registry.alive() == {"good": RECORD}
    assert aside(redis_client) == {f"{PREFIX}drivers bad"}


def test_workers_with_different_controllers_tell_of_one_driver(redis_client):
    """The records of workers with different controllers for one driver are merged.

    On a conflict the first record wins.
    """
    registry = DriverRegistry(redis_client)
    registry.register("d#x", {"controllers": ["x"], "node": "theirs", "more": 1}, ttl_seconds=60)
    registry.register("d", {"controllers": ["p", "x"], "node": "ours"}, ttl_seconds=60)
    registry.register("e#x", {"node": "alone"}, ttl_seconds=60)
    assert registry.version == 0
    assert registry.alive() == {
        "d": {"controllers": ["p", "x"], "node": "ours", "more": 1},
        "e": {"node": "alone"},
    }
    assert registry.version > 0


def taken(bench, queue, name="pvc-u"):
    queue.add([KEY])
    return bench.run_next(queue, name)


def test_a_finished_attempt_does_not_come_back_with_a_new_life(bench, start_queue):
    queue, store = start_queue(), IntentStore(bench.client, driver="d")
    lease = taken(bench, queue)
    store.begin("pvc-u", INTENT, lease)
    assert store.finish("pvc-u", lease)
    bench.client.flushall()
    queue.heartbeat()
    assert store.all() == {}


def test_what_a_lease_found_is_given_back_to_a_redis_that_lost_it(bench, start_queue):
    """A lease restores the records it found to a Redis that
    lost them, because its worker may have the only copy.
    """
    queue, store = start_queue(), IntentStore(bench.client, driver="d")
    store.created("pvc-u", INTENT, PV)
    lease = taken(bench, queue)
    assert store.opened(lease) == (INTENT, PV, False)
    bench.client.flushall()
    queue.heartbeat()
    assert (store.all(), store.all_pvs()) == ({"pvc-u": INTENT}, {"pvc-u": PV})


@pytest.mark.parametrize("what", ["intents", "unsaved"])
def test_one_record_of_the_two_is_found_alone(bench, start_queue, what):
    queue, store = start_queue(), IntentStore(bench.client, driver="d")
    store.created("pvc-u", INTENT, PV)
    (store.delete_pv if what == "intents" else store.delete)("pvc-u")
    lease = taken(bench, queue)
    found = (INTENT, None, False) if what == "intents" else (None, PV, False)
    assert store.opened(lease) == found
    assert lease.written.keys() == {what}


def test_an_attempt_that_found_no_room_is_not_given_back(bench, start_queue):
    """An attempt without room in its namespace is not
    restored: it did not begin, and the earlier record remains.
    """
    queue, store = start_queue(), IntentStore(bench.client, namespace_bytes=10, driver="d")
    lease = taken(bench, queue)
    with pytest.raises(NamespaceFull, match="namespace team"):
        store.begin("pvc-u", INTENT, lease)
    assert lease.written == {}
    with pytest.raises(NamespaceFull, match="namespace team"):
        store.begin("pvc-u", INTENT)
    IntentStore(bench.client, driver="d").begin("pvc-u", INTENT, lease)
    before = dict(lease.written)
    with pytest.raises(NamespaceFull, match="namespace team"):
        store.begin("pvc-more", INTENT, lease)
    assert lease.written == before != {}
    IntentStore(bench.client, driver="d").finish("pvc-u")
    store.begin("pvc-u", {"key": "no key"})
    assert store.get("pvc-u") == {"key": "no key"}, "no namespace's"


def test_a_lease_as_it_begins_has_no_records_and_may_write(redis_client):
    session = Session(clock=lambda: 0.0)
    lease = Lease(
        KEY, (), "t", 1, 0, "", 0.0, CatalogState("e", {}, frozenset()), session
    )  # fmt: skip
    assert IntentStore(redis_client, driver="d").opened(lease) == (None, None, False)
    assert lease.is_held()


@pytest.mark.parametrize("is_finished", [False, True])
def test_the_end_takes_the_records_only_where_it_says_so(bench, start_queue, is_finished):
    """M-010 step 5: `done` removes the records only with `finish_intent`.

    Otherwise the attempt stays open.
    """
    queue, store = start_queue(), IntentStore(bench.client, driver="d")
    lease = taken(bench, queue)
    store.created("pvc-u", INTENT, PV, lease)
    assert queue.done(lease, **({"finish_intent": True} if is_finished else {}))
    assert not lease.is_held()
    assert (store.get("pvc-u") is None) is is_finished
    assert (store.all_pvs() == {}) is is_finished


@pytest.mark.parametrize("is_finished", [False, True])
def test_a_lost_lease_puts_back_only_what_has_no_end(bench, start_queue, is_finished):
    """A lost lease puts back only open attempts.

    A volume that was finished and saved must not get its old attempt back.
    """
    one, two, store = start_queue(), start_queue(), IntentStore(bench.client, driver="d")
    one.add([KEY])
    old = bench.run_next(one, "pvc-u")
    store.begin("pvc-u", INTENT, old)
    bench.advance(4.1)
    two.heartbeat()
    two.pump(period_seconds=0)
    assert two.done(bench.run_next(two, "pvc-u"), finish_intent=True)
    assert not one.done(old, finish_intent=is_finished)
    assert (store.get("pvc-u") is None) is is_finished


def keys_of_volume(volume):
    if "spec" not in volume:
        raise ProvisionerError("no claim")
    return [KEY]


@pytest.mark.parametrize(
    ("intent", "unsaved", "is_added"),
    [
        pytest.param(INTENT, None, True, id="an attempt"),
        pytest.param({**INTENT, "stage": "stranded"}, None, False, id="an operator's turn"),
        pytest.param({**INTENT, "stage": "stranded"}, {"spec": {}}, False, id="and its volume"),
        pytest.param(None, {"spec": {}}, True, id="a volume alone"),
        pytest.param(None, {}, False, id="a volume without a claim"),
        pytest.param(None, None, False, id="nothing"),
    ],
)
def test_m010_who_gets_the_key_back(bench, start_queue, intent, unsaved, is_added):
    queue = start_queue()
    for name, record in (("intents", intent), ("unsaved", unsaved)):
        if record is not None:
            bench.client.hset(NAMES[name].full, "pvc-u", encode(record))
    assert Recovery(bench.client, queue).run(keys_of_volume)
    assert bench.due == ([KEY] if is_added else [])


def test_the_bytes_of_each_namespace_are_counted_anew(bench, start_queue):
    """The bytes of each namespace are counted over all batches.

    Records without a namespace are not counted.
    """
    seal, rows = OURS, {}
    for number in range(500):
        tenant = ("red", "blue", "")[number % 3]
        rows[f"pvc-{number}"] = seal.close("p", f"pvc-{number}", tenant, b"{}")
    bench.client.hset(NAMES["intents"].full + "d", mapping=rows)
    bench.client.hset(NAMES["held"].full, "gone", 7)
    Recovery(bench.client, start_queue()).run(keys_of_volume)
    held = {
        tenant.encode(): str(
            sum(len(raw) for raw in rows.values() if f":{tenant}:".encode() in raw)
        )
        for tenant in ("red", "blue")
    }
    found = bench.client.hgetall(NAMES["held"].full)
    assert found == {name: count.encode() for name, count in held.items()}
    bench.client.delete(NAMES["intents"].full + "d", NAMES["period"].full + "recovery")
    Recovery(bench.client, start_queue()).run(keys_of_volume)
    assert not bench.client.exists(NAMES["held"].full)


@pytest.mark.parametrize("moment", ["before", "between"])
def test_a_good_record_written_meanwhile_is_not_set_aside(redis_client, monkeypatch, moment):
    """M-010: a valid record that was written meanwhile is not
    quarantined, although its reader first read a forged one.
    """
    owner = IntentStore(redis_client, OURS, driver="d")
    reader = IntentStore(redis_client, OURS, driver="d")
    redis_client.hset(INTENTS, "pvc-u", b"forged")

    def begin(*_):
        monkeypatch.undo()
        owner.begin("pvc-u", INTENT)

    if moment == "before":
        real = records.quarantine_forged
        monkeypatch.setattr(records, "quarantine_forged", lambda *args: (begin(), real(*args)))
    else:
        real = type(redis_client.pipeline()).multi
        monkeypatch.setattr(type(redis_client.pipeline()), "multi", lambda p: (real(p), begin()))
    assert reader.all() == {}
    assert reader.get("pvc-u") == INTENT
    assert aside(redis_client) == set()

"""SEC-4: The intent of an attempt stays small, whatever a tenant writes into the claim."""

from __future__ import annotations

import json

import pytest

from workers.constants import ANN_SELECTED_NODE
from workers.controllers.provisioner.intent import Intent, Request
from workers.deadlines import Deadline
from workers.engine.outcome import Action
from workers.errors import NamespaceFull
from workers.queue.keys import Key
from workers.queue.leases import Session

CLASS = {
    "metadata": {"name": "fast"},
    "parameters": {
        "csi.storage.k8s.io/provisioner-secret-name": "${pvc.annotations['team/secret']}",
        "csi.storage.k8s.io/provisioner-secret-namespace": "storage",
    },
}
WANTED = {"team/secret": "gold", ANN_SELECTED_NODE: "node-1"}


def record(**metadata):
    claim = {"metadata": {"namespace": "t", "name": "c", "uid": "u", **metadata}, "spec": {}}
    return Intent.begin(
        key="claims|d|t/c|u", driver="d", claim=claim, storage_class=CLASS, request=Request(),
        previous=None, session=Session(epoch="e"),
    ).record()  # fmt: skip


@pytest.mark.parametrize("problem", ["", "its secret is gone"])
def test_m010_a_record_reads_back_as_it_was_written(problem):
    """M-010: The next worker writes the intent again, so reading must not lose or add a field."""
    written = Intent(
        key="claims|d|t/c|u", driver="d", claim={"metadata": {"uid": "u"}}, selected_node="n",
        stage="stranded", has_copy=True, since=5.0, request={"name": "v"}, volume="v",
        store={"s": 1}, earlier={"e": 1}, storage_class=CLASS, deadline=Deadline(6.0, 2.0, 3.0),
        overtaken=Deadline(7.0),
        epoch="e", problem=problem,
    )  # fmt: skip
    assert Intent.from_record(written.record(), "u") == written


FILLINGS = [
    pytest.param({"a": "x" * 262_000}, id="one large"),
    pytest.param({f"a{n}": "x" * 50 for n in range(5000)}, id="many small"),
    pytest.param({f"volume.kubernetes.io/{n}": "x" * 50 for n in range(5000)}, id="as if ours"),
    pytest.param({f"a{n}": "\u00e4" * 120 for n in range(1000)}, id="not ASCII"),
]


@pytest.mark.parametrize("filling", FILLINGS)
@pytest.mark.parametrize("where", ["annotations", "labels", "managedFields"])
def test_sec4_a_tenant_cannot_fill_redis_with_its_claims(where, filling):
    found = record(annotations=WANTED) if where != "annotations" else {}
    metadata = {"annotations": WANTED} | {
        where: filling | (WANTED if where == "annotations" else {})
    }
    found = record(**metadata)
    assert len(json.dumps(found, ensure_ascii=False).encode()) < 12_000
    kept = found["claim"]["metadata"]["annotations"]
    assert kept.items() >= WANTED.items(), "what a later attempt asks for stays"


def test_what_is_small_stays_whole():
    found = record(annotations={"a": "1", "b": "2"}, labels={"app": "db"})
    assert found["claim"]["metadata"]["annotations"] == {"a": "1", "b": "2"}
    assert found["claim"]["metadata"]["labels"] == {"app": "db"}


@pytest.mark.parametrize("where", ["annotations", "labels"])
@pytest.mark.parametrize(
    ("texts", "kept"),
    [
        pytest.param({"a": "x" * 4095}, {"a"}, id="all of it by one"),
        pytest.param({"a": "x" * 4096}, set(), id="one byte more"),
        pytest.param({"aa": "\u00e4" * 2047}, {"aa"}, id="bytes, not letters"),
        pytest.param({"a": "\u00e4" * 2048}, set(), id="one byte more, not letter"),
        pytest.param({"a": "x" * 4000, "b": "x" * 94, "c": ""}, {"a", "b"}, id="all of it by two"),
        pytest.param({"a": "x" * 5000, "b": "x"}, {"b"}, id="what comes after the large one"),
    ],
)
def test_sec4_annotations_and_labels_have_4_kib_each(where, texts, kept):
    """SEC-4: The limit is exact and counts bytes, as Redis does."""
    assert set(record(**{where: texts})["claim"]["metadata"][where]) == kept


@pytest.mark.parametrize(("length", "is_kept"), [(253, True), (254, False)])
def test_sec4_a_name_of_a_secret_is_kept_however_full_the_claim_is(length, is_kept):
    """SEC-4: 253 characters is the longest valid name; a longer value cannot name a secret."""
    full = {"a": "x" * 4095, "team/secret": "s" * length}
    found = record(annotations=full)["claim"]["metadata"]["annotations"]
    assert ("team/secret" in found) is is_kept


def test_an_annotation_that_no_secret_can_be_named_by_goes():
    found = record(annotations={"team/secret": "x" * 5000})
    assert found["claim"]["metadata"]["annotations"] == {}


def test_sec4_a_claim_of_a_full_namespace_is_told_so_and_waits(world, claim, monkeypatch):
    """Without an intent the driver is not called; an event on the claim says what to do."""

    def refuse(*_):
        raise NamespaceFull("namespace default: delete claims")

    with monkeypatch.context() as patch:
        patch.setattr(world.own.safekeeping, "begin", refuse)
        outcome = world.claim_pass(claim)
    assert (outcome.action, world.client.created) == (Action.RETRY, [])
    assert world.events.warnings() == ["namespace default: delete claims"]
    assert world.claim_pass(claim).action is Action.DONE


MANY = [
    pytest.param({"finalizers": [f"example.org/{n}" for n in range(5000)]}, id="finalizers"),
    pytest.param(
        {"ownerReferences": [{"kind": "Pod", "name": f"p{n}", "uid": "u"} for n in range(5000)]},
        id="owners",
    ),
]


@pytest.mark.parametrize("metadata", MANY)
def test_sec4_lists_of_a_claim_that_no_attempt_reads_are_not_kept(metadata):
    assert len(json.dumps(record(**metadata))) < 1000


LARGE = [
    pytest.param({"accessModes": ["ReadWriteOnce"] * 50_000}, id="a mode said often"),
    pytest.param({"resources": {"requests": {"storage": "1Ki", "a" * 70_000: "1"}}}, id="a name"),
]


@pytest.mark.parametrize("spec", LARGE)
def test_sec4_a_claim_too_large_to_be_recorded_is_refused(world, spec):
    """M-010: Without an intent the driver isn't called, so no intent exceeds the stated size."""
    world.add_class()
    outcome = world.claim_pass(world.add_claim(**spec))
    assert (outcome.action, world.client.created) == (Action.RETRY, [])
    assert "the claim is too large" in world.events.warnings()[0]
    assert world.own.intents.intents == {}


def topology(nodes, labels=1):
    """Return the requisite terms of a large cluster, as the recorded request has them."""
    keys = [f"topology.example.org/key{n}" for n in range(labels)]
    terms = [
        {"segments": dict.fromkeys(keys, f"node-{n:05}.rack-{n % 40}.example.org")}
        for n in range(nodes)
    ]
    return {"accessibility_requirements": {"requisite": terms, "preferred": terms}}


@pytest.mark.parametrize(
    ("message", "parameters"),
    [
        pytest.param(topology(1400), {}, id="1,400 nodes"),
        pytest.param(topology(5000, 3), {}, id="5,000 nodes with three labels"),
        pytest.param(None, {f"p{n}": "x" * 100 for n in range(1000)}, id="a large class"),
        pytest.param(
            {"mutable_parameters": {f"a{n}": "x" * 100 for n in range(1000)}},
            {},
            id="large attributes",
        ),
    ],
)
def test_what_the_administrator_controls_is_not_measured(world, claim, message, parameters):
    """BUG-10: A user cannot shorten the topology of a large cluster."""
    storage_class = {"metadata": {"name": "fast"}, "parameters": parameters}
    intent = Intent.begin(
        key="claims|d|t/c|u", driver="d", claim=claim, storage_class=storage_class,
        request=Request(message=message), previous=None, session=Session(epoch="e"),
    )  # fmt: skip
    assert len(json.dumps(intent.record())) > 64 * 1024
    lease = world.lease(Key("claims", "d", "t/c", "u"), "pvc-u")
    world.own.safekeeping.begin(lease, intent)

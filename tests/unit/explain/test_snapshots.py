"""What `explain` says about a snapshot or content that waits."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tests.support.snapshot_world import (
    ANN_CREATED,
    ANN_DELETED,
    CONTENT,
    DRIVER,
    SnapshotWorld,
    content_body,
)
from workers import constants as k
from workers.controllers.snapshot_controller.explain import explain
from workers.controllers.snapshotter.explain import explain as explain_content
from workers.explain import generic
from workers.explain.facts import Cause
from workers.explain.generic import Explained
from workers.explain.snapshots import content_cause, snapshot_cause
from workers.kube import paths
from workers.translate.snapshot_objects import NODE_AFFINITY_DROPPED

GOING = {"deletionTimestamp": "t"}


def snapshot(**changes):
    return {"metadata": {"name": "s", "namespace": "ns", "uid": "u1"}, **changes}


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({}, "not-made"),
        ({"metadata": {"finalizers": []}}, "no-finalizer"),
        ({"status": {"snapshotHandle": "h"}}, "uploading"),
        ({"status": {"error": {"message": "full"}}}, "failed"),
        ({"status": {"readyToUse": True}}, "ready"),
        ({"metadata": GOING}, "deleted-by-hand"),
        (
            {"metadata": GOING | {"annotations": {ANN_DELETED: "yes"}, "finalizers": ["x/y"]}},
            "foreign-finalizer",
        ),
        ({"metadata": GOING | {"annotations": {ANN_DELETED: "yes"}}}, "deleting"),
        (
            {"metadata": GOING | {"annotations": {ANN_DELETED: "yes", ANN_CREATED: "yes"}}},
            "being-created",
        ),
        (
            {
                "metadata": GOING | {"annotations": {ANN_DELETED: "yes"}},
                "status": {"error": {"message": "has a clone"}},
            },
            "delete-failed",
        ),
    ],
)
def test_contents(changes, code):
    """The first cause that applies is returned."""
    assert content_cause(content_body(**changes)).code == code


def test_a_content_deleted_by_hand_names_its_snapshot():
    """The advice says what to do about the snapshot."""
    assert "ns/s" in content_cause(content_body(metadata=GOING)).advice


@pytest.mark.parametrize(
    ("item", "content", "code"),
    [
        (snapshot(), None, "no-content"),
        (snapshot(), content_body(), "not-made"),
        (snapshot(status={"readyToUse": True}), content_body(), "ready"),
        (snapshot(), content_body(status={"readyToUse": True}), "not-copied"),
        (snapshot(status={"error": {"message": "no class"}}), None, "failed"),
        ({"metadata": {"name": "s", **GOING}}, content_body(), "waits-for-content"),
        ({"metadata": {"name": "s", **GOING}}, None, "deleting"),
        (
            {"metadata": {"name": "s", **GOING, "finalizers": [k.FINALIZER_SNAPSHOT_SOURCE]}},
            content_body(),
            "being-restored",
        ),
    ],
)
def test_snapshots(item, content, code):
    """The first cause that applies is returned; a content's cause is its snapshot's."""
    held = content_cause(content) if content is not None else None
    assert snapshot_cause(item, content, held).code == code


@pytest.mark.parametrize(
    ("uid", "code"),
    [("gu", "in-group"), ("another", "waits-for-content"), (None, "waits-for-content")],
    ids=["its own", "made anew under the name", "gone"],
)
def test_a_member_is_said_to_go_with_its_own_group(monkeypatch, uid, code):
    """SNC-058 row 3: the advice must not be to delete another group."""
    monkeypatch.setattr(generic, "explain", lambda *_, **__: Explained(Cause("nothing-to-do", "")))
    world = SnapshotWorld()
    owner = {"apiVersion": "groupsnapshot.storage.k8s.io/v1", "kind": "VolumeGroupSnapshot"}
    metadata = {"ownerReferences": [owner | {"name": "g", "uid": "gu"}], "finalizers": ["x"]}
    world.add_snapshot(metadata=metadata, status={"volumeGroupSnapshotName": "g"})
    world.add_content()
    world.api.mark_deleted(paths.SNAPSHOTS, "s", "ns")
    if uid:
        group = {"name": "g", "namespace": "ns", "uid": uid}
        world.api.add(paths.GROUP_SNAPSHOTS, {"metadata": group})
    assert explain(world.tools(DRIVER), "snapshot", "ns", "s").cause.code == code


@pytest.mark.parametrize(
    ("source", "content"),
    [
        pytest.param({"persistentVolumeClaimName": "p"}, CONTENT, id="made for it"),
        pytest.param({"volumeSnapshotContentName": "given"}, "given", id="named by it"),
    ],
)
def test_what_holds_a_content_holds_its_snapshot(monkeypatch, source, content):
    """The driver is paused, which only the content's key shows; no status names the content yet."""
    world = SnapshotWorld()
    world.add_snapshot(spec={"source": source})
    world.add_content(metadata={"name": content})

    def in_queue(_tools, noun, *, namespace, name):
        del namespace
        is_held = (noun.word, name) == ("content", content)
        code, text = ("paused", "upgrade") if is_held else ("nothing-to-do", "")
        return Explained(Cause(code, text))

    monkeypatch.setattr(generic, "explain", in_queue)
    found = explain(world.tools(DRIVER), "snapshot", "ns", "s").cause
    assert (found.code, found.text) == (
        "paused",
        f"The snapshot is waiting for its content {content}: upgrade",
    )


REFUSED = Cause("failed", "The last attempt failed: pods is forbidden", until=9.0)
TURN = Cause(
    "queued", "The object is waiting for its turn; position 2 of 3 among retries", is_problem=False
)
NOTHING = Cause("nothing-to-do", "No work is pending for this object.", is_problem=False)


@pytest.mark.parametrize("queued", [REFUSED, TURN, NOTHING], ids=lambda one: one.code)
@pytest.mark.parametrize(
    ("own", "has_reason"),
    [
        pytest.param({}, False, id="not made"),
        pytest.param({"status": {"snapshotHandle": "h"}}, False, id="not ready"),
        pytest.param({"metadata": {"finalizers": []}}, False, id="no finalizer"),
        pytest.param({"status": {"error": {"message": "full"}}}, True, id="driver's error"),
        pytest.param({"status": {"readyToUse": True}}, True, id="ready"),
    ],
)
def test_fields_without_a_reason_do_not_hide_what_the_queue_knows(
    monkeypatch, queued, own, has_reason
):
    """A status that the API server refuses has no reason; the content's failed attempt has one."""
    monkeypatch.setattr(generic, "explain", lambda *_, **__: Explained(queued))
    world = SnapshotWorld()
    body = content_body(**own)
    world.add_content(**own)
    found = explain_content(world.tools(DRIVER), "content", "", CONTENT).cause
    fields = content_cause(body)
    wins = fields if has_reason or queued is NOTHING else queued
    assert (found.code, found.text) == (wins.code, wins.text)


@pytest.mark.parametrize(
    ("metadata", "code"),
    [
        ({"annotations": {ANN_DELETED: "yes"}, "finalizers": ["x/y"]}, "foreign-finalizer"),
        ({}, "deleted-by-hand"),
        ({"annotations": {ANN_DELETED: "yes"}}, "driver-not-registered"),
    ],
)
def test_what_needs_no_worker_is_told_without_one(monkeypatch, metadata, code):
    """An additional worker would not change anything."""
    monkeypatch.setattr(generic, "explain", lambda *_, **__: Explained(NOTHING))
    world = SnapshotWorld()
    world.add_content(metadata=GOING | {"finalizers": [k.FINALIZER_CONTENT]} | metadata)
    found = explain_content(world.tools("another.test"), "content", "", CONTENT).cause
    assert found.code == code


def test_a_content_of_a_driver_that_nobody_serves(monkeypatch):
    """The driver is not at fault, because no worker would call it."""
    monkeypatch.setattr(generic, "explain", lambda *_, **__: Explained(NOTHING))
    world = SnapshotWorld()
    world.add_content()
    found = explain_content(world.tools("another.test"), "content", "", CONTENT).cause
    assert found.code == "driver-not-registered"
    assert "another.test" in found.advice


@pytest.mark.parametrize("is_going", [False, True], ids=["made", "deleted"])
def test_a_group_waits_for_what_its_content_waits_for(monkeypatch, is_going):
    """The group's own key is settled; the missing permission concerns its content."""
    world = SnapshotWorld()
    going = GOING | {"finalizers": ["x"]} if is_going else {}
    group = {"name": "g", "namespace": "ns", "uid": "gu", **going}
    source = {"selector": {"matchLabels": {"a": "b"}}}
    world.api.add(paths.GROUP_SNAPSHOTS, {"metadata": group, "spec": {"source": source}})
    spec = {"driver": DRIVER, "deletionPolicy": "Delete"}
    name = "groupsnapcontent-gu"
    world.api.add(paths.GROUP_SNAPSHOT_CONTENTS, {"metadata": {"name": name}, "spec": spec})

    def in_queue(_tools, noun, **_):
        return Explained(REFUSED if noun.word == "group-content" else NOTHING)

    monkeypatch.setattr(generic, "explain", in_queue)
    found = explain(world.tools(DRIVER), "group-snapshot", "ns", "g").cause
    assert found.code == ("waits-for-content" if is_going else "failed")
    assert "is forbidden" in found.text
    assert name in found.text


def test_what_the_driver_refuses_is_retried_for_the_content():
    """A retry of the snapshot would only ask the snapshot-controller."""
    held = Cause("failed", "full", "Add space.", move="x", templates=("csi-fleet retry {retry}",))
    failed = snapshot(status={"error": {"message": "full"}})
    found = snapshot_cause(failed, content_body(), held)
    assert (found.code, found.advice, found.names["driver"]) == ("failed", "Add space.", DRIVER)
    assert found.names["retry"] == f"content {CONTENT}"
    assert (found.templates or ())[-1] == f"csi-fleet explain content {CONTENT}"


@pytest.mark.parametrize(
    ("capability", "note", "affinity", "code"),
    [
        ("SNAPSHOT_ACCESSIBILITY_CONSTRAINTS", NODE_AFFINITY_DROPPED, None, "topology-dropped"),
        ("SNAPSHOT_ACCESSIBILITY_CONSTRAINTS", NODE_AFFINITY_DROPPED, [{}], "ready"),
        ("SNAPSHOT_ACCESSIBILITY_CONSTRAINTS", "full", None, "ready"),
        ("LIST_SNAPSHOTS", NODE_AFFINITY_DROPPED, None, "ready"),
    ],
    ids=["dropped", "stored since", "another note", "no capability"],
)
def test_sns125_a_dropped_topology_is_told(monkeypatch, capability, note, affinity, code):
    """SNS-125: A ready content whose CRD lacks the field is no surprise at the restore."""
    monkeypatch.setattr(generic, "explain", lambda *_, **__: Explained(NOTHING))
    history = SimpleNamespace(trail=[SimpleNamespace(event="error", detail=note)])
    monkeypatch.setattr(generic, "known_states", lambda *_: [history])
    world = SnapshotWorld()
    spec = {"nodeAffinity": affinity}
    world.add_content(status={"readyToUse": True, "snapshotHandle": "h"}, spec=spec)
    tools = world.tools(DRIVER)
    tools.registry.alive()[DRIVER]["plugin_capabilities"] = [capability]
    assert explain_content(tools, "content", "", CONTENT).cause.code == code

"""Which events add keys for the sidecar's contents: SNS-001 to SNS-003."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tests.support.snapshot_world import ANN_CREATED, ANN_DELETED, CONTENT, DRIVER, content_body
from workers import constants as k
from workers.controllers.snapshotter.rules import SnapshotterRules
from workers.controllers.snapshotter.spec import SPEC, lease_name
from workers.kube import paths
from workers.kube.objects import AnyObject, GroupSnapshotContent, SnapshotContent
from workers.spec import Forget

KEY = f"contents|{DRIVER}|{CONTENT}|"


def item(**changes: Any) -> SnapshotContent:
    return msgspec.convert(content_body(**changes), SnapshotContent)


def rules(*records: dict) -> SnapshotterRules:
    found = SnapshotterRules()
    found.set_drivers(records or ({"name": DRIVER, "queue_name": DRIVER, "node": None},))
    return found


def seen(one: SnapshotterRules, **changes: Any) -> list[str]:
    told = one.seen(paths.SNAPSHOT_CONTENTS, item(**changes), is_listed=False)
    return [key.text for key in told]


def test_a_new_content_has_work_and_our_writes_wake_nothing():
    """SNS-002: csi-fleet itself writes the announcement, the status and the error."""
    one = rules()
    assert seen(one) == [KEY]
    assert seen(one, metadata={"annotations": {ANN_CREATED: "yes"}}) == []
    assert seen(one, status={"error": {"message": "no"}, "readyToUse": False}) == []
    assert [key.text for key in one.all_keys()] == [KEY]
    assert seen(one, status={"readyToUse": True}) == []
    assert list(one.all_keys()) == []


@pytest.mark.parametrize(
    "change",
    [
        {"metadata": {"annotations": {ANN_DELETED: "yes"}}},
        {"metadata": {"deletionTimestamp": "t"}},
        {"metadata": {"finalizers": []}},
        {"spec": {"volumeSnapshotClassName": "c2"}},
        {"metadata": {"uid": "another"}},
    ],
)
def test_others_writes_wake_it(change):
    """SNS-002, SND-007: A change of the finalizers adds a key too (SND-002)."""
    one = rules()
    seen(one)
    assert seen(one, **change) == [KEY]
    assert seen(one, **change) == []


def test_ready_contents_are_not_remembered():
    """A deletion by the snapshot's controller adds a key; a deletion by hand does not (SNS-011)."""
    one = rules()
    ready = {"status": {"readyToUse": True, "snapshotHandle": "s"}}
    assert seen(one, **ready) == []
    assert seen(one, **ready, metadata={"deletionTimestamp": "t"}) == []
    marks = {"deletionTimestamp": "t", "annotations": {ANN_DELETED: "yes"}}
    assert seen(one, **ready, metadata=marks) == [KEY]
    assert seen(one, **ready, metadata={"annotations": {ANN_CREATED: "yes"}}) == [KEY]


def test_others_contents():
    """SNS-003: Only contents of a served driver get a key."""
    assert seen(rules(), spec={"driver": "other.test"}) == []
    assert seen(SnapshotterRules()) == []


def test_contents_of_a_node():
    """SNS-001: The label names the node's sidecar; without a label there is none (SNC-080)."""
    record = {"name": DRIVER, "queue_name": f"{DRIVER}@n1", "node": "n1"}
    one = rules(record)
    label = {k.LABEL_SNAPSHOT_NODE: "n1"}
    assert seen(one, metadata={"labels": label}) == [f"contents|{DRIVER}@n1|{CONTENT}|"]
    assert seen(one, metadata={"labels": {k.LABEL_SNAPSHOT_NODE: "n2"}}) == []
    assert seen(one) == []


def test_a_new_node_needs_a_new_list():
    """Contents of a node without a sidecar were not kept."""
    watch = next(w for w in SPEC.watches if w.resource == paths.SNAPSHOT_CONTENTS)
    first = {"name": DRIVER, "queue_name": f"{DRIVER}@n1"}
    second = {"name": DRIVER, "queue_name": f"{DRIVER}@n2"}
    assert watch.relists([first], [first, second])
    assert not watch.relists([first, second], [second])


def test_a_content_that_is_gone():
    """It gets a key only if a call may have left a snapshot; otherwise its counters are dropped."""
    one = rules()
    seen(one)
    told = list(one.gone(paths.SNAPSHOT_CONTENTS, item()))
    assert [key.text for key in told] == [KEY]
    assert list(one.all_keys()) == [], "nor at each resync forever"
    given = item(spec={"source": {"snapshotHandle": "s"}})
    assert isinstance(next(iter(one.gone(paths.SNAPSHOT_CONTENTS, given))), Forget)
    assert list(one.gone(paths.SNAPSHOT_CONTENTS, item(spec={"driver": "other.test"}))) == []


def test_a_content_that_the_list_lacks():
    """The content was deleted while the watch was interrupted."""
    one = rules()
    seen(one)
    one.begin_list(paths.SNAPSHOT_CONTENTS)
    assert [key.text for key in one.end_list(paths.SNAPSHOT_CONTENTS)] == [KEY]
    assert list(one.all_keys()) == []


def test_a_class_wakes_the_contents_that_failed():
    """SND-029: A new class may remove the cause of the failure."""
    one = rules()
    seen(one)
    c1 = AnyObject()
    c1.metadata.name = "c1"
    assert list(one.seen(paths.SNAPSHOT_CLASSES, c1, is_listed=False)) == []
    seen(one, status={"error": {"message": "no"}})
    assert [key.text for key in one.seen(paths.SNAPSHOT_CLASSES, c1, is_listed=False)] == [KEY]
    assert list(one.gone(paths.SNAPSHOT_CLASSES, c1)) == []


def test_group_contents():
    """SNG-002: Group contents follow the same protocol under other names."""
    one = rules()
    spec = {"driver": DRIVER, "source": {"volumeHandles": ["a"]}}
    body = {"metadata": {"name": "g"}, "spec": spec}
    group = msgspec.convert(body, GroupSnapshotContent)
    told = one.seen(paths.GROUP_SNAPSHOT_CONTENTS, group, is_listed=False)
    assert [key.text for key in told] == [f"group-contents|{DRIVER}|g|"]
    annotated = msgspec.convert(
        {**body, "metadata": {"name": "g", "annotations": {k.ANN_GROUP_BEING_CREATED: "yes"}}},
        GroupSnapshotContent,
    )
    assert list(one.seen(paths.GROUP_SNAPSHOT_CONTENTS, annotated, is_listed=False)) == []


@pytest.mark.parametrize(
    ("metadata", "has_work"),
    [
        pytest.param({}, False, id="ready"),
        pytest.param({"annotations": {k.ANN_GROUP_BEING_CREATED: "yes"}}, True, id="announced"),
        pytest.param({"deletionTimestamp": "t"}, False, id="deleted by hand"),
        pytest.param(
            {"deletionTimestamp": "t", "annotations": {k.ANN_GROUP_BEING_DELETED: "yes"}},
            True,
            id="deleted with its group",
        ),
    ],
)
def test_group_contents_that_are_ready(metadata, has_work):
    """SNS-010, SNS-011 for groups: A ready group needs work only if it is announced or deleted."""
    body = {
        "metadata": {"name": "g", **metadata},
        "spec": {"driver": DRIVER, "source": {"volumeHandles": ["a"]}},
        "status": {"readyToUse": True, "volumeGroupSnapshotHandle": "gh"},
    }
    group = msgspec.convert(body, GroupSnapshotContent)
    one = rules()
    told = list(one.seen(paths.GROUP_SNAPSHOT_CONTENTS, group, is_listed=False))
    assert told == list(one.all_keys())
    assert bool(told) is has_work


def test_the_lease():
    """SNS-110: The Lease has csi-snapshotter's name."""
    assert lease_name("a.b/c_d") == "external-snapshotter-leader-a-b-c-d"

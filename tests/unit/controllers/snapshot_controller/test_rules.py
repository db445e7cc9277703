"""Which events add keys of snapshots and contents: SNC-001, SNQ-009, SND-029."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tests.support.snapshot_world import ANN_DELETED, CONTENT, content_body, given_body
from workers import constants as k
from workers.controllers.snapshot_controller.controller import CONTROLLER
from workers.controllers.snapshot_controller.rules import SnapshotControllerRules
from workers.controllers.snapshot_controller.settings import read_settings
from workers.controllers.snapshot_controller.spec import SPEC
from workers.kube import paths
from workers.kube.objects import (
    AnyObject,
    Claim,
    GroupSnapshot,
    GroupSnapshotContent,
    Snapshot,
    SnapshotContent,
)
from workers.kube.paths import Resource
from workers.spec import Forget

KEY = "snapshots||ns/s|"
BINDING = f"bindings||{CONTENT}|"
TYPES = {
    paths.SNAPSHOTS: Snapshot,
    paths.SNAPSHOT_CONTENTS: SnapshotContent,
    paths.SNAPSHOT_CLASSES: AnyObject,
    paths.CLAIMS: Claim,
    paths.GROUP_SNAPSHOTS: GroupSnapshot,
    paths.GROUP_SNAPSHOT_CONTENTS: GroupSnapshotContent,
    paths.GROUP_SNAPSHOT_CLASSES: AnyObject,
}
SETTLED = {
    "metadata": {"finalizers": [k.FINALIZER_SNAPSHOT_AS_SOURCE, k.FINALIZER_SNAPSHOT_BOUND]},
    "status": {"readyToUse": True, "boundVolumeSnapshotContentName": CONTENT},
}


def snapshot(**changes: Any) -> dict:
    metadata = {"name": "s", "namespace": "ns", "uid": "u1", **changes.pop("metadata", {})}
    source = {"persistentVolumeClaimName": "p"}
    spec = {"source": source, "volumeSnapshotClassName": "c1", **changes.pop("spec", {})}
    return {"metadata": metadata, "spec": spec, **changes}


def texts(told) -> list[str]:
    return [one.text for one in told if not isinstance(one, Forget)]


def seen(one: SnapshotControllerRules, resource: Resource, body: dict) -> list[str]:
    item = msgspec.convert(body, TYPES[resource])
    return texts(one.seen(resource, item, is_listed=False))


def gone(one: SnapshotControllerRules, resource: Resource, body: dict) -> list[str]:
    return texts(one.gone(resource, msgspec.convert(body, TYPES[resource])))


def waiting(**changes: Any) -> SnapshotControllerRules:
    one = SnapshotControllerRules()
    assert seen(one, paths.SNAPSHOTS, snapshot(**changes)) == [KEY]
    return one


def test_our_own_writes_wake_nothing():
    """Finalizers, binding, errors and the class are written by a reconcile that then continues."""
    one = waiting(spec={"volumeSnapshotClassName": None})
    for change in (
        {},
        {"metadata": {"finalizers": [k.FINALIZER_SNAPSHOT_AS_SOURCE]}},
        {"status": {"error": {"message": "no"}}},
        {"status": {"readyToUse": False}},
        SETTLED,
    ):
        assert seen(one, paths.SNAPSHOTS, snapshot(**change)) == []
    assert list(one.all_keys()) == []


@pytest.mark.parametrize(
    "change",
    [
        {"metadata": {"deletionTimestamp": "t", "finalizers": [k.FINALIZER_SNAPSHOT_BOUND]}},
        {"metadata": {"uid": "u2"}},
    ],
)
def test_a_deletion_or_another_life_wakes_it(change):
    """SNC-001: A deletion or a new UID adds the key."""
    assert seen(waiting(), paths.SNAPSHOTS, snapshot(**change)) == [KEY]


def test_a_ready_snapshot_that_is_ready_no_longer():
    """SNC-055: It does not matter which program wrote that."""
    one = SnapshotControllerRules()
    retained = {**SETTLED, "metadata": {"finalizers": [k.FINALIZER_SNAPSHOT_AS_SOURCE]}}
    assert seen(one, paths.SNAPSHOTS, snapshot(**retained)) == [KEY]
    assert list(one.all_keys()) == []
    unready = {**retained, "status": {**SETTLED["status"], "readyToUse": False}}
    assert seen(one, paths.SNAPSHOTS, snapshot(**unready)) == [KEY]


def test_a_change_of_the_contents_status_wakes_the_snapshot():
    """SNQ-009: A content that was just created has nothing to copy."""
    one = waiting()
    assert seen(one, paths.SNAPSHOT_CONTENTS, content_body()) == []
    cut = content_body(status={"snapshotHandle": "sh", "readyToUse": False})
    assert seen(one, paths.SNAPSHOT_CONTENTS, cut) == [KEY]
    assert seen(one, paths.SNAPSHOT_CONTENTS, cut) == []
    failed = content_body(status={"error": {"message": "no", "time": "t"}})
    assert seen(one, paths.SNAPSHOT_CONTENTS, failed) == [KEY]


def test_a_named_content_that_comes_late():
    """SNT-029: The key is added at once."""
    one = SnapshotControllerRules()
    source = {"volumeSnapshotContentName": "given"}
    seen(one, paths.SNAPSHOTS, snapshot(spec={"source": source}))
    ref = {"namespace": "ns", "name": "s"}
    body = given_body(metadata={"name": "given"}, spec={"volumeSnapshotRef": ref})
    assert seen(one, paths.SNAPSHOT_CONTENTS, body) == [KEY]


def test_a_policy_that_becomes_delete():
    """SNC-030: A retained snapshot then gets its second finalizer."""
    one = SnapshotControllerRules()
    retained = {**SETTLED, "metadata": {"finalizers": [k.FINALIZER_SNAPSHOT_AS_SOURCE]}}
    seen(one, paths.SNAPSHOTS, snapshot(**retained))
    status = {"status": {"readyToUse": True}}
    seen(one, paths.SNAPSHOT_CONTENTS, content_body(spec={"deletionPolicy": "Retain"}, **status))
    assert seen(one, paths.SNAPSHOT_CONTENTS, content_body(**status)) == [KEY]


def test_contents_with_work_of_their_own():
    """SNC-073: It has no finalizer, is invalid, or is deleted, perhaps with its snapshot."""
    one = SnapshotControllerRules()
    assert seen(one, paths.SNAPSHOT_CONTENTS, content_body()) == []
    bare = content_body(metadata={"finalizers": []})
    assert seen(one, paths.SNAPSHOT_CONTENTS, bare) == [BINDING]
    assert [key.text for key in one.all_keys()] == [BINDING]
    assert seen(one, paths.SNAPSHOT_CONTENTS, content_body()) == []
    assert list(one.all_keys()) == []
    both = content_body(spec={"source": {"volumeHandle": "h", "snapshotHandle": "s"}})
    assert seen(one, paths.SNAPSHOT_CONTENTS, both) == [BINDING]
    going = content_body(metadata={"deletionTimestamp": "t"})
    assert seen(one, paths.SNAPSHOT_CONTENTS, going) == []
    seen(one, paths.SNAPSHOT_CONTENTS, content_body())
    assert seen(one, paths.SNAPSHOT_CONTENTS, going) == [BINDING]
    marks = {"deletionTimestamp": "t", "annotations": {ANN_DELETED: "yes"}}
    assert seen(one, paths.SNAPSHOT_CONTENTS, content_body(metadata=marks)) == []


def test_a_content_that_is_gone_wakes_its_snapshot():
    """SNC-074: This includes a deletion that only a list shows, if the snapshot waits for it."""
    one = SnapshotControllerRules()
    assert gone(one, paths.SNAPSHOT_CONTENTS, content_body()) == [KEY]
    deleting = {"deletionTimestamp": "t", "finalizers": [k.FINALIZER_SNAPSHOT_BOUND]}
    seen(one, paths.SNAPSHOTS, snapshot(metadata=deleting))
    one.begin_list(paths.SNAPSHOT_CONTENTS)
    assert texts(one.end_list(paths.SNAPSHOT_CONTENTS)) == [KEY]


def listed(one: SnapshotControllerRules, resource: Resource, *bodies: dict) -> list[str]:
    one.begin_list(resource)
    for body in bodies:
        one.seen(resource, msgspec.convert(body, TYPES[resource]), is_listed=True)
    return texts(one.end_list(resource))


@pytest.mark.parametrize("order", [0, 1])
def test_a_content_that_went_while_nobody_watched(order):
    """SNC-055 at the start: The order of the two lists does not matter."""
    other = content_body(metadata={"name": "other"})
    lists = [(paths.SNAPSHOTS, snapshot(**SETTLED)), (paths.SNAPSHOT_CONTENTS, other)]
    one = SnapshotControllerRules()
    told = [listed(one, *lists[order]), listed(one, *lists[1 - order])]
    assert told == [[], [KEY]]
    fine = SnapshotControllerRules()
    lists[1] = (paths.SNAPSHOT_CONTENTS, content_body())
    assert [listed(fine, *lists[order]), listed(fine, *lists[1 - order])] == [[], []]


@pytest.mark.parametrize("is_ready", [True, False])
@pytest.mark.parametrize("order", [0, 1])
def test_a_content_that_goes_in_a_gap_is_told_as_one_that_goes_by_an_event(is_ready, order):
    """SNC-055, G4: The next list shows the deletion once.

    Resyncs add the key while it isn't ready.
    """
    body = snapshot(**SETTLED | {"status": SETTLED["status"] | {"readyToUse": is_ready}})
    content = content_body(status={"snapshotHandle": "sh", "readyToUse": True})
    lists = [(paths.SNAPSHOTS, body), (paths.SNAPSHOT_CONTENTS, content)]
    for is_event in (True, False):
        one = SnapshotControllerRules()
        listed(one, *lists[order])
        listed(one, *lists[1 - order])
        assert [key.text for key in one.all_keys()] == [KEY] * (not is_ready)
        assert listed(one, paths.SNAPSHOT_CONTENTS, content) == []
        if is_event:
            assert gone(one, paths.SNAPSHOT_CONTENTS, content) == [KEY]
        else:
            assert listed(one, paths.SNAPSHOT_CONTENTS) == [KEY]
        assert listed(one, paths.SNAPSHOT_CONTENTS) == []


@pytest.mark.parametrize("change", [{"name": "other"}, {"uid": "u9"}])
def test_a_content_that_is_another_snapshots_now_wakes_the_one_that_had_it(change):
    """SNC-055: It was recreated during a gap or changed by hand.

    csi-fleet's own binding of a content adds no key.
    """
    one = SnapshotControllerRules()
    assert listed(one, paths.SNAPSHOTS, snapshot(**SETTLED)) == []
    ref = {"namespace": "ns", "name": "s"}
    unbound = content_body(spec={"volumeSnapshotRef": ref | {"uid": ""}})
    assert listed(one, paths.SNAPSHOT_CONTENTS, unbound) == [KEY], "misbound at the start"
    assert seen(one, paths.SNAPSHOT_CONTENTS, content_body()) == []
    another = content_body(spec={"volumeSnapshotRef": ref | {"uid": "u1"} | change})
    assert seen(one, paths.SNAPSHOT_CONTENTS, another) == [KEY]
    assert seen(one, paths.SNAPSHOT_CONTENTS, another) == []


def test_claims_wake_who_waits_for_them():
    """SNT-007, SNT-042: The key is added at once, not after the back-off."""
    one = waiting()
    body = {"metadata": {"name": "p", "namespace": "ns"}, "status": {"phase": "Bound"}}
    assert seen(one, paths.CLAIMS, body) == []
    seen(one, paths.SNAPSHOTS, snapshot(status={"error": {"message": "not bound"}}))
    pending = {**body, "status": {"phase": "Pending"}}
    assert seen(one, paths.CLAIMS, pending) == []
    assert seen(one, paths.CLAIMS, body) == [KEY]
    deleting = {"deletionTimestamp": "t", "finalizers": [k.FINALIZER_SNAPSHOT_BOUND]}
    seen(one, paths.SNAPSHOTS, snapshot(metadata=deleting))
    ref = {"kind": "VolumeSnapshot", "name": "s", "namespace": "ns"}
    metadata = {"name": "r", "namespace": "other"}
    restore = {"metadata": metadata, "spec": {"dataSourceRef": ref}}
    assert seen(one, paths.CLAIMS, {**restore, "status": {"phase": "Pending"}}) == []
    assert seen(one, paths.CLAIMS, {**restore, "status": {"phase": "Bound"}}) == [KEY]
    assert gone(one, paths.CLAIMS, restore) == [KEY]


def test_classes_wake_who_waits_for_them():
    """SND-029: A class adds keys of failed snapshots that name it or need a default class."""
    one = waiting(spec={"volumeSnapshotClassName": "c9"})
    c9 = {"metadata": {"name": "c9"}}
    assert seen(one, paths.SNAPSHOT_CLASSES, c9) == []
    error = {"status": {"error": {"message": "no class"}}}
    seen(one, paths.SNAPSHOTS, snapshot(spec={"volumeSnapshotClassName": "c9"}, **error))
    assert seen(one, paths.SNAPSHOT_CLASSES, c9) == [KEY]
    seen(one, paths.SNAPSHOTS, snapshot(spec={"volumeSnapshotClassName": None}, **error))
    assert seen(one, paths.SNAPSHOT_CLASSES, c9) == []
    note = {k.ANN_DEFAULT_SNAPSHOT_CLASS: "true"}
    default = {"metadata": {"name": "d", "annotations": note}}
    assert seen(one, paths.SNAPSHOT_CLASSES, default) == [KEY]


def test_snapshots_that_are_gone_are_forgotten():
    """SNC-003: Key and counters of a deleted snapshot are dropped."""
    one = waiting()
    told = list(one.gone(paths.SNAPSHOTS, msgspec.convert(snapshot(), Snapshot)))
    assert isinstance(told[0], Forget)
    assert list(one.all_keys()) == []
    one = waiting()
    assert listed(one, paths.SNAPSHOTS) == []
    assert list(one.all_keys()) == []


def test_groups():
    """SNG-002, SNG-004: A group waits for its content, and members wait for their group."""
    one = SnapshotControllerRules()
    group = {"metadata": {"name": "g", "namespace": "ns"}}
    assert seen(one, paths.GROUP_SNAPSHOTS, group) == ["group-snapshots||ns/g|"]
    assert seen(one, paths.GROUP_SNAPSHOTS, group) == []
    ref = {"name": "g", "namespace": "ns", "uid": "gu"}
    spec = {"volumeGroupSnapshotRef": ref, "source": {"volumeHandles": ["h"]}}
    content = {"metadata": {"name": "gc"}, "spec": spec}
    told = seen(one, paths.GROUP_SNAPSHOT_CONTENTS, content)
    assert told == ["group-bindings||gc|", "group-snapshots||ns/g|"]
    assert sorted(key.text for key in one.all_keys()) == sorted(told)
    held = {**content, "metadata": {"name": "gc", "finalizers": [k.FINALIZER_GROUP_CONTENT]}}
    assert seen(one, paths.GROUP_SNAPSHOT_CONTENTS, held) == []
    assert [key.text for key in one.all_keys()] == ["group-snapshots||ns/g|"]
    ready = {**held, "status": {"readyToUse": True}}
    assert seen(one, paths.GROUP_SNAPSHOT_CONTENTS, ready) == ["group-snapshots||ns/g|"]
    assert gone(one, paths.GROUP_SNAPSHOT_CONTENTS, ready) == ["group-snapshots||ns/g|"]
    deleting = {"deletionTimestamp": "t", "finalizers": [k.FINALIZER_SNAPSHOT_IN_GROUP]}
    seen(one, paths.SNAPSHOTS, snapshot(metadata=deleting))
    assert gone(one, paths.GROUP_SNAPSHOTS, group) == [KEY]


def test_groups_that_went_while_nobody_watched():
    """SNG-004: A group whose content is gone gets a key; a group that is gone is dropped."""
    one = SnapshotControllerRules()
    told = seen(one, paths.GROUP_SNAPSHOTS, {"metadata": {"name": "g", "namespace": "ns"}})
    assert listed(one, paths.GROUP_SNAPSHOT_CONTENTS) == told != []
    assert listed(one, paths.GROUP_SNAPSHOTS) == []
    assert list(one.all_keys()) == []


def test_a_ready_group_whose_content_goes_in_a_gap_is_told():
    """SNC-055, G4: Its key is added once, as after an event."""
    one = SnapshotControllerRules()
    held = {"name": "g", "namespace": "ns", "finalizers": [k.FINALIZER_GROUP_BOUND]}
    status = {"readyToUse": True, "boundVolumeGroupSnapshotContentName": "gc"}
    assert listed(one, paths.GROUP_SNAPSHOTS, {"metadata": held, "status": status}) == []
    ref = {"name": "g", "namespace": "ns", "uid": "gu"}
    spec = {"volumeGroupSnapshotRef": ref, "source": {"volumeHandles": ["h"]}}
    metadata = {"name": "gc", "finalizers": [k.FINALIZER_GROUP_CONTENT]}
    content = {"metadata": metadata, "spec": spec}
    assert listed(one, paths.GROUP_SNAPSHOT_CONTENTS, content) == []
    assert listed(one, paths.GROUP_SNAPSHOT_CONTENTS) == ["group-snapshots||ns/g|"]
    assert listed(one, paths.GROUP_SNAPSHOT_CONTENTS, content) == []
    key = ["group-snapshots||ns/g|"]
    assert gone(one, paths.GROUP_SNAPSHOT_CONTENTS, content) == key
    assert listed(one, paths.GROUP_SNAPSHOT_CONTENTS) == []


def test_the_spec():
    """SNC-100, SNC-110: The controller needs no driver and has one Lease."""
    assert not SPEC.needs_driver
    assert SPEC.lease_name is not None
    assert SPEC.lease_name("x") == "snapshot-controller-leader"
    assert {kind.has_driver for kind in SPEC.kinds} == {False}
    assert read_settings({"worker-threads": 3}).worker_threads == 3
    assert set(CONTROLLER.limits(None)) == {kind.name for kind in SPEC.kinds}


def test_the_end_of_a_restore_wakes_a_snapshot_that_is_going():
    """SNC-058 row 2: The provisioner removed its finalizer; this matters only during a deletion."""
    restored = [k.FINALIZER_SNAPSHOT_AS_SOURCE, k.FINALIZER_SNAPSHOT_SOURCE]
    metadata = {"deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": restored}
    one = waiting(metadata=metadata)
    assert seen(one, paths.SNAPSHOTS, snapshot(metadata=metadata)) == []
    metadata["finalizers"] = restored[:1]
    assert seen(one, paths.SNAPSHOTS, snapshot(metadata=metadata)) == [KEY]
    living = waiting(metadata={"finalizers": restored})
    assert seen(living, paths.SNAPSHOTS, snapshot(metadata={"finalizers": restored[:1]})) == []


def test_a_class_wakes_the_groups_that_are_open():
    """It may be the class that they wait for."""
    one = SnapshotControllerRules()
    found = {"metadata": {"name": "gc"}}
    assert seen(one, paths.GROUP_SNAPSHOT_CLASSES, found) == []
    group = {"metadata": {"name": "g", "namespace": "ns", "uid": "u"}, "spec": {}}
    keys = seen(one, paths.GROUP_SNAPSHOTS, group)
    assert seen(one, paths.GROUP_SNAPSHOT_CLASSES, found) == keys != []

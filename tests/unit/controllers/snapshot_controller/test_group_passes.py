"""Reconciles of group snapshots: steps, members, owners, deletion (SNG-002 to SNG-005)."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.snapshot_world import CONTENT as SINGLE
from tests.support.snapshot_world import DRIVER, SnapshotWorld, error_of, finalizers
from tests.unit.controllers.snapshot_controller.test_groups import (
    CONTENT,
    add_group,
    content,
    digest,
    group,
    group_world,
    run_content,
    run_group,
    taken,
)
from workers import constants as k
from workers.controllers.snapshot_controller.controller import CONTROLLER
from workers.controllers.snapshot_controller.keys import group_binding_key, snapshot_key
from workers.kube import paths
from workers.kube.errors import ForbiddenError
from workers.queue.locks import Lock, Mode
from workers.translate.fields import is_deleting

NOBODY = ForbiddenError(403, "Forbidden", "not you")
MEMBER, OTHER = f"snapshot-{digest('ha')}", f"snapshot-{digest('hb')}"
OWN = f"snapcontent-{digest('ha')}"
FIELD = "boundVolumeGroupSnapshotContentName"
HANDLES = {"volumeGroupSnapshotHandle": "gh", "volumeSnapshotHandles": ["m1"]}
OWNER = {"apiVersion": "groupsnapshot.storage.k8s.io/v1", "kind": "VolumeGroupSnapshot"}


def delete(world: SnapshotWorld) -> None:
    world.api.mark_deleted(paths.GROUP_SNAPSHOTS, "g", "ns")


def bind(world: SnapshotWorld) -> Any:
    return world.sync(CONTROLLER, group_binding_key(CONTENT))


def told() -> SnapshotWorld:
    """Return a world whose group is reported by the driver, before its members' objects exist."""
    world = group_world()
    add_group(world)
    run_group(world)
    run_content(world)
    world.steps.reached.clear()
    return world


# Creation.


def test_each_effect_of_a_group_is_announced():
    """SNQ-011: The content is created first, then each member's pair, linked in both directions.

    No step happens twice.
    """
    world = group_world()
    add_group(world)
    assert run_group(world).reason == "waits for its content"
    assert world.steps.reached == ["add-finalizers", "create-content", "write-status"]
    assert world.queue.acquired == [Lock("pv-a", Mode.SHARED), Lock("pv-b", Mode.SHARED)]
    run_content(world)
    world.steps.reached.clear()
    assert run_group(world).reason == "ready"
    one = ["create-member", "create-member", "link-member", "bind-member", "fill-member"]
    assert world.steps.reached == [*one, *one, "write-status"]
    world.steps.reached.clear()
    world.api.change(paths.GROUP_SNAPSHOTS, "g", {"status": {"readyToUse": False}}, "ns")
    assert run_group(world).reason == "ready"
    assert world.steps.reached == ["write-status"], "what is there is left alone"


def test_a_volume_of_the_group_that_is_being_deleted():
    """SNQ-003: The provisioner locks it exclusively."""
    world = group_world()
    add_group(world)
    world.queue.busy["pv-b"] = Mode.EXCLUSIVE
    outcome = run_group(world)
    assert (outcome.action.value, outcome.lock.name) == ("blocked", "pv-b")
    assert content(world) is None


def test_a_group_content_that_may_not_be_made():
    """SNG-002: An event of its own and the status report it."""
    world = group_world()
    add_group(world)
    world.api.fail("create", CONTENT, NOBODY)
    assert run_group(world).action.value == "retry"
    assert world.reasons == [
        *("CreateGroupSnapshotContentFailed", "GroupSnapshotContentCreationFailed"),
    ]
    assert world.messages[0] == (
        "Error creating volume group snapshot content object for group snapshot ns/g: not you."
    )
    assert "not you" in error_of(group(world))


@pytest.mark.parametrize(
    ("source", "is_fine"),
    [
        ({"selector": {"matchLabels": {"app": "db"}}}, True),
        (
            {"selector": {"matchLabels": {"app": "db"}}, "volumeGroupSnapshotContentName": CONTENT},
            False,
        ),
        ({"other": "x"}, False),
    ],
)
def test_one_source_of_a_group(source, is_fine):
    """SNC-020 row 3 for groups: A group must have exactly one source."""
    world = group_world()
    add_group(world, source=source)
    assert run_group(world).action.value == ("done" if is_fine else "retry")
    assert ("GroupSnapshotValidationError" in world.reasons) is not is_fine


def test_a_default_class_needs_a_csi_volume():
    """SNC-011: Otherwise its driver is unknown."""
    world = group_world()
    world.api.change(paths.VOLUMES, "pv-a", {"spec": {"csi": None}})
    add_group(world, volumeGroupSnapshotClassName=None)
    assert run_group(world).action.value == "retry"
    assert error_of(group(world)) == (
        "Failed to set default group snapshot class with error snapshotting non-CSI volumes is not "
        "supported, group snapshot:ns/g"
    )


@pytest.mark.parametrize("class_name", ["gc", None])
def test_a_given_group_is_bound_and_held(class_name):
    """SNG-003: With or without a class, the finalizer is added with the binding."""
    world = group_world()
    spec = {
        "driver": DRIVER,
        "deletionPolicy": "Delete",
        "source": {"groupSnapshotHandles": HANDLES},
        "volumeGroupSnapshotRef": {"name": "g", "namespace": "ns"},
    }
    world.api.add(paths.GROUP_SNAPSHOT_CONTENTS, {"metadata": {"name": CONTENT}, "spec": spec})
    source = {"volumeGroupSnapshotContentName": CONTENT}
    add_group(world, source=source, volumeGroupSnapshotClassName=class_name)
    assert run_group(world).action.value == "done"
    assert finalizers(group(world)) == ["volumegroupsnapshot-bound-protection"]
    assert group(world)["status"][FIELD] == CONTENT
    assert content(world)["spec"]["volumeGroupSnapshotRef"]["uid"] == "gu"
    assert content(world)["spec"].get("volumeGroupSnapshotClassName") == class_name
    before = len(world.api.writes)
    assert run_group(world).action.value == "done"
    assert len(world.api.writes) == before


def test_a_given_group_that_names_a_dynamic_content():
    """SNC-051 for groups: The content is not pre-provisioned."""
    world = told()
    source = {"volumeGroupSnapshotContentName": CONTENT}
    add_group(world, source=source)
    assert run_group(world).action.value == "retry"
    assert world.reasons[-2:] == ["GroupSnapshotContentMismatch", "GroupSnapshotFinalizerError"]


# The group content, reconciled by the snapshot controller.


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ({"volumeHandles": ["a"]}, "finalizer added"),
        ({"groupSnapshotHandles": HANDLES}, "finalizer added"),
        ({"groupSnapshotHandles": HANDLES, "volumeHandles": ["a"]}, "not valid"),
        ({"volumeHandles": []}, "not valid"),
    ],
)
@pytest.mark.parametrize("state", ["living", "held", "going", "unbound"])
def test_the_finalizer_of_a_group_content(source, reason, state):
    """SNC-073 for groups: A content that is bound and not being deleted gets it."""
    world = SnapshotWorld()
    metadata: dict[str, Any] = {"name": CONTENT, "finalizers": ["example.org/other"]}
    if state == "held":
        metadata["finalizers"] = [k.FINALIZER_GROUP_CONTENT]
    if state == "going":
        metadata["deletionTimestamp"] = "t"
    ref = {"name": "g", "namespace": "ns", "uid": "" if state == "unbound" else "gu"}
    spec = {"source": source, "volumeGroupSnapshotRef": ref}
    world.api.add(paths.GROUP_SNAPSHOT_CONTENTS, {"metadata": metadata, "spec": spec})
    others = {"held": "nothing to do", "going": "nothing to do", "unbound": "not bound"}
    wanted = reason if reason == "not valid" else others.get(state, reason)
    assert bind(world).reason == wanted
    is_held = state == "held" or wanted == "finalizer added"
    assert (k.FINALIZER_GROUP_CONTENT in content(world)["metadata"]["finalizers"]) is is_held


def test_group_contents_that_need_no_look():
    """SNG-005: Groups are switched off, or the content is gone."""
    assert bind(SnapshotWorld()).reason == "gone"
    assert bind(SnapshotWorld(groups=False)).reason == "group snapshots are switched off"


# Members.


def test_the_volumes_of_members_are_looked_for_among_all_only_if_one_lacks():
    """SNG-002: The claim's labels have changed; another driver's volume does not count."""
    world = told()
    assert run_group(world).reason == "ready"
    assert not [one for one in world.api.requests if one.path == "persistentvolumes"]
    assert world.content(OWN)["spec"]["sourceVolumeMode"] == "Filesystem"
    world = told()
    world.api.change(paths.CLAIMS, "a", {"metadata": {"labels": None}}, "ns")
    for name, spec in (
        ("x", {"csi": {"driver": "other.test", "volumeHandle": "ha"}, "volumeMode": "Block"}),
        ("y", {"nfs": {"server": "s"}}),
    ):
        world.api.add(paths.VOLUMES, {"metadata": {"name": name}, "spec": spec})
    assert run_group(world).reason == "ready"
    assert [one.verb for one in world.api.requests if one.path == "persistentvolumes"] == ["get"]
    assert world.snapshot(MEMBER)["spec"] == {"source": {"persistentVolumeClaimName": "a"}}
    assert world.content(OWN)["spec"]["sourceVolumeMode"] == "Filesystem"


def test_a_member_whose_volume_is_gone_has_its_objects_all_the_same():
    """SNG-002: Its claim's name is empty and its volume mode unset."""
    world = told()
    world.api.drop(paths.VOLUMES, "pv-a")
    assert run_group(world).reason == "ready"
    assert world.snapshot(MEMBER)["spec"] == {"source": {"persistentVolumeClaimName": ""}}
    assert world.content(OWN)["spec"]["sourceVolumeMode"] is None
    assert world.snapshot(OTHER)["spec"] == {"source": {"persistentVolumeClaimName": "b"}}


def test_a_members_content_has_what_the_group_told():
    """SNG-002: The fields that others wrote into its status are kept."""
    world = told()
    assert run_group(world).reason == "ready"
    status = world.content(OWN)["status"]
    assert status["restoreSize"] == 5
    assert set(status) == {
        *("snapshotHandle", "volumeGroupSnapshotHandle", "restoreSize", "readyToUse"),
    }
    error = {"error": {"message": "x", "time": "t"}}
    world.api.change(paths.SNAPSHOT_CONTENTS, OWN, {"status": error | {"restoreSize": None}})
    world.api.change(paths.GROUP_SNAPSHOTS, "g", {"status": {"readyToUse": False}}, "ns")
    run_group(world)
    assert world.content(OWN)["status"] == status | error


# Owners.


def ready_member(*owners: dict[str, str], groups: bool = True) -> SnapshotWorld:
    """Return a world with a ready snapshot whose status names the existing group `g`, UID `gu`."""
    world = SnapshotWorld(groups=groups)
    world.add_source()
    metadata = {"finalizers": [k.FINALIZER_SNAPSHOT_AS_SOURCE, k.FINALIZER_SNAPSHOT_BOUND]}
    status = {
        "readyToUse": True,
        "boundVolumeSnapshotContentName": SINGLE,
        "volumeGroupSnapshotName": "g",
    }
    world.add_snapshot(metadata=metadata | {"ownerReferences": list(owners)}, status=status)
    world.add_content(status={"readyToUse": True, "snapshotHandle": "sh"})
    body = {"metadata": {"name": "g", "namespace": "ns", "uid": "gu"}}
    world.api.add(paths.GROUP_SNAPSHOTS, body)
    return world


ANOTHER = {"apiVersion": "v1", "kind": "Pod", "name": "x", "uid": "xu"}
GROUPS_OWN = OWNER | {"name": "g", "uid": "gu"}


@pytest.mark.parametrize(
    ("owners", "groups", "is_owned"),
    [
        ([], True, True),
        ([ANOTHER], True, True),
        ([GROUPS_OWN], True, False),
        ([OWNER | {"name": "g", "uid": "earlier"}], True, False),
        ([], False, False),
    ],
)
def test_a_group_owns_a_ready_member(owners, groups, is_owned):
    """SNC-055, SNG-005: The group is added once to the other owners.

    A second group is never added.
    """
    world = ready_member(*owners, groups=groups)
    assert world.run_snapshot().reason == ("owned by its group" if is_owned else "ready")
    found = world.snapshot()["metadata"]["ownerReferences"]
    assert found == [*owners, *([GROUPS_OWN] if is_owned else [])]
    assert world.run_snapshot().reason == "ready"


def test_a_group_that_another_one_wrote_first_owns_it_once():
    """SNQ-006: After the conflict the snapshot is read and checked again."""
    world = ready_member()
    change = {"metadata": {"ownerReferences": [GROUPS_OWN]}}
    place = "volumesnapshots/s"
    world.api.before("patch", place, lambda: world.api.change(paths.SNAPSHOTS, "s", change, "ns"))
    assert world.run_snapshot().reason == "ready"
    assert world.snapshot()["metadata"]["ownerReferences"] == [GROUPS_OWN]


def test_a_member_whose_group_is_gone_has_no_owner():
    """SNC-055: A missing group is not added as owner."""
    world = ready_member()
    world.api.drop(paths.GROUP_SNAPSHOTS, "g", "ns")
    assert world.run_snapshot().reason == "ready"
    assert world.snapshot()["metadata"]["ownerReferences"] == []


# Deletion.


def test_each_effect_of_a_groups_end_is_announced():
    """SNG-004, SNQ-011 f: Each step happens once; another reconcile only waits."""
    world = taken()
    delete(world)
    world.steps.reached.clear()
    assert run_group(world).reason == "waits for its content"
    assert world.steps.reached == [
        *("mark-deleted", "delete-content", "delete-member", "delete-member"),
    ]
    assert run_group(world).reason == "waits for its content"
    assert len(world.steps.reached) == 4
    world.api.drop(paths.GROUP_SNAPSHOT_CONTENTS, CONTENT)
    assert run_group(world).reason == "released"
    assert world.steps.reached[4:] == ["remove-finalizers"]


def test_a_group_that_others_hold_is_left_to_them():
    """SNG-004: Only csi-fleet's finalizer is removed; without it the group needs no work."""
    world = taken(deletionPolicy="Retain")
    change = {"metadata": {"finalizers": ["example.org/other", k.FINALIZER_GROUP_BOUND]}}
    world.api.change(paths.GROUP_SNAPSHOTS, "g", change, "ns")
    delete(world)
    assert run_group(world).reason == "released"
    assert finalizers(group(world)) == ["other"]
    world.steps.reached.clear()
    assert run_group(world).reason == "nothing to do"
    assert world.steps.reached == []


@pytest.mark.parametrize("name", [MEMBER, OTHER])
def test_a_member_that_is_still_copied_holds_the_group(name):
    """SNC-058 row 2: Its claim is gone, but the provisioner's finalizer is still on it."""
    world = taken()
    held = [*world.snapshot(name)["metadata"]["finalizers"], k.FINALIZER_SNAPSHOT_SOURCE]
    world.api.change(paths.SNAPSHOTS, name, {"metadata": {"finalizers": held}}, "ns")
    delete(world)
    assert run_group(world).reason == "is being restored"
    assert world.messages[-1].startswith(f"Snapshot ns/{name} belonging to VolumeGroupSnapshot")
    assert not is_deleting(content(world))


def test_a_snapshot_of_another_group_stays():
    """SNG-004: The owner reference must have the group's UID."""
    world = taken()
    owner = OWNER | {"name": "g", "uid": "another"}
    world.add_snapshot(metadata={"ownerReferences": [owner], "finalizers": ["x"]})
    delete(world)
    run_group(world)
    assert is_deleting(world.snapshot(MEMBER))
    assert not is_deleting(world.snapshot())


def test_a_member_that_goes_before_it_is_deleted():
    """SNG-004: A member that is already gone is no error."""
    world = taken()
    delete(world)
    events = len(world.reasons)
    place = f"volumesnapshots/{MEMBER}"
    world.api.before("delete", place, lambda: world.api.drop(paths.SNAPSHOTS, MEMBER, "ns"))
    assert run_group(world).reason == "waits for its content"
    assert len(world.reasons) == events
    assert is_deleting(world.snapshot(OTHER))


def test_a_group_content_that_may_not_be_deleted():
    """SNC-058 row 5 for groups: The members are not deleted either."""
    world = taken()
    delete(world)
    world.api.fail("delete", CONTENT, NOBODY)
    assert run_group(world).reason == "content not deleted"
    assert world.reasons[-1] == "GroupSnapshotContentObjectDeleteError"
    assert not is_deleting(world.snapshot(MEMBER))


@pytest.mark.parametrize(
    ("status", "owner", "is_held"),
    [
        ("g", "", True),
        ("", "VolumeGroupSnapshot", True),
        ("", "Pod", False),
        ("gone", "", False),
        ("gone", "VolumeGroupSnapshot", False),
    ],
)
def test_which_group_keeps_a_member(status, owner, is_held):
    """SNC-058 row 3, SND-022: The group in the member's status counts, else its owner."""
    world = SnapshotWorld()
    metadata: dict[str, Any] = {"name": "g", "namespace": "ns", "uid": "gu"}
    world.api.add(paths.GROUP_SNAPSHOTS, {"metadata": metadata})
    owners = [OWNER | {"kind": owner, "name": "g", "uid": "gu"}] if owner else []
    metadata = {"name": MEMBER, "ownerReferences": owners}
    metadata["finalizers"] = [k.FINALIZER_SNAPSHOT_IN_GROUP]
    named = {"status": {"volumeGroupSnapshotName": status}} if status else {}
    world.add_snapshot(metadata=metadata, **named)
    world.api.mark_deleted(paths.SNAPSHOTS, MEMBER, "ns")
    outcome = world.run_snapshot(snapshot_key("ns", MEMBER))
    assert outcome.reason == ("its group exists" if is_held else "released")

"""A group's deletion deletes its members, and contents whose snapshot does not exist (SND-043)."""

from __future__ import annotations

import pytest

from tests.support.snapshot_world import SnapshotWorld, notes
from tests.unit.controllers.snapshot_controller.test_deletion import RESTORE, grant
from tests.unit.controllers.snapshot_controller.test_groups import (
    CONTENT,
    add_group,
    content,
    digest,
    group_world,
    run_content,
    run_group,
    taken,
)
from workers import constants as k
from workers.controllers.snapshot_controller.keys import snapshot_key
from workers.kube import paths
from workers.kube.errors import ForbiddenError
from workers.translate.fields import is_deleting

OWN, MEMBER = f"snapcontent-{digest('ha')}", f"snapshot-{digest('ha')}"


def without_a_snapshot(**class_changes: str) -> SnapshotWorld:
    """Return a group under deletion whose first member's snapshot was never created."""
    world = taken(**class_changes)
    world.api.drop(paths.SNAPSHOTS, f"snapshot-{digest('ha')}", "ns")
    world.api.mark_deleted(paths.GROUP_SNAPSHOTS, "g", "ns")
    return world


@pytest.mark.parametrize("policy", ["Delete", "Retain"])
def test_a_content_without_snapshot_is_deleted_with_the_group(policy):
    """As in a snapshot's own deletion, it is annotated, and deleted unless the policy keeps it."""
    world = without_a_snapshot(deletionPolicy=policy)
    run_group(world)
    own = world.content(OWN)
    assert notes(own)[k.ANN_BEING_DELETED] == "yes"
    assert is_deleting(own) == (policy == "Delete")


@pytest.mark.parametrize(
    "change",
    [
        {"spec": {"driver": "other.test"}},
        {"spec": {"volumeSnapshotRef": {"namespace": "other"}}},
        {"spec": {"volumeSnapshotRef": {"name": "other"}}},
        {"metadata": {"annotations": {k.ANN_GROUP_HANDLE: "other"}}},
        {"metadata": {"annotations": None}},
    ],
    ids=str,
)
def test_a_content_that_is_not_the_groups_stays(change):
    """A content that only has a member's name is not the group's."""
    world = without_a_snapshot()
    world.api.change(paths.SNAPSHOT_CONTENTS, OWN, change)
    before = world.content(OWN)
    run_group(world)
    assert is_deleting(content(world))
    assert world.content(OWN) == before


def test_contents_of_whole_members_are_left_to_their_snapshots():
    """As recorded (sns-42), the group's own reconcile sends no request about them."""
    world = taken()
    world.api.mark_deleted(paths.GROUP_SNAPSHOTS, "g", "ns")
    before = len(world.api.requests)
    run_group(world)
    assert is_deleting(content(world))
    assert not [one for one in world.api.requests[before:] if "/snapcontent-" in one.path]


def test_a_content_that_may_not_be_deleted_holds_the_group():
    """The list of the members would be deleted with the group's content."""
    world = without_a_snapshot()
    error = ForbiddenError(403, "Forbidden", "not you")
    world.api.fail("delete", f"volumesnapshotcontents/{OWN}", error)
    assert run_group(world).action.value == "retry"
    assert world.reasons[-1] == "SnapshotContentObjectDeleteError"
    assert not is_deleting(content(world))
    run_group(world)
    assert is_deleting(world.content(OWN))
    assert is_deleting(content(world))


@pytest.mark.parametrize("lacks", ["volumeSnapshotInfoList", "volumeGroupSnapshotHandle"])
def test_members_are_made_once_the_driver_told_both_group_and_members(lacks):
    """SNG-002: Members' contents need the group's handle; until then nothing is requested."""
    world = group_world()
    add_group(world)
    run_group(world)
    run_content(world)
    told = content(world)["status"][lacks]
    for value, is_made in ((None, False), (told, True)):
        change = {"status": {lacks: value, "readyToUse": is_made}}
        world.api.change(paths.GROUP_SNAPSHOT_CONTENTS, CONTENT, change)
        before = len(world.api.requests)
        run_group(world)
        made = [one.path for one in world.api.requests[before:] if one.verb == "create"]
        looked = [one for one in world.api.requests[before:] if "persistentvolumes" in one.path]
        assert (len(made), bool(looked)) == (4 * is_made, is_made)


@pytest.mark.parametrize("has_status", [True, False], ids=["ready", "no status yet"])
def test_a_group_made_anew_under_the_name_does_not_hold_the_members_of_the_old_one(has_status):
    """SNG-004, SNC-058 row 3: They are deleted once their own group is gone.

    The new group would not adopt them. snapshot-controller compares only names: members stay in
    Terminating while the new group exists.
    """
    world = taken()
    name = f"snapshot-{digest('ha')}"
    if not has_status:
        world.api.change(paths.SNAPSHOTS, name, {"status": {"volumeGroupSnapshotName": None}}, "ns")
    world.api.mark_deleted(paths.GROUP_SNAPSHOTS, "g", "ns")
    run_group(world)
    run_content(world)
    assert world.run_snapshot(snapshot_key("ns", name)).reason == "its group exists"
    run_group(world)
    assert world.api.of(paths.GROUP_SNAPSHOTS, "g", "ns") is None
    add_group(world)
    world.api.change(paths.GROUP_SNAPSHOTS, "g", {"metadata": {"uid": "another"}}, "ns")
    told = len(world.reasons)
    assert world.run_snapshot(snapshot_key("ns", name)).reason == "waits for its content"
    assert is_deleting(world.content(OWN))
    assert "SnapshotDeletePending" not in world.reasons[told:]


def test_a_member_that_is_restored_into_another_namespace_holds_its_group():
    """SNG-004, SND-010: As with a single snapshot, it counts where a ReferenceGrant allows it."""
    world = taken()
    grant(world)
    source = RESTORE | {"namespace": "ns", "name": MEMBER}
    body = {"metadata": {"name": "r", "namespace": "other"}, "spec": {"dataSourceRef": source}}
    world.api.add(paths.CLAIMS, body | {"status": {"phase": "Pending"}})
    world.api.mark_deleted(paths.GROUP_SNAPSHOTS, "g", "ns")
    assert run_group(world).action.value == "retry"
    assert world.reasons[-1] == "SnapshotDeletePending"
    assert not is_deleting(content(world)), "the storage's group goes under a restore"
    world.api.drop(paths.REFERENCE_GRANTS, "g", "ns")
    run_group(world)
    assert is_deleting(content(world))


def test_claims_that_cannot_be_listed_count_as_restores_of_members():
    """SND-010: A restore cannot be excluded without the list."""
    world = taken()
    world.api.mark_deleted(paths.GROUP_SNAPSHOTS, "g", "ns")
    error = ForbiddenError(403, "Forbidden", "not you")
    world.api.fail("get", "namespaces/ns/persistentvolumeclaims", error)
    assert run_group(world).action.value == "retry"
    assert world.reasons[-1] == "SnapshotDeletePending"
    assert not is_deleting(content(world))

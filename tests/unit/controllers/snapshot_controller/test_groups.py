"""Group snapshots, both halves: SNG-001 to SNG-005."""

from __future__ import annotations

import hashlib

import pytest

from tests.support.snapshot_world import DRIVER, SnapshotWorld, error_of, finalizers
from workers import constants as k
from workers.controllers.snapshot_controller.controller import CONTROLLER
from workers.controllers.snapshot_controller.groupinput import selector_text
from workers.controllers.snapshot_controller.keys import (
    group_binding_key,
    group_key,
    snapshot_key,
)
from workers.controllers.snapshotter.controller import CONTROLLER as SNAPSHOTTER
from workers.controllers.snapshotter.rules import KIND_GROUP_CONTENTS
from workers.kube import paths
from workers.kube.errors import AlreadyExistsError, ForbiddenError, NotFoundError
from workers.queue.keys import Key
from workers.translate.fields import is_deleting

GROUP = group_key("ns", "g")
CONTENT = "groupsnapcontent-gu"
CONTENT_KEY = Key(KIND_GROUP_CONTENTS, DRIVER, CONTENT)
SECRET = "csi.storage.k8s.io/group-snapshotter-secret"
MEMBERS = [
    {"snapshot_id": f"s-{h}", "source_volume_id": h, "ready_to_use": True, "size_bytes": 5}
    for h in ("ha", "hb")
]
MADE = {"group_snapshot": {"group_snapshot_id": "gh", "ready_to_use": True, "snapshots": MEMBERS}}


def group_world(**class_changes) -> SnapshotWorld:
    world = SnapshotWorld()
    body = {"metadata": {"name": "gc"}, "driver": DRIVER, "deletionPolicy": "Delete"}
    world.api.add(paths.GROUP_SNAPSHOT_CLASSES, body | class_changes)
    for name in ("a", "b"):
        claim = {"name": name, "namespace": "ns", "uid": f"{name}-uid", "labels": {"app": "db"}}
        spec = {"volumeName": f"pv-{name}"}
        world.api.add(paths.CLAIMS, {"metadata": claim, "spec": spec, "status": {"phase": "Bound"}})
        volume = {
            "csi": {"driver": DRIVER, "volumeHandle": f"h{name}"},
            "claimRef": {"namespace": "ns", "name": name},
            "volumeMode": "Filesystem",
        }
        world.api.add(paths.VOLUMES, {"metadata": {"name": f"pv-{name}"}, "spec": volume})
    world.client.respond({"CreateVolumeGroupSnapshot": [MADE]})
    return world


def add_group(world: SnapshotWorld, **spec) -> None:
    source = {"selector": {"matchLabels": {"app": "db"}}}
    body = {"source": source, "volumeGroupSnapshotClassName": "gc"} | spec
    body = {name: value for name, value in body.items() if value is not None}
    metadata = {"name": "g", "namespace": "ns", "uid": "gu"}
    world.api.add(paths.GROUP_SNAPSHOTS, {"metadata": metadata, "spec": body})


def run_group(world: SnapshotWorld):
    return world.sync(CONTROLLER, GROUP)


def run_content(world: SnapshotWorld):
    return world.sync(SNAPSHOTTER, CONTENT_KEY)


def group(world: SnapshotWorld) -> dict:
    found = world.api.of(paths.GROUP_SNAPSHOTS, "g", "ns")
    assert found is not None
    return found


def content(world: SnapshotWorld) -> dict | None:
    return world.api.of(paths.GROUP_SNAPSHOT_CONTENTS, CONTENT)


def digest(handle: str) -> str:
    return hashlib.sha256(f"gu{handle}".encode()).hexdigest()


def taken(**class_changes) -> SnapshotWorld:
    """Return a world with a ready group and its members."""
    world = group_world(**class_changes)
    add_group(world)
    run_group(world)
    run_content(world)
    run_group(world)
    for handle in ("ha", "hb"):
        world.run_snapshot(snapshot_key("ns", f"snapshot-{digest(handle)}"))
    return world


def test_a_group_from_nothing_to_ready():
    """SNG-002, SNA-007: One call covers all volumes; then each member gets a pair of objects."""
    world = taken()
    request = world.client.requests("CreateVolumeGroupSnapshot")[0]
    assert (request.name, list(request.source_volume_ids)) == ("groupsnapshot-gu", ["ha", "hb"])
    assert group(world)["status"]["readyToUse"] is True
    assert finalizers(group(world)) == ["volumegroupsnapshot-bound-protection"]
    assert world.reasons[:3] == [
        *("CreatingGroupSnapshot", "GroupSnapshotCreated", "GroupSnapshotReady"),
    ]
    name = f"snapshot-{digest('ha')}"
    member = world.snapshot(name)
    assert member["spec"] == {"source": {"persistentVolumeClaimName": "a"}}
    assert member["metadata"]["ownerReferences"][0]["name"] == "g"
    assert member["status"]["volumeGroupSnapshotName"] == "g"
    assert member["status"]["readyToUse"] is True
    assert finalizers(member) == [
        *("volumesnapshot-in-group-protection", "volumesnapshot-as-source-protection"),
    ]
    own = world.content(f"snapcontent-{digest('ha')}")
    assert own["metadata"]["annotations"] == {k.ANN_GROUP_HANDLE: "gh"}
    assert own["spec"]["volumeSnapshotRef"]["uid"] == member["metadata"]["uid"]
    assert own["status"]["snapshotHandle"] == "s-ha"
    assert own["status"]["volumeGroupSnapshotHandle"] == "gh"


def test_members_are_made_once():
    """A reconcile that was interrupted is simply repeated."""
    world = taken()
    before = len(world.api.writes)
    world.api.change(paths.GROUP_SNAPSHOTS, "g", {"status": {"readyToUse": False}}, "ns")
    run_group(world)
    made = [one for one in world.api.writes[before:] if one.verb == "create"]
    assert made == []


def test_a_group_is_not_made_twice():
    """SND-040: A write of the controller in the meantime causes no second call."""
    world = group_world()
    add_group(world)
    run_group(world)
    label = {"metadata": {"labels": {"a": "b"}}}
    place = f"{CONTENT}/status"
    change = world.api.change
    world.api.before("patch", place, lambda: change(paths.GROUP_SNAPSHOT_CONTENTS, CONTENT, label))
    assert run_content(world).action.value == "done"
    assert world.client.methods == ["CreateVolumeGroupSnapshot"]
    assert content(world)["status"]["volumeGroupSnapshotHandle"] == "gh"


def test_secret_templates_see_the_group():
    """SND-038: snapshot-controller would create no member in this case."""
    parameters = {f"{SECRET}-name": "s-${volumegroupsnapshot.name}", f"{SECRET}-namespace": "ns"}
    world = group_world(parameters=parameters)
    data = {"metadata": {"name": "s-g", "namespace": "ns"}, "data": {"a": "Yg=="}}
    world.api.add(paths.SECRETS, data)
    add_group(world)
    run_group(world)
    run_content(world)
    run_group(world)
    assert dict(world.client.requests("CreateVolumeGroupSnapshot")[0].secrets) == {"a": "b"}
    own = world.content(f"snapcontent-{digest('ha')}")
    assert own["metadata"]["annotations"][k.ANN_SNAPSHOT_SECRET_NAME] == "s-g"


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        (
            {"source": {"selector": {"matchLabels": {"app": "none"}}}},
            "label selector app=none for group snapshot not applied to any PVC",
        ),
        ({"source": {}}, "Exactly one of Selector and VolumeGroupSnapshotContentName"),
        ({"volumeGroupSnapshotClassName": "none"}, '"none" not found'),
        ({"volumeGroupSnapshotClassName": None}, "cannot find default group snapshot class"),
        (
            {"source": {"volumeGroupSnapshotContentName": "none"}},
            "VolumeGroupSnapshotContent is missing",
        ),
    ],
)
def test_groups_that_cannot_be_taken(spec, words):
    """SNG-002: The group's status reports the error, and the group is retried."""
    world = group_world()
    add_group(world, **spec)
    assert run_group(world).action.value == "retry"
    assert words in error_of(group(world))


@pytest.mark.parametrize(
    ("selector", "shown"),
    [
        ({"matchLabels": {"b": "1", "a": "2"}}, "a=2,b=1"),
        (
            {
                "matchLabels": {"b": "1"},
                "matchExpressions": [
                    {"key": "c", "operator": "NotIn", "values": ["y", "x"]},
                    {"key": "a", "operator": "DoesNotExist"},
                    {"key": "d", "operator": "Exists"},
                ],
            },
            "!a,b=1,c notin (x,y),d",
        ),
        ({}, ""),
    ],
)
def test_selectors_as_go_prints_them(selector, shown):
    """SNG-002: The text appears in the error about claims that do not match."""
    assert selector_text(selector) == shown


def test_an_empty_selector_that_matches_nothing():
    """SNG-002: An empty selector is printed as `<none>`."""
    world = SnapshotWorld()
    body = {"metadata": {"name": "gc"}, "driver": DRIVER, "deletionPolicy": "Delete"}
    world.api.add(paths.GROUP_SNAPSHOT_CLASSES, body)
    add_group(world, source={"selector": {}})
    run_group(world)
    assert "label selector <none> for group snapshot" in error_of(group(world))


def test_a_volume_of_another_driver():
    """SNG-002: All volumes of a group must belong to one driver."""
    world = group_world()
    change = {"spec": {"csi": {"driver": "other.test"}}}
    world.api.change(paths.VOLUMES, "pv-b", change)
    add_group(world)
    assert run_group(world).action.value == "retry"
    assert "CreateGroupSnapshotContentFailed" in world.reasons
    assert content(world) is None


def test_a_volume_that_is_no_csi_volume():
    """SNG-002: The event names the volume."""
    world = group_world()
    world.api.change(paths.VOLUMES, "pv-b", {"spec": {"csi": None, "nfs": {"server": "s"}}})
    add_group(world)
    assert run_group(world).action.value == "retry"
    assert world.messages[0] == "Cannot snapshot a non-CSI volume: pv-b"
    assert world.reasons[0] == "CreateGroupSnapshotContentFailed"
    assert content(world) is None


def test_a_content_of_another_group():
    """SNC-052 for groups: Its snapshots must not become members of this group."""
    world = group_world()
    add_group(world)
    run_group(world)
    run_content(world)
    change = {"spec": {"volumeGroupSnapshotRef": {"uid": "another"}}}
    world.api.change(paths.GROUP_SNAPSHOT_CONTENTS, CONTENT, change)
    assert run_group(world).action.value == "retry"
    assert "GroupSnapshotContentMisbound" in world.reasons
    assert error_of(group(world)).endswith("is bound to a different group snapshot")
    assert world.snapshot(f"snapshot-{digest('ha')}") is None


@pytest.mark.parametrize("uid", ["gu", "another", None], ids=["ours", "another's", "gone again"])
def test_a_content_that_was_made_meanwhile(uid):
    """SNC-052: A repeated request or a Go controller created it; another group's is never used."""
    world = group_world()
    add_group(world)
    ref = {"name": "g", "namespace": "ns", "uid": uid}
    spec = {"source": {"volumeHandles": ["ha", "hb"]}, "volumeGroupSnapshotRef": ref}
    body = {"metadata": {"name": CONTENT}, "spec": spec}
    if uid:
        made = lambda: world.api.add(paths.GROUP_SNAPSHOT_CONTENTS, body)  # noqa: E731
        world.api.before("create", CONTENT, made)
    else:
        world.api.fail("create", CONTENT, AlreadyExistsError(409, "AlreadyExists", "exists"))
    run_group(world)
    told = {"gu": "CreatingGroupSnapshot", "another": "GroupSnapshotContentMisbound"}
    assert world.reasons == [told.get(uid, "GroupSnapshotContentCreationFailed")]


@pytest.mark.parametrize(
    "refused",
    [
        ForbiddenError(403, "Forbidden", "not you"),
        NotFoundError(404, "NotFound", "the server could not find the requested resource"),
    ],
    ids=str,
)
def test_a_member_that_cannot_be_deleted(refused):
    """SNG-004: An event reports it and it is retried, also while its kind is not served."""
    world = taken()
    world.api.mark_deleted(paths.GROUP_SNAPSHOTS, "g", "ns")
    world.api.fail("delete", f"volumesnapshots/snapshot-{digest('ha')}", refused)
    assert run_group(world).action.value == "retry"
    assert world.reasons[-1] == "SnapshotDeleteError"
    assert str(refused) in world.messages[-1]
    run_group(world)
    run_content(world)
    run_group(world)
    assert world.api.of(paths.GROUP_SNAPSHOTS, "g", "ns") is None


def test_the_default_class_of_groups():
    """SNC-011 for groups: The default class of the driver is used."""
    note = {k.ANN_DEFAULT_GROUP_CLASS: "true"}
    world = group_world(metadata={"name": "gc", "annotations": note})
    add_group(world, volumeGroupSnapshotClassName=None)
    run_group(world)
    assert group(world)["spec"]["volumeGroupSnapshotClassName"] == "gc"


def test_a_group_goes_with_its_members():
    """SNG-004: The content is deleted first, with one call, and the members after the group."""
    world = taken()
    world.api.mark_deleted(paths.GROUP_SNAPSHOTS, "g", "ns")
    run_group(world)
    assert content(world)["metadata"]["deletionTimestamp"]
    member = snapshot_key("ns", f"snapshot-{digest('ha')}")
    assert world.run_snapshot(member).reason == "its group exists"
    run_content(world)
    request = world.client.requests("DeleteVolumeGroupSnapshot")[0]
    assert (request.group_snapshot_id, list(request.snapshot_ids)) == ("gh", ["s-ha", "s-hb"])
    assert content(world) is None
    run_group(world)
    assert world.api.of(paths.GROUP_SNAPSHOTS, "g", "ns") is None
    world.run_snapshot(member)
    assert "DeleteSnapshot" not in world.client.methods
    own = Key("contents", DRIVER, f"snapcontent-{digest('ha')}")
    world.run_content(own)
    assert world.content(own.object) is None
    assert "DeleteSnapshot" not in world.client.methods


def test_a_restore_of_a_member_holds_the_group():
    """SNG-004: The group is not deleted while a claim restores from a member."""
    world = taken()
    source = {
        "apiGroup": "snapshot.storage.k8s.io",
        "kind": "VolumeSnapshot",
        "name": f"snapshot-{digest('hb')}",
    }
    metadata = {"name": "r", "namespace": "ns"}
    body = {"metadata": metadata, "spec": {"dataSource": source}, "status": {"phase": "Pending"}}
    world.api.add(paths.CLAIMS, body)
    world.api.mark_deleted(paths.GROUP_SNAPSHOTS, "g", "ns")
    assert run_group(world).action.value == "retry"
    assert world.reasons[-1] == "SnapshotDeletePending"
    assert "deletionTimestamp" not in content(world)["metadata"]


def test_a_group_content_that_the_status_does_not_name():
    """SND-023: The content is found by its computed name."""
    world = taken()
    world.api.change(paths.GROUP_SNAPSHOTS, "g", {"status": None}, "ns")
    world.api.mark_deleted(paths.GROUP_SNAPSHOTS, "g", "ns")
    run_group(world)
    assert content(world)["metadata"]["deletionTimestamp"]


def test_a_pre_provisioned_group():
    """SNG-003: GetVolumeGroupSnapshot is called; its members are the administrator's."""
    world = group_world()
    handles = {"volumeGroupSnapshotHandle": "gh", "volumeSnapshotHandles": ["m1", "m2"]}
    ref = {"name": "g", "namespace": "ns"}
    spec = {
        "driver": DRIVER,
        "deletionPolicy": "Delete",
        "source": {"groupSnapshotHandles": handles},
        "volumeGroupSnapshotRef": ref,
    }
    world.api.add(paths.GROUP_SNAPSHOT_CONTENTS, {"metadata": {"name": CONTENT}, "spec": spec})
    answer = {"group_snapshot": {"group_snapshot_id": "gh", "ready_to_use": True}}
    world.client.respond({"GetVolumeGroupSnapshot": [answer]})
    run_content(world)
    request = world.client.requests("GetVolumeGroupSnapshot")[0]
    assert (request.group_snapshot_id, list(request.snapshot_ids)) == ("gh", ["m1", "m2"])
    add_group(world, source={"volumeGroupSnapshotContentName": CONTENT})
    run_group(world)
    world.sync(CONTROLLER, group_binding_key(CONTENT))
    assert group(world)["status"]["readyToUse"] is True
    assert content(world)["metadata"]["finalizers"] == [k.FINALIZER_GROUP_CONTENT]


def test_open_and_final_errors_of_a_group():
    """SNS-021 for groups: The status has the recorded text.

    The code decides on the announcement.
    """
    world = group_world()
    answers = [{"code": "UNAVAILABLE", "message": "x"}, {"code": "INTERNAL", "message": "y"}, MADE]
    world.client.respond({"CreateVolumeGroupSnapshot": answers})
    add_group(world)
    run_group(world)
    run_content(world)
    assert k.ANN_GROUP_BEING_CREATED in content(world)["metadata"]["annotations"]
    assert error_of(content(world)).startswith(
        "Failed to create group snapshot: failed to take group snapshot of the volumes [ha hb]: "
    )
    run_content(world)
    assert k.ANN_GROUP_BEING_CREATED not in content(world)["metadata"].get("annotations", {})
    assert run_content(world).action.value == "done"


def test_a_group_content_that_was_removed_by_force():
    """The intent of the attempt is enough to clean up."""
    world = group_world()
    answers = [{"code": "DEADLINE_EXCEEDED", "message": "x"}, MADE]
    world.client.respond({"CreateVolumeGroupSnapshot": answers})
    add_group(world)
    run_group(world)
    run_content(world)
    world.api.drop(paths.GROUP_SNAPSHOT_CONTENTS, CONTENT)
    assert run_content(world).reason == "cleaned up"
    assert world.client.requests("DeleteVolumeGroupSnapshot")[0].group_snapshot_id == "gh"


def test_groups_switched_off():
    """SNG-005: Groups are not reconciled, but members are."""
    world = SnapshotWorld(groups=False)
    for controller, key in ((CONTROLLER, GROUP), (SNAPSHOTTER, CONTENT_KEY)):
        assert world.sync(controller, key).reason == "group snapshots are switched off"


def test_a_member_whose_content_is_not_there_yet():
    """SNC-041: Waiting for the content causes no event."""
    world = SnapshotWorld()
    owner = {"apiVersion": "groupsnapshot.storage.k8s.io/v1", "kind": "VolumeGroupSnapshot"}
    metadata = {"ownerReferences": [owner | {"name": "g", "uid": "gu"}]}
    world.add_snapshot(metadata=metadata, spec={"volumeSnapshotClassName": None})
    assert world.run_snapshot().action.value == "retry"
    assert world.events.seen == []
    assert "status" not in world.snapshot()


def test_group_contents_of_neither_or_both_sources():
    """SNC-073 (1) for groups: A group content must have exactly one source."""
    world = SnapshotWorld()
    spec = {"source": {}, "volumeGroupSnapshotRef": {"name": "g", "namespace": "ns"}}
    world.api.add(paths.GROUP_SNAPSHOT_CONTENTS, {"metadata": {"name": CONTENT}, "spec": spec})
    assert world.sync(CONTROLLER, group_binding_key(CONTENT)).action.value == "retry"
    assert world.reasons == ["GroupContentValidationError"]


@pytest.mark.parametrize("path", ["volumegroupsnapshots/g/status", "volumegroupsnapshots/g"])
def test_a_group_deleted_before_its_status_was_written_takes_its_content_along(path):
    """SND-042: The finalizer is added before the content is created."""
    world = group_world()
    add_group(world)
    error = ForbiddenError(403, "Forbidden", "no")
    made = lambda: world.api.fail("patch", path, error)  # noqa: E731
    world.api.before("create", "groupsnapshotcontents", made)
    run_group(world)
    assert content(world) is not None
    world.api.mark_deleted(paths.GROUP_SNAPSHOTS, "g", "ns")
    run_group(world)
    assert is_deleting(content(world))

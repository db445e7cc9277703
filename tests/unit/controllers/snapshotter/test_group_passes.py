"""Reconciles of a group content, step by step, and its status (SNG-002 to SNG-004)."""

from __future__ import annotations

from typing import Any

import pytest

from csi_client import messages as csi
from tests.support.snapshot_world import DRIVER, SnapshotWorld, error_of, finalizers, notes
from tests.unit.controllers.snapshotter.test_group_contents import (
    KEY,
    MADE,
    content,
    dynamic_world,
    group_world,
    run,
    user_deletes,
)
from workers import constants as k
from workers.controllers.snapshotter import request
from workers.errors import LeaseLost
from workers.kube import paths
from workers.kube.errors import ForbiddenError
from workers.queue.locks import Mode

HANDLES = {"volumeGroupSnapshotHandle": "gh", "volumeSnapshotHandles": ["m1", "m2"]}
GIVEN = {"groupSnapshotHandles": HANDLES}
LOCK = f"{DRIVER}#snapshot#gh"
WORDS = "Failed to check and update group snapshot content: "
SECRET = "csi.storage.k8s.io/group-snapshotter-get-secret"
READY = {"volumeGroupSnapshotHandle": "gh", "readyToUse": True}


def ready(**more: Any) -> dict[str, Any]:
    return {"group_snapshot": MADE["group_snapshot"] | {"ready_to_use": True} | more}


def refused(code: str, message: str = "no") -> dict[str, str]:
    return {"code": code, "message": message}


def get_class(world: SnapshotWorld, **parameters: str) -> None:
    metadata = {"name": "c"}
    body = {"metadata": metadata, "driver": DRIVER, "parameters": parameters}
    world.api.add(paths.GROUP_SNAPSHOT_CLASSES, body)


def test_each_effect_of_a_group_is_announced():
    """SNQ-011, SNQ-007: The steps have this order, from creation to deletion."""
    world = dynamic_world(ready())
    assert run(world).reason == "ready"
    assert world.steps.reached == [
        *("record-intent", "mark-created", "create-snapshot", "record-intent"),
        *("write-status", "record-intent", "unmark-created"),
    ]
    world.steps.reached.clear()
    assert run(world).reason == "ready"
    assert world.steps.reached == ["drop-copy"], "there is nothing else left to do"
    world.steps.reached.clear()
    user_deletes(world)
    assert run(world).reason == "released"
    assert world.steps.reached == ["delete-snapshot", "clear-status", "remove-finalizer"]


def test_a_groups_status_that_is_not_cleared_is_reported():
    """SNS-042: As with a single snapshot, an event reports the failed write."""
    world = dynamic_world(ready())
    run(world)
    user_deletes(world)
    world.events.seen.clear()
    world.api.fail("patch", "/status", ForbiddenError(403, "Forbidden", "no"))
    assert run(world).reason == "status not cleared"
    assert (world.reasons, world.messages) == (
        ["GroupSnapshotDeleteError"],
        ["Failed to clear content status"],
    )
    assert run(world).reason == "released"


@pytest.mark.parametrize("effect", ["create-snapshot", "delete-snapshot"])
def test_no_call_for_a_group_without_the_lease(effect):
    """SNQ-007: A worker that has lost its lease makes no call."""
    world = dynamic_world(ready())
    if effect == "delete-snapshot":
        run(world)
        user_deletes(world)
    before = len(world.client.calls)

    def reach(step: str, lease: Any) -> None:
        lease.is_lost = step == effect
        lease.check()

    world.steps.reach = reach  # type: ignore[method-assign]
    with pytest.raises(LeaseLost):
        run(world)
    assert len(world.client.calls) == before


def test_a_group_that_is_not_ready_keeps_what_was_told_first():
    """SNS-025: Handle, time and members stay; each poll writes only new facts."""
    first = {"creation_time": "2026-01-02T03:04:05.000000006Z"}
    later = {
        "creation_time": "2026-05-05T00:00:00Z",
        "snapshots": [{"snapshot_id": "x", "source_volume_id": "a"}],
    }
    world = dynamic_world(
        {"group_snapshot": MADE["group_snapshot"] | first},
        {"group_snapshot": MADE["group_snapshot"] | later},
    )
    waits = [run(world).delay_seconds]
    told = content(world)
    assert told["status"]["creationTime"] == "2026-01-02T03:04:05Z"
    waits += [run(world).delay_seconds for _ in range(2)]
    assert waits == [1.0, 1.5, 2.25]
    assert content(world) == told, "no write for each look"


def test_the_error_of_a_group_goes_with_the_next_success():
    """SND-014: An earlier answer stays in the status while a call fails."""
    world = dynamic_world(MADE, refused("INTERNAL", "upload failed"), MADE, ready())
    run(world)
    assert run(world).action.value == "retry"
    assert "upload failed" in error_of(content(world))
    assert content(world)["status"]["volumeGroupSnapshotHandle"] == "gh"
    assert run(world).action.value == "wait"
    assert error_of(content(world)) == ""
    assert run(world).reason == "ready"
    assert content(world)["status"]["readyToUse"] is True


def test_a_group_without_members_lists_none():
    """A pre-provisioned group's members are the administrator's, whatever the driver answers."""
    world = dynamic_world({"group_snapshot": {"group_snapshot_id": "gh", "ready_to_use": True}})
    run(world)
    assert "volumeSnapshotInfoList" not in content(world)["status"]
    given = group_world(GIVEN)
    given.client.respond({"GetVolumeGroupSnapshot": [ready()]})
    assert run(given).reason == "ready"
    assert set(content(given)["status"]) == {
        *("volumeGroupSnapshotHandle", "creationTime", "readyToUse"),
    }
    assert given.steps.reached == ["write-status"]


def test_a_ready_group_loses_a_forgotten_announcement():
    """SNS-010 row 4: The annotation that announces a call is removed."""
    world = group_world({"volumeHandles": ["a"]}, status=READY)
    note = {"metadata": {"annotations": {k.ANN_GROUP_BEING_CREATED: "yes"}}}
    world.api.change(paths.GROUP_SNAPSHOT_CONTENTS, "gc", note)
    assert run(world).reason == "ready"
    assert notes(content(world)) == {}


def test_the_names_of_a_group_in_its_parameters():
    """SNA-022: With --extra-create-metadata, the parameters name the group's objects."""
    body = {"metadata": {"name": "gc"}}
    body["spec"] = {"volumeGroupSnapshotRef": {"name": "g", "namespace": "ns"}}
    given = {"tier": "cold", f"{SECRET}-name": "x"}
    assert request.group_parameters(given, body, tells=False) == {"tier": "cold"}
    assert request.group_parameters(given, body, tells=True) == {
        "tier": "cold",
        "csi.storage.k8s.io/volumegroupsnapshot/name": "g",
        "csi.storage.k8s.io/volumegroupsnapshot/namespace": "ns",
        "csi.storage.k8s.io/volumegroupsnapshotcontent/name": "gc",
    }


@pytest.mark.parametrize(
    ("stamp", "expected"),
    [
        ({"seconds": 5, "nanos": 6}, 5 * 10**9 + 6),
        ({"nanos": 6}, 6),
        ({"seconds": 5}, 5 * 10**9),
        ({}, 7 * 10**9),
    ],
)
def test_when_it_was_cut(stamp, expected):
    """SND-005: The time has nanoseconds; without a time, or with 1970 itself, it is now."""
    assert request.created_nanoseconds(csi.Snapshot(creation_time=stamp), 7.0) == expected


@pytest.mark.parametrize("seconds", [1_700_000_000_000, 2**62])
def test_a_time_that_is_no_date_is_now(seconds):
    """SND-005: A driver may send milliseconds as seconds; the group exists anyway."""
    answer = csi.CreateVolumeGroupSnapshotResponse(**ready(creation_time={"seconds": seconds}))
    world = dynamic_world(lambda _request: answer)
    assert run(world).reason == "ready"
    status = content(world)["status"]
    assert status["volumeGroupSnapshotHandle"] == "gh"
    assert status["creationTime"].startswith("20")


# Pre-provisioned groups.


@pytest.mark.parametrize(
    ("code", "words"),
    [("NOT_FOUND", "code = NotFound desc = no"), ("UNAVAILABLE", "code = Unavailable desc = no")],
)
def test_a_given_group_that_the_driver_does_not_tell(code, words):
    """SNG-003: The status has the driver's error text."""
    world = group_world(GIVEN)
    world.client.respond({"GetVolumeGroupSnapshot": [refused(code)]})
    assert run(world).action.value == "retry"
    cause = f'failed to list group snapshot for group snapshot content gc: "rpc error: {words}"'
    assert error_of(content(world)) == WORDS + cause
    assert world.reasons == ["GroupSnapshotContentCheckandUpdateFailed"]


def test_a_given_group_that_names_no_members():
    """SNG-003: The driver is not called for a group without snapshots."""
    world = group_world({"groupSnapshotHandles": {"volumeGroupSnapshotHandle": "gh"}})
    assert run(world).action.value == "retry"
    assert error_of(content(world)) == (
        f"{WORDS}cannot list group snapshot gc. No snapshots found in the group snapshot content"
    )
    assert world.client.methods == []


def test_a_group_with_both_sources_is_made_first():
    """SNS-010 row 3: As with single contents, the handles count only once there is a status."""
    spec = {"volumeGroupSnapshotClassName": "c"}
    world = group_world(GIVEN | {"volumeHandles": ["a"]}, spec=spec)
    get_class(world)
    world.client.respond({"CreateVolumeGroupSnapshot": [MADE], "GetVolumeGroupSnapshot": [ready()]})
    assert run(world).reason == "not ready"
    assert run(world).reason == "ready"
    assert world.client.methods == ["CreateVolumeGroupSnapshot", "GetVolumeGroupSnapshot"]


def test_a_given_group_whose_class_does_not_exist():
    """SNG-003: Without the class its secret is unknown."""
    world = group_world(GIVEN, spec={"volumeGroupSnapshotClassName": "none"})
    assert run(world).action.value == "retry"
    assert error_of(content(world)) == (
        f"{WORDS}failed to get group snapshot class none for group snapshot content gc: "
        'volumegroupsnapshotclass.groupsnapshot.storage.k8s.io "none" not found'
    )
    assert world.client.methods == []


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({f"{SECRET}-name": "s"}, "failed to get secret reference for group snapshot content gc: "),
        ({}, ""),
        ({f"{SECRET}-name": "s", f"{SECRET}-namespace": "ns"}, ""),
    ],
)
def test_the_secret_of_a_given_group(parameters, words):
    """SNG-003, SNA-023: The class names no secret or a whole one; half of a name is an error."""
    world = group_world(GIVEN, spec={"volumeGroupSnapshotClassName": "c"})
    get_class(world, **parameters)
    metadata = {"name": "s", "namespace": "ns"}
    world.api.add(paths.SECRETS, {"metadata": metadata, "data": {"a": "Yg=="}})
    world.client.respond({"GetVolumeGroupSnapshot": [ready()]})
    assert run(world).action.value == ("retry" if words else "done")
    assert error_of(content(world)).startswith(WORDS + words if words else "")
    for one in world.client.requests("GetVolumeGroupSnapshot"):
        assert dict(one.secrets) == ({"a": "b"} if parameters else {})
        assert (one.group_snapshot_id, list(one.snapshot_ids)) == ("gh", ["m1", "m2"])


@pytest.mark.parametrize("going", [False, True])
def test_another_content_of_the_same_group_is_waited_for(going):
    """SNQ-003: Only one call per group in the storage runs at a time."""
    world = group_world(GIVEN)
    if going:
        user_deletes(world)
    world.queue.busy[LOCK] = Mode.EXCLUSIVE
    outcome = run(world)
    assert (outcome.action.value, outcome.lock.name) == ("blocked", LOCK)
    assert world.client.methods == []


# Deletion.


def test_a_given_group_goes_with_the_members_it_names():
    """SNG-004, SND-021: The status lists no other members."""
    world = group_world(GIVEN)
    user_deletes(world)
    assert run(world).reason == "released"
    (asked,) = world.client.requests("DeleteVolumeGroupSnapshot")
    assert (asked.group_snapshot_id, list(asked.snapshot_ids)) == ("gh", ["m1", "m2"])
    assert content(world) is None


def test_a_group_whose_members_nobody_knows_can_be_deleted():
    """BUG-2: The driver is called, and reports itself whether it needs the members."""
    world = group_world({"volumeHandles": ["a"]}, status=READY)
    world.client.respond({"DeleteVolumeGroupSnapshot": [refused("INVALID_ARGUMENT"), {}]})
    user_deletes(world)
    assert run(world).action.value == "retry"
    assert world.messages[0].startswith("Failed to delete group snapshot: ")
    run(world)
    assert content(world) is None


def test_a_group_content_that_others_hold_says_no_longer_that_it_is_there():
    """SNS-040: The status is cleared and csi-fleet's finalizer is removed."""
    world = dynamic_world(ready())
    run(world)
    held = {"metadata": {"finalizers": [k.FINALIZER_GROUP_CONTENT, "example.org/other"]}}
    world.api.change(paths.GROUP_SNAPSHOT_CONTENTS, "gc", held)
    user_deletes(world)
    assert run(world).reason == "released"
    assert finalizers(content(world)) == ["other"]
    assert set(content(world)["status"]) == {"volumeSnapshotInfoList"}


def test_a_group_that_cannot_be_deleted_is_told():
    """SNS-041, SND-013: An event reports it, also if the credentials cannot be read (SND-012)."""
    world = dynamic_world(ready())
    run(world)
    user_deletes(world)
    world.client.respond({"DeleteVolumeGroupSnapshot": [refused("FAILED_PRECONDITION"), {}]})
    assert run(world).reason == "FailedPrecondition"
    words = "Failed to delete group snapshot: rpc error: code = FailedPrecondition desc = no"
    assert (world.reasons, error_of(content(world))) == (["GroupSnapshotDeleteError"], words)
    half = {k.ANN_GROUP_SECRET_NAME: "", k.ANN_GROUP_SECRET_NAMESPACE: "ns"}
    change = {"metadata": {"annotations": half}}
    world.api.change(paths.GROUP_SNAPSHOT_CONTENTS, "gc", change)
    assert run(world).reason == "no credentials"
    assert world.messages[-1].startswith("Failed to get snapshot credentials: cannot retrieve")
    assert len(world.client.requests("DeleteVolumeGroupSnapshot")) == 1


def test_a_group_of_another_driver_is_left_alone():
    """SNS-003: The class names another driver."""
    world = group_world({"volumeHandles": ["a"]}, spec={"volumeGroupSnapshotClassName": "c"})
    body = {"metadata": {"name": "c"}, "driver": "other.test"}
    world.api.add(paths.GROUP_SNAPSHOT_CLASSES, body)
    assert run(world).reason == "not ours"
    assert (world.client.methods, world.queue.marks.get(KEY.text)) == ([], None)

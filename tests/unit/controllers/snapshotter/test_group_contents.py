"""The sidecar's half of group snapshots, where it differs from single ones (SNG-003, SNG-004)."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.snapshot_world import DRIVER, SnapshotWorld, error_of
from workers import constants as k
from workers.controllers.snapshotter.controller import CONTROLLER
from workers.controllers.snapshotter.rules import KIND_GROUP_CONTENTS
from workers.kube import paths
from workers.queue.keys import Key

KEY = Key(KIND_GROUP_CONTENTS, DRIVER, "gc")
HANDLES = {"volumeGroupSnapshotHandle": "gh", "volumeSnapshotHandles": ["m1"]}
GIVEN = {"groupSnapshotHandles": HANDLES}
SECRET = "csi.storage.k8s.io/group-snapshotter-get-secret"


def group_world(source: dict[str, Any], **changes: Any) -> SnapshotWorld:
    """Return a world with a bound group content; `changes` may have its status."""
    world = SnapshotWorld()
    spec = {
        "driver": DRIVER,
        "deletionPolicy": "Delete",
        "source": source,
        "volumeGroupSnapshotRef": {"name": "g", "namespace": "ns", "uid": "gu"},
        **changes.pop("spec", {}),
    }
    metadata = {"name": "gc", "finalizers": [k.FINALIZER_GROUP_CONTENT]}
    body = {"metadata": metadata, "spec": spec, **changes}
    world.api.add(paths.GROUP_SNAPSHOT_CONTENTS, body)
    return world


def content(world: SnapshotWorld) -> Any:
    return world.api.of(paths.GROUP_SNAPSHOT_CONTENTS, "gc")


def run(world: SnapshotWorld) -> Any:
    return world.sync(CONTROLLER, KEY)


def test_a_given_group_that_is_not_ready_is_polled():
    """SND-001: Polls have growing delays; once the group is ready no state is left."""
    world = group_world(GIVEN)
    answer = {"group_snapshot_id": "gh"}
    world.client.respond({"GetVolumeGroupSnapshot": [{"group_snapshot": answer}]})
    assert [run(world).delay_seconds for _ in range(3)] == [1.0, 1.5, 2.25]
    ready = {"group_snapshot": answer | {"ready_to_use": True}}
    world.client.respond({"GetVolumeGroupSnapshot": [ready]})
    assert run(world).action.value == "done"
    assert content(world)["status"]["readyToUse"] is True
    assert world.queue.marks == {}


def test_a_secret_for_a_given_group_that_does_not_exist():
    """SNG-003: The error names the secret, and the driver is not called without it."""
    world = group_world(GIVEN, spec={"volumeGroupSnapshotClassName": "c"})
    parameters = {f"{SECRET}-name": "none", f"{SECRET}-namespace": "ns"}
    body = {"metadata": {"name": "c"}, "driver": DRIVER, "deletionPolicy": "Delete"}
    world.api.add(paths.GROUP_SNAPSHOT_CLASSES, body | {"parameters": parameters})
    assert run(world).action.value == "retry"
    assert error_of(content(world)) == (
        "Failed to check and update group snapshot content: failed to get credentials for group "
        "snapshot content gc: error getting secret none in namespace ns: "
        'secrets "none" not found'
    )
    assert world.client.methods == []


def test_a_group_content_deleted_by_hand_keeps_its_snapshots():
    """SNS-011: The group exists, so nothing happens until its controller deletes the content."""
    status = {
        "volumeGroupSnapshotHandle": "gh",
        "readyToUse": True,
        "volumeSnapshotInfoList": [{"volumeHandle": "a", "snapshotHandle": "s"}],
    }
    world = group_world({"volumeHandles": ["a"]}, status=status)
    world.api.mark_deleted(paths.GROUP_SNAPSHOT_CONTENTS, "gc")
    assert run(world).action.value == "done"
    assert world.client.methods == []
    assert content(world) is not None
    note = {"metadata": {"annotations": {k.ANN_GROUP_BEING_DELETED: "yes"}}}
    world.api.change(paths.GROUP_SNAPSHOT_CONTENTS, "gc", note)
    run(world)
    assert world.client.methods == ["DeleteVolumeGroupSnapshot"]
    assert content(world) is None


MADE = {
    "group_snapshot": {
        "group_snapshot_id": "gh",
        "snapshots": [{"snapshot_id": "s", "source_volume_id": "a", "ready_to_use": True}],
    }
}
NO, NO_ANSWER = {"code": "INTERNAL", "message": "no"}, {"code": "UNAVAILABLE", "message": "x"}


def dynamic_world(*answers: Any, policy: str = "Delete") -> SnapshotWorld:
    """Return a world with a group content, its class and the driver's answers."""
    spec = {"volumeGroupSnapshotClassName": "c", "deletionPolicy": policy}
    world = group_world({"volumeHandles": ["a"]}, spec=spec)
    body = {"metadata": {"name": "c"}, "driver": DRIVER, "deletionPolicy": policy}
    world.api.add(paths.GROUP_SNAPSHOT_CLASSES, body)
    world.client.respond({"CreateVolumeGroupSnapshot": list(answers)})
    return world


@pytest.mark.parametrize(
    ("told", "written"),
    [
        pytest.param({}, {}, id="what is not known is left out"),
        pytest.param(
            {"creation_time": "2026-01-02T03:04:05.000000006Z"},
            {"creationTime": 1767323045 * 10**9 + 6},
            id="time, in nanoseconds",
        ),
        pytest.param(
            {"creation_time": "1970-01-01T00:00:00.000000006Z"}, {"creationTime": 6}, id="early"
        ),
        pytest.param({"size_bytes": 7}, {"restoreSize": 7}, id="size"),
    ],
)
def test_members_are_listed_as_the_driver_tells_them(told, written):
    """SNG-001, SNG-002: The members' own contents are built from this list."""
    (member,) = MADE["group_snapshot"]["snapshots"]
    world = dynamic_world(
        {"group_snapshot": {"group_snapshot_id": "gh", "snapshots": [member | told]}}
    )
    run(world)
    known = {"volumeHandle": "a", "snapshotHandle": "s", "readyToUse": True}
    assert content(world)["status"]["volumeSnapshotInfoList"] == [known | written]


def drop(world: SnapshotWorld) -> None:
    world.api.drop(paths.GROUP_SNAPSHOT_CONTENTS, "gc")


@pytest.mark.parametrize("is_recorded", [True, False])
@pytest.mark.parametrize("is_announced", [True, False])
def test_a_group_deleted_by_hand_is_asked_for_again_if_a_call_may_be_open(
    is_announced, is_recorded
):
    """SND-034: The intent or the announcement shows an open call; otherwise no call is made."""
    world = dynamic_world(NO_ANSWER, MADE)
    run(world)
    if not is_announced:
        note = {"metadata": {"annotations": {k.ANN_GROUP_BEING_CREATED: None}}}
        world.api.change(paths.GROUP_SNAPSHOT_CONTENTS, "gc", note)
    if not is_recorded:
        world.queue.marks.clear()
    world.api.mark_deleted(paths.GROUP_SNAPSHOT_CONTENTS, "gc")
    run(world)
    may_be_open = is_announced or is_recorded
    assert world.client.methods == ["CreateVolumeGroupSnapshot"] * (2 if may_be_open else 1)


@pytest.mark.parametrize("is_reported", [True, False])
def test_only_a_group_that_was_not_reported_goes_with_a_content_removed_by_force(is_reported):
    """The content is removed by force while the driver works."""
    ready = {"group_snapshot": MADE["group_snapshot"] | {"ready_to_use": True}}
    world = dynamic_world(*[MADE] * is_reported, ready)
    if is_reported:
        run(world)
    world.api.before("patch", "gc/status", lambda: drop(world))
    run(world)
    run(world)
    assert content(world) is None
    assert ("DeleteVolumeGroupSnapshot" in world.client.methods) is not is_reported
    assert world.queue.marks == {}


def user_deletes(world: SnapshotWorld) -> None:
    note = {"metadata": {"annotations": {k.ANN_GROUP_BEING_DELETED: "yes"}}}
    world.api.change(paths.GROUP_SNAPSHOT_CONTENTS, "gc", note)
    world.api.mark_deleted(paths.GROUP_SNAPSHOT_CONTENTS, "gc")


def test_no_last_call_for_a_group_that_another_program_reported():
    """The Go sidecar was active between the failed call and the deletion."""
    world = dynamic_world(NO, MADE, policy="Retain")
    run(world)
    status = {"status": {"volumeGroupSnapshotHandle": "gh"}}
    world.api.change(paths.GROUP_SNAPSHOT_CONTENTS, "gc", status)
    user_deletes(world)
    run(world)
    assert content(world) is None
    assert world.client.methods == ["CreateVolumeGroupSnapshot"]
    assert world.queue.marks == {}


@pytest.mark.parametrize("policy", ["Delete", "Retain"])
@pytest.mark.parametrize(
    ("answers", "is_there"), [([MADE], True), ([NO], False), ([NO_ANSWER, MADE], True)]
)
def test_a_last_call_before_a_group_content_goes(answers, is_there, policy):
    """As with a single snapshot, the group was never reported, so it is deleted."""
    world = dynamic_world(NO, *answers, policy=policy)
    run(world)
    user_deletes(world)
    outcomes = [run(world).action.value for _ in answers]
    assert outcomes[-1] == "wait"
    run(world)
    assert content(world) is None
    deleted = [list(one.snapshot_ids) for one in world.client.requests("DeleteVolumeGroupSnapshot")]
    assert deleted == [["s"]] * is_there
    assert "volumeGroupSnapshotHandle" not in str(world.api.writes)
    assert world.queue.marks == {}

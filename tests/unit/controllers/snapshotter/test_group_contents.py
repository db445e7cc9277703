"""The sidecar's half of a group snapshot: what is not as for single ones (SNG-003, SNG-004)."""

from __future__ import annotations

from typing import Any

from tests.support.snapshot_world import DRIVER, SnapshotWorld, error_of
from workers import constants as k
from workers.controllers.snapshotter.controller import CONTROLLER
from workers.controllers.snapshotter.rules import KIND_GROUP_CONTENTS
from workers.kube import paths
from workers.queue.keys import Key

KEY = Key(KIND_GROUP_CONTENTS, DRIVER, "gc")
GIVEN = {"groupSnapshotHandles": {"volumeGroupSnapshotHandle": "gh", "volumeSnapshotHandles": []}}
SECRET = "csi.storage.k8s.io/group-snapshotter-get-secret"


def group_world(source: dict[str, Any], **changes: Any) -> SnapshotWorld:
    """A bound group content; `status` may be given."""
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
    """SND-001: at growing times; once it is ready nothing of that is remembered."""
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
    """SNG-003: the user is told which; the driver is not asked without it."""
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
    """SNS-011: its group lives, so nothing is done until that side wants it."""
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

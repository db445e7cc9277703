"""How a reconcile handles an unusable answer, and what the next reconciles do."""

from __future__ import annotations

import pytest

from csi_client import messages as csi
from tests.support.snapshot_world import (
    ANN_CREATED,
    CUT,
    SnapshotWorld,
    content_body,
    error_of,
    notes,
)
from tests.unit.controllers.snapshotter.test_group_contents import (
    MADE,
    content,
    dynamic_world,
    run,
    user_deletes,
)
from workers import constants as k
from workers.kube import paths

NAMELESS = {
    "empty": {"snapshot": {"snapshot_id": "", "ready_to_use": True}},
    "absent": {"snapshot": {"ready_to_use": True, "size_bytes": 5}},
    "no snapshot": {},
    "blank": {"snapshot": {"snapshot_id": "  ", "ready_to_use": True}},
}


def deletes(world: SnapshotWorld) -> None:
    """Delete the snapshot as a user; its controller requests the content's deletion."""
    note = {"metadata": {"annotations": {k.ANN_BEING_DELETED: "yes"}}}
    world.api.change(paths.SNAPSHOT_CONTENTS, "snapcontent-u1", note)
    world.api.mark_deleted(paths.SNAPSHOT_CONTENTS, "snapcontent-u1")


@pytest.mark.parametrize("answer", NAMELESS.values(), ids=NAMELESS)
def test_a_snapshot_without_an_id_is_not_ready_and_is_found_again(answer):
    """BUG-2: The status states the error; a second call finds the snapshot for its deletion."""
    world = SnapshotWorld()
    world.add_content()
    world.client.respond({"CreateSnapshot": [answer, CUT]})
    assert world.run_content().action.value == "retry"
    status = world.content()["status"]
    assert (status.get("readyToUse"), status.get("snapshotHandle")) in {(None, None), (False, None)}
    assert "snapshot" in error_of(world.content())
    assert ANN_CREATED in notes(world.content())
    assert world.run_content().action.value == "done"
    assert world.content()["status"]["snapshotHandle"] == "sh"
    deletes(world)
    world.run_content()
    assert [one.snapshot_id for one in world.client.requests("DeleteSnapshot")] == ["sh"]
    assert world.content() is None


def cut(handle, *, is_ready):
    return {"snapshot": {"snapshot_id": handle, "size_bytes": 1024, "ready_to_use": is_ready}}


def test_an_answer_with_another_id_says_nothing_about_the_snapshot():
    """The status names a snapshot that isn't ready; another snapshot's readiness doesn't count."""
    world = SnapshotWorld()
    world.add_content()
    answers = [cut("sh", is_ready=False), cut("other", is_ready=True), cut("sh", is_ready=True)]
    world.client.respond({"CreateSnapshot": answers})
    world.run_content()
    assert world.run_content().action.value == "retry"
    status = world.content()["status"]
    assert (status["snapshotHandle"], status["readyToUse"]) == ("sh", False)
    assert "answered with other, but with sh before" in error_of(world.content())
    assert world.run_content().reason == "ready"
    assert error_of(world.content()) == ""
    assert world.content()["status"]["readyToUse"] is True


OTHER_GROUP = MADE["group_snapshot"] | {"group_snapshot_id": "other"}
OTHER_MEMBER = MADE["group_snapshot"] | {
    "snapshots": [{"snapshot_id": "t", "source_volume_id": "a", "ready_to_use": True}]
}


@pytest.mark.parametrize(
    ("other", "told"),
    [
        pytest.param(OTHER_GROUP, "answered with other, s, but with gh before", id="group"),
        pytest.param(OTHER_MEMBER, "answered with gh, t, but with s before", id="member"),
    ],
)
def test_an_answer_with_another_id_says_nothing_about_the_group(other, told):
    ready = {"group_snapshot": MADE["group_snapshot"] | {"ready_to_use": True}}
    world = dynamic_world(MADE, {"group_snapshot": other | {"ready_to_use": True}}, ready)
    run(world)
    assert run(world).action.value == "retry"
    assert content(world)["status"]["readyToUse"] is False
    assert told in error_of(content(world))
    assert run(world).action.value == "done"
    assert content(world)["status"]["readyToUse"] is True


def test_a_snapshot_without_an_id_does_not_go_before_it_is_named():
    """BUG-2: If it is deleted meanwhile, another call gets the ID and the snapshot is deleted."""
    world = SnapshotWorld()
    world.add_content()
    world.client.respond({"CreateSnapshot": [NAMELESS["empty"], CUT]})
    world.run_content()
    deletes(world)
    for _ in range(3):
        world.run_content()
    assert [one.snapshot_id for one in world.client.requests("DeleteSnapshot")] == ["sh"]
    assert world.content() is None


@pytest.mark.parametrize("handle", ["", None])
def test_a_nameless_snapshot_of_an_earlier_release_is_asked_for(handle):
    """BUG-2: Its status is ready without a handle; csi-snapshotter leaves such contents too."""
    world = SnapshotWorld()
    status = {"readyToUse": True, "creationTime": 5, "snapshotHandle": handle}
    kept = {name: value for name, value in status.items() if value is not None}
    world.api.add(paths.SNAPSHOT_CONTENTS, content_body(status=kept))
    world.client.respond({"CreateSnapshot": [CUT]})
    world.run_content()
    assert world.content()["status"]["snapshotHandle"] == "sh"


def test_a_nameless_snapshot_of_an_earlier_release_is_deleted():
    world = SnapshotWorld()
    status = {"readyToUse": True, "creationTime": 5, "snapshotHandle": ""}
    world.api.add(paths.SNAPSHOT_CONTENTS, content_body(status=status))
    world.client.respond({"CreateSnapshot": [CUT]})
    deletes(world)
    for _ in range(3):
        world.run_content()
    assert [one.snapshot_id for one in world.client.requests("DeleteSnapshot")] == ["sh"]
    assert world.content() is None


def test_an_id_that_cannot_be_stored_is_deleted_with_its_object():
    """DeleteSnapshot gets exactly the ID that the driver answered."""
    world = SnapshotWorld()
    world.add_content()
    bad = {"snapshot": {"snapshot_id": "s\x07", "ready_to_use": True}}
    world.client.respond({"CreateSnapshot": [bad]})
    world.run_content()
    deletes(world)
    for _ in range(3):
        world.run_content()
    assert [one.snapshot_id for one in world.client.requests("DeleteSnapshot")] == ["s\x07"]
    assert world.content() is None


@pytest.mark.parametrize("seconds", [-62135596800, 1_767_323_045_000, 2**62, -(2**62)], ids=str)
def test_a_snapshot_with_a_time_that_cannot_be_stored_is_ready(seconds):
    """BUG-1: The status gets the present time as an int64 of nanoseconds."""
    world = SnapshotWorld()
    world.add_content()
    answer = csi.CreateSnapshotResponse(
        snapshot=csi.Snapshot(snapshot_id="sh", ready_to_use=True, size_bytes=-7)
    )
    answer.snapshot.creation_time.seconds = seconds
    world.client.respond({"CreateSnapshot": [lambda _: answer]})
    assert world.run_content().action.value == "done"
    status = world.content()["status"]
    assert status["readyToUse"] is True
    assert 0 < status["creationTime"] < 2**63
    assert "restoreSize" not in status


def group(*members: dict, **more: object) -> dict:
    return {"group_snapshot": {"group_snapshot_id": "gh", "snapshots": list(members)} | more}


BAD_GROUPS = {
    "a member without an id": group({"source_volume_id": "a"}),
    "a member without a volume": group({"snapshot_id": "s"}),
    "a member of another volume": group({"snapshot_id": "s", "source_volume_id": "z"}),
    "a volume twice": group(
        {"snapshot_id": "s", "source_volume_id": "a"},
        {"snapshot_id": "t", "source_volume_id": "a"},
    ),
    "ready without members": group(ready_to_use=True),
}


@pytest.mark.parametrize("answer", BAD_GROUPS.values(), ids=BAD_GROUPS)
def test_a_group_that_cannot_be_believed_is_not_stored_and_is_deleted(answer):
    """BUG-2: Its answer is not stored; deleting the object deletes what the driver made."""
    world = dynamic_world(answer)
    assert run(world).action.value == "retry"
    assert "volumeGroupSnapshotHandle" not in (content(world).get("status") or {})
    assert "group_snapshot" in error_of(content(world))
    user_deletes(world)
    for _ in range(3):
        run(world)
    assert {
        one.group_snapshot_id for one in world.client.requests("DeleteVolumeGroupSnapshot")
    } == {"gh"}
    assert content(world) is None


@pytest.mark.parametrize("answer", BAD_GROUPS.values(), ids=BAD_GROUPS)
def test_a_group_whose_driver_was_repaired_is_found_again(answer):
    world = dynamic_world(answer, MADE)
    run(world)
    run(world)
    assert content(world)["status"]["volumeGroupSnapshotHandle"] == "gh"

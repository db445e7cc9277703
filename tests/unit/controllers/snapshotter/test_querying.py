"""Queries for a pre-provisioned snapshot or a member, and deletion (SNS-030 to SNS-042)."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.snapshot_world import (
    ANN_DELETED,
    CONTENT,
    CONTENT_KEY,
    DRIVER,
    SnapshotWorld,
    error_of,
)
from workers import constants as k
from workers.kube import paths
from workers.queue.locks import Mode

WORDS = "Failed to check and update snapshot content: "
SECRET = {k.ANN_SNAPSHOT_SECRET_NAME: "creds", k.ANN_SNAPSHOT_SECRET_NAMESPACE: "ns"}
LIST_SECRET = "csi.storage.k8s.io/snapshotter-list-secret"
MEMBER = {"snapshotHandle": "sm", "volumeGroupSnapshotHandle": "gh", "readyToUse": False}


def answer(**more: Any) -> dict[str, Any]:
    return {"snapshot": {"snapshot_id": "sx", "ready_to_use": True} | more}


def add_secret(world: SnapshotWorld, name: str, value: str) -> None:
    metadata = {"name": name, "namespace": "ns"}
    world.api.add(paths.SECRETS, {"metadata": metadata, "data": {"a": value}})


@pytest.mark.parametrize(
    ("capabilities", "code", "words"),
    [
        (["GET_SNAPSHOT"], "NOT_FOUND", "can not find snapshot for snapshotID sx"),
        (["GET_SNAPSHOT"], "UNAVAILABLE", "rpc error: code = Unavailable desc = no"),
        (["LIST_SNAPSHOTS"], "NOT_FOUND", "rpc error: code = NotFound desc = no"),
        (["LIST_SNAPSHOTS"], "INTERNAL", "rpc error: code = Internal desc = no"),
    ],
)
def test_what_the_user_is_told_of_a_query(capabilities, code, words):
    """SNS-031, SND-035: Only GetSnapshot's NOT_FOUND is about the snapshot."""
    world = SnapshotWorld(*capabilities)
    world.add_given()
    refused = {"code": code, "message": "no"}
    world.client.respond({"GetSnapshot": [refused], "ListSnapshots": [refused]})
    assert world.run_content().reason == "not known"
    cause = f'failed to list snapshot for content {CONTENT}: "{words}"'
    assert error_of(world.content()) == WORDS + cause


def test_a_given_content_whose_class_does_not_exist():
    """SNS-030: Without the class the list secret is unknown; a content without a class has none."""
    world = SnapshotWorld("GET_SNAPSHOT")
    world.add_given(spec={"volumeSnapshotClassName": "none"})
    assert world.run_content().reason == "not known"
    assert error_of(world.content()) == (
        f"{WORDS}failed to get snapshot class none for snapshot content {CONTENT}: "
        'volumesnapshotclass.snapshot.storage.k8s.io "none" not found'
    )
    assert world.client.methods == []
    world.add_given(spec={"volumeSnapshotClassName": None})
    world.client.respond({"GetSnapshot": [answer()]})
    assert world.run_content().reason == "ready"
    assert dict(world.client.requests("GetSnapshot")[0].secrets) == {}


@pytest.mark.parametrize("notes", [SECRET, {}])
def test_a_member_is_asked_for_with_its_own_handle_and_secret(notes):
    """SNS-030, SNG-003: The class's list secret is not used for a member."""
    world = SnapshotWorld("GET_SNAPSHOT")
    parameters = {f"{LIST_SECRET}-name": "listing", f"{LIST_SECRET}-namespace": "ns"}
    world.add_class(parameters=parameters)
    add_secret(world, "creds", "Yg==")
    add_secret(world, "listing", "Yw==")
    annotations = {k.ANN_GROUP_HANDLE: "gh"} | notes
    world.add_content(metadata={"annotations": annotations}, status=dict(MEMBER))
    world.client.respond({"GetSnapshot": [answer(snapshot_id="sm", group_snapshot_id="gh")]})
    assert world.run_content().reason == "ready"
    (asked,) = world.client.requests("GetSnapshot")
    assert (asked.snapshot_id, dict(asked.secrets)) == ("sm", {"a": "b"} if notes else {})
    status = world.content()["status"]
    assert (status["snapshotHandle"], status["readyToUse"]) == ("sm", True)


def test_half_of_a_members_secret_is_an_error():
    """SNA-024: One of the two annotations is not enough."""
    world = SnapshotWorld("GET_SNAPSHOT")
    annotations = {k.ANN_GROUP_HANDLE: "gh"} | SECRET | {k.ANN_SNAPSHOT_SECRET_NAME: ""}
    world.add_content(metadata={"annotations": annotations}, status=dict(MEMBER))
    assert world.run_content().reason == "not known"
    assert error_of(world.content()).startswith(
        f"{WORDS}failed to get credentials from annotation for snapshot content {CONTENT}: "
    )
    assert world.client.methods == []


def test_a_members_secret_that_does_not_exist():
    """SNA-024: As at its creation, the error names only the content."""
    world = SnapshotWorld("LIST_SNAPSHOTS")
    annotations = {k.ANN_GROUP_HANDLE: "gh"} | SECRET
    world.add_content(metadata={"annotations": annotations}, status=dict(MEMBER))
    assert world.run_content().reason == "not known"
    assert error_of(world.content()) == (
        f"{WORDS}failed to get credentials from annotation for snapshot content {CONTENT}: "
        f'cannot get credentials for snapshot content "{CONTENT}"'
    )
    assert world.client.methods == []


def test_nothing_is_remembered_of_a_given_snapshot_that_is_ready():
    """SND-001: The number of polls is dropped too."""
    world = SnapshotWorld("GET_SNAPSHOT")
    world.add_given()
    world.client.respond({"GetSnapshot": [answer(ready_to_use=False), answer(size_bytes=7)]})
    assert world.run_content().reason == "not ready"
    assert world.queue.marks[CONTENT_KEY.text] == {"polls": 1}
    assert world.run_content().reason == "ready"
    assert world.queue.marks == {}
    assert world.content()["status"]["restoreSize"] == 7
    assert world.steps.reached == ["write-status", "record-intent", "write-status", "record-intent"]
    world.steps.reached.clear()
    assert world.run_content().reason == "ready"
    assert world.steps.reached == [], "there is nothing left to do"


def test_another_content_of_the_same_snapshot_is_waited_for():
    """SNQ-003: Only one content works on a snapshot at a time."""
    world = SnapshotWorld("GET_SNAPSHOT")
    world.add_given()
    world.queue.busy[f"{DRIVER}#snapshot#sx"] = Mode.EXCLUSIVE
    assert world.run_content().action.value == "blocked"
    assert world.client.methods == []


# Deletion.


def going(world: SnapshotWorld, **status: Any) -> None:
    """Add a content that is to be deleted and was polled twice before."""
    metadata = {"annotations": {ANN_DELETED: "yes"}}
    world.add_content(metadata=metadata, status={"snapshotHandle": "sh"} | status)
    world.api.mark_deleted(paths.SNAPSHOT_CONTENTS, CONTENT)
    world.queue.marks[CONTENT_KEY.text] = {"polls": 2}


def test_a_content_that_goes_by_force_while_its_snapshot_is_deleted():
    """No state is left, and no error is reported."""
    world = SnapshotWorld()
    going(world)
    drop = lambda _: world.api.drop(paths.SNAPSHOT_CONTENTS, CONTENT)  # noqa: E731
    world.client.respond({"DeleteSnapshot": [drop]})
    assert world.run_content().reason == "deleted"
    assert world.queue.marks == {}
    assert world.events.seen == []


def test_what_is_deleted_is_forgotten():
    """SNQ-011 d: The finalizer goes last: state of a gone object would count as an open attempt."""
    world = SnapshotWorld()
    going(world)
    assert world.run_content().reason == "released"
    assert world.steps.reached == [
        *("delete-snapshot", "clear-status", "record-intent", "remove-finalizer"),
    ]
    assert world.queue.marks == {}


def test_others_finalizers_stay():
    """SNQ-011 d: Only csi-fleet's finalizer is removed, and the status no longer has the handle."""
    world = SnapshotWorld()
    going(world, readyToUse=True, error={"message": "x"})
    held = {"metadata": {"finalizers": ["example.org/other", k.FINALIZER_CONTENT]}}
    world.api.change(paths.SNAPSHOT_CONTENTS, CONTENT, held)
    assert world.run_content().reason == "released"
    assert world.content()["metadata"]["finalizers"] == ["example.org/other"]
    assert world.content()["status"] == {"error": {"message": "x"}}


def test_the_same_refusal_is_stored_once():
    """SND-013: Each attempt emits an event, but the status is written only once."""
    world = SnapshotWorld()
    going(world)
    world.client.respond({"DeleteSnapshot": [{"code": "INTERNAL", "message": "no"}]})
    for number in (1, 2):
        outcome = world.run_content()
        assert (outcome.action.value, outcome.delay_seconds) == ("retry", 0.0)
        assert world.reasons == ["SnapshotDeleteError"] * number
        assert world.steps.reached.count("write-error") == 1


def test_a_content_without_snapshot_that_goes_by_force():
    """SNS-010 row 2: The content is gone before its finalizer can be removed."""
    world = SnapshotWorld()
    going(world, snapshotHandle=None)
    world.api.before("patch", CONTENT, lambda: world.api.drop(paths.SNAPSHOT_CONTENTS, CONTENT))
    assert world.run_content().reason == "released"
    assert world.queue.marks == {}


def test_a_finalizer_that_comes_meanwhile_stays():
    """SND-003, SNQ-006: The patch requires the version that was read."""
    world = SnapshotWorld()
    going(world)
    held = {"metadata": {"finalizers": [k.FINALIZER_CONTENT, "example.org/late"]}}

    def late() -> None:
        world.api.change(paths.SNAPSHOT_CONTENTS, CONTENT, held)

    # The first such request clears the status; the second removes csi-fleet's finalizer.
    world.api.before("patch", CONTENT, lambda: world.api.before("patch", CONTENT, late))
    assert world.run_content().reason == "it changed meanwhile", "all is decided again"
    assert world.run_content().reason == "released"
    assert world.content()["metadata"]["finalizers"] == ["example.org/late"]
    assert world.steps.reached.count("remove-finalizer") == 2

"""CreateSnapshot, step by step: SNT-060 to SNT-069 and related cases."""

from __future__ import annotations

import pytest

from csi_client import errors
from csi_client.errors import CsiError
from tests.support.snapshot_world import (
    ANN_CREATED,
    ANN_DELETED,
    CONTENT,
    CUT,
    UPLOADING,
    SnapshotWorld,
    error_of,
    notes,
)
from workers import constants as k
from workers.kube import paths
from workers.kube.errors import ForbiddenError
from workers.queue.locks import Mode

SECRET = {k.ANN_SNAPSHOT_SECRET_NAME: "creds", k.ANN_SNAPSHOT_SECRET_NAMESPACE: "ns"}


def refused(code: str, message: str = "no") -> dict:
    return {"code": code, "message": message}


def test_snt060_a_dynamic_content_is_cut():
    """SNS-020, SNS-022, SNQ-011: Announce, call, write the status, remove the announcement."""
    world = SnapshotWorld()
    world.add_content()
    world.client.respond({"CreateSnapshot": [CUT]})
    outcome = world.run_content()
    assert outcome.action.value == "done"
    request = world.client.requests("CreateSnapshot")[0]
    assert (request.name, request.source_volume_id) == ("snapshot-u1", "h1")
    status = world.content()["status"]
    assert status["snapshotHandle"] == "sh"
    assert status["restoreSize"] == 1024
    assert status["readyToUse"] is True
    assert ANN_CREATED not in notes(world.content())
    assert world.steps.reached == [
        *("record-intent", "mark-created", "create-snapshot", "record-intent"),
        *("write-status", "record-intent", "unmark-created"),
    ]
    assert world.queue.marks == {}
    assert world.events.seen == []


def test_snt061_a_snapshot_that_is_not_ready_is_asked_for_again():
    """SNS-010 row 6, SND-001, SND-036: Polls use the same name.

    They have their own delays and write nothing.
    """
    world = SnapshotWorld()
    world.add_content()
    cut_at = {"creation_time": "2026-01-02T03:04:05Z"}
    first = {"snapshot": UPLOADING["snapshot"] | cut_at}
    later = {"snapshot": UPLOADING["snapshot"] | {"creation_time": "2026-05-05T00:00:00Z"}}
    world.client.respond({"CreateSnapshot": [first, later, CUT]})
    outcomes = [world.run_content() for _ in range(3)]
    assert [o.action.value for o in outcomes] == ["wait", "wait", "done"]
    assert [o.delay_seconds for o in outcomes[:2]] == [1.0, 1.5]
    assert {r.name for r in world.client.requests("CreateSnapshot")} == {"snapshot-u1"}
    assert world.content()["status"]["creationTime"] == 1767323045000000000
    announced = [w for w in world.api.writes if ANN_CREATED in str(w.body)]
    assert len(announced) == 2


@pytest.mark.parametrize("code", ["UNAVAILABLE", "DEADLINE_EXCEEDED", "ABORTED", "CANCELED"])
def test_snt062_an_open_error_keeps_the_announcement(code):
    """SNS-021: The driver may still be making a snapshot."""
    world = SnapshotWorld()
    world.add_content()
    world.client.respond({"CreateSnapshot": [refused(code), CUT]})
    outcome = world.run_content()
    assert outcome.action.value == "retry"
    assert ANN_CREATED in notes(world.content())
    assert world.reasons == ["SnapshotCreationFailed"]
    assert error_of(world.content()).startswith(
        'Failed to create snapshot: failed to take snapshot of the volume h1: "rpc error: code = '
    )
    assert world.content()["status"]["readyToUse"] is False
    assert world.run_content().action.value == "done"
    assert ANN_CREATED not in notes(world.content())
    assert error_of(world.content()) == ""


@pytest.mark.parametrize("code", ["INVALID_ARGUMENT", "INTERNAL", "UNKNOWN", "NOT_FOUND"])
def test_snt063_a_final_error_takes_the_announcement_back(code):
    """SNS-021, SNS-023: The call is retried anyway, and the text of the event changes once."""
    world = SnapshotWorld()
    world.add_content()
    world.client.respond({"CreateSnapshot": [refused(code)]})
    assert world.run_content().action.value == "retry"
    assert ANN_CREATED not in notes(world.content())
    # Drivers return INTERNAL after their own timeouts too, so the intent stays.
    assert bool(world.queue.marks) is (code in {"INTERNAL", "UNKNOWN"})
    world.run_content()
    assert world.reasons == ["SnapshotCreationFailed", "SnapshotContentCheckandUpdateFailed"]


@pytest.mark.parametrize("policy", ["Delete", "Retain"])
@pytest.mark.parametrize("is_there", [True, False])
def test_a_last_call_before_a_content_goes(is_there, policy):
    """SND-004, SNT-065: After UNAVAILABLE and INTERNAL only another call shows what exists.

    The snapshot was not reported, so it is deleted with policy Retain too.
    """
    world = SnapshotWorld()
    world.add_content(spec={"deletionPolicy": policy})
    answers = [
        refused("UNAVAILABLE"),
        refused("INTERNAL"),
        CUT if is_there else refused("INTERNAL"),
    ]
    world.client.respond({"CreateSnapshot": answers})
    world.run_content()
    world.run_content()
    change = {"metadata": {"annotations": {ANN_DELETED: "yes"}}}
    world.api.change(paths.SNAPSHOT_CONTENTS, CONTENT, change)
    world.api.mark_deleted(paths.SNAPSHOT_CONTENTS, CONTENT)
    world.add_class(parameters={"tier": "other"})
    events = len(world.reasons)
    assert world.run_content().action.value == "wait"
    assert ANN_CREATED not in notes(world.content())
    world.run_content()
    assert world.content() is None
    assert ("DeleteSnapshot" in world.client.methods) is is_there
    first, *others = world.client.requests("CreateSnapshot")
    assert others == [first, first]
    assert "snapshotHandle" not in str(world.api.writes)
    assert len(world.reasons) == events
    assert world.queue.marks == {}


def test_requests_that_cannot_become_right_are_repeated_slowly():
    """SND-033: As with claims, the retry waits for the longest interval."""
    world = SnapshotWorld(retry_interval_max_seconds=77.0)
    world.add_content()
    world.client.respond({"CreateSnapshot": [refused("INVALID_ARGUMENT"), refused("INTERNAL")]})
    assert world.run_content().delay_seconds == 77.0
    assert world.run_content().delay_seconds == 0.0


def test_snt064_the_same_error_is_told_once():
    """SNS-026: A repeated error causes no write and no event."""
    world = SnapshotWorld()
    world.add_content()
    world.client.respond({"CreateSnapshot": [refused("UNAVAILABLE")]})
    world.run_content()
    world.run_content()
    told, written = len(world.events.seen), world.content()["metadata"]["resourceVersion"]
    world.run_content()
    assert len(world.events.seen) == told == 2
    assert world.content()["metadata"]["resourceVersion"] == written


def test_snt065_a_deletion_waits_for_the_open_call():
    """SNS-011: The snapshot is created first, and then deleted by its handle."""
    world = SnapshotWorld()
    world.add_content()
    world.client.respond({"CreateSnapshot": [refused("DEADLINE_EXCEEDED"), CUT]})
    world.run_content()
    world.api.change(
        paths.SNAPSHOT_CONTENTS, CONTENT, {"metadata": {"annotations": {ANN_DELETED: "yes"}}}
    )
    world.api.mark_deleted(paths.SNAPSHOT_CONTENTS, CONTENT)
    outcome = world.run_content()
    assert world.client.methods == ["CreateSnapshot", "CreateSnapshot"]
    # No event repeats the deletion (SND-006).
    assert (outcome.action.value, outcome.delay_seconds) == ("wait", 0)
    world.run_content()
    assert world.client.requests("DeleteSnapshot")[0].snapshot_id == "sh"
    assert world.content() is None


def test_snt066_an_unknown_reserved_key_leaves_nothing_behind():
    """SNA-021, SND-004: No call and no announcement is made, and the content can be deleted."""
    world = SnapshotWorld()
    world.add_class(parameters={"csi.storage.k8s.io/colour": "red"})
    world.add_content()
    assert world.run_content().action.value == "retry"
    assert error_of(world.content()) == (
        "Failed to create snapshot: failed to remove CSI Parameters of prefixed keys: found "
        'unknown parameter key "csi.storage.k8s.io/colour" with reserved namespace '
        "csi.storage.k8s.io/"
    )
    assert ANN_CREATED not in notes(world.content())
    assert world.client.methods == []
    world.api.change(
        paths.SNAPSHOT_CONTENTS, CONTENT, {"metadata": {"annotations": {ANN_DELETED: "yes"}}}
    )
    world.api.mark_deleted(paths.SNAPSHOT_CONTENTS, CONTENT)
    world.run_content()
    assert world.content() is None


def test_snt067_extra_metadata():
    """SNA-022: The class's secret keys are not sent to the driver (SNA-021)."""
    world = SnapshotWorld(extra_metadata=True)
    world.add_class(parameters={"tier": "cold", "csi.storage.k8s.io/snapshotter-secret-name": "x"})
    world.add_content()
    world.client.respond({"CreateSnapshot": [CUT]})
    world.run_content()
    assert dict(world.client.requests("CreateSnapshot")[0].parameters) == {
        "tier": "cold",
        "csi.storage.k8s.io/volumesnapshot/name": "s",
        "csi.storage.k8s.io/volumesnapshot/namespace": "ns",
        "csi.storage.k8s.io/volumesnapshotcontent/name": CONTENT,
    }


def test_snt068_no_creation_time_means_now():
    """SND-005: csi-snapshotter writes 1970."""
    world = SnapshotWorld()
    world.add_content()
    world.client.respond({"CreateSnapshot": [CUT]})
    world.run_content()
    assert world.content()["status"]["creationTime"] > 1_700_000_000 * 10**9


@pytest.mark.parametrize("size", [0, -5])
def test_snt069_an_unknown_size_is_left_out(size):
    """SNS-025: An unknown size is not written to the status."""
    world = SnapshotWorld()
    world.add_content()
    cut = {"snapshot_id": "sh", "size_bytes": size}
    world.client.respond({"CreateSnapshot": [{"snapshot": cut}]})
    world.run_content()
    assert "restoreSize" not in world.content()["status"]


def test_snt094_both_annotations_survive_each_other():
    """SND-003, SNQ-011: Nothing is deleted before CreateSnapshot has a final answer."""
    world = SnapshotWorld()
    world.add_content()
    change = {"metadata": {"annotations": {ANN_DELETED: "yes"}}}
    world.api.before(
        "patch",
        CONTENT,
        lambda: world.api.change(paths.SNAPSHOT_CONTENTS, CONTENT, change),
    )
    world.client.respond({"CreateSnapshot": [refused("UNAVAILABLE")]})
    world.run_content()
    assert {ANN_CREATED, ANN_DELETED} <= notes(world.content()).keys()
    world.api.mark_deleted(paths.SNAPSHOT_CONTENTS, CONTENT)
    world.run_content()
    assert world.client.methods == ["CreateSnapshot", "CreateSnapshot"]


def test_another_programs_stale_write_does_not_end_an_open_call():
    """SND-003: The intent keeps the open call after the annotation is lost."""
    world = SnapshotWorld()
    world.add_content()
    world.client.respond({"CreateSnapshot": [refused("UNAVAILABLE")]})
    world.run_content()
    change = {"metadata": {"annotations": {ANN_CREATED: None, ANN_DELETED: "yes"}}}
    world.api.change(paths.SNAPSHOT_CONTENTS, CONTENT, change)
    world.api.mark_deleted(paths.SNAPSHOT_CONTENTS, CONTENT)
    world.run_content()
    assert world.client.methods == ["CreateSnapshot", "CreateSnapshot"]
    assert world.content() is not None


def test_no_call_before_the_finalizer_is_there():
    """SND-002: csi-snapshotter's other half adds the finalizer later."""
    world = SnapshotWorld()
    world.add_content(metadata={"finalizers": []})
    assert world.run_content().action.value == "done"
    assert world.client.methods == []


def test_no_first_call_for_an_object_that_is_going():
    """SND-034: A content deleted before its first reconcile gets no call, even in a race."""
    world = SnapshotWorld()
    world.add_content()
    world.api.mark_deleted(paths.SNAPSHOT_CONTENTS, CONTENT)
    assert world.run_content().action.value == "done"
    world = SnapshotWorld()
    world.add_content()
    world.api.before(
        "patch", CONTENT, lambda: world.api.mark_deleted(paths.SNAPSHOT_CONTENTS, CONTENT)
    )
    assert world.run_content().action.value == "wait"
    assert world.client.methods == []
    assert ANN_CREATED not in notes(world.content())


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (
            {"volumeSnapshotClassName": None},
            f'"failed to take snapshot {CONTENT} without a snapshot class"',
        ),
        (
            {"volumeSnapshotClassName": "none"},
            r'"volumesnapshotclass.snapshot.storage.k8s.io \"none\" not found"',
        ),
    ],
)
def test_input_errors_have_the_recorded_words(change, expected):
    """SNS-020 row 1: The errors have the texts that were recorded from csi-snapshotter."""
    world = SnapshotWorld()
    world.add_content(spec=change)
    assert world.run_content().action.value == "retry"
    words = "Failed to create snapshot: failed to get input parameters to create snapshot for "
    assert error_of(world.content()) == f"{words}content {CONTENT}: {expected}"


def test_a_secret_that_is_missing_stops_the_creation():
    """SNS-020 row 2, SNA-024: A single annotation names no secret."""
    world = SnapshotWorld()
    world.add_content(metadata={"annotations": SECRET})
    assert world.run_content().action.value == "retry"
    assert r"cannot get credentials for snapshot content \"snapcontent-u1\"" in error_of(
        world.content()
    )
    world.api.add(
        paths.SECRETS, {"metadata": {"name": "creds", "namespace": "ns"}, "data": {"a": "Yg=="}}
    )
    world.client.respond({"CreateSnapshot": [CUT]})
    world.run_content()
    assert dict(world.client.requests("CreateSnapshot")[0].secrets) == {"a": "b"}
    one = SnapshotWorld()
    one.add_content(metadata={"annotations": {k.ANN_SNAPSHOT_SECRET_NAME: "creds"}})
    one.run_content()
    assert one.client.methods == ["CreateSnapshot"]


def test_a_full_pool_does_not_keep_a_content_for_ever():
    """SND-032: All calls failed for lack of space, so no snapshot can be in progress."""
    world = SnapshotWorld()
    world.add_content()
    world.client.respond({"CreateSnapshot": [refused("RESOURCE_EXHAUSTED")]})
    world.run_content()
    change = {"metadata": {"annotations": {ANN_DELETED: "yes"}}}
    world.api.change(paths.SNAPSHOT_CONTENTS, CONTENT, change)
    world.api.mark_deleted(paths.SNAPSHOT_CONTENTS, CONTENT)
    world.run_content()
    world.run_content()
    assert world.client.methods == ["CreateSnapshot", "CreateSnapshot"]
    assert world.content() is None


@pytest.mark.parametrize("calls_before", [1, 2])
@pytest.mark.parametrize("first", ["DEADLINE_EXCEEDED", "INTERNAL"])
def test_a_full_pool_after_a_call_that_may_have_made_it_is_no_proof(first, calls_before):
    """SND-032: Only a list without a snapshot of the volume is proof.

    The number of calls that found a full pool does not matter.
    """
    for entries, is_gone in (([{"snapshot": {"snapshot_id": "sh"}}], False), ([], True)):
        world = SnapshotWorld("LIST_SNAPSHOTS")
        world.add_content()
        answers = [refused(first), *[refused("RESOURCE_EXHAUSTED")] * calls_before]
        listed = [{"pages": {"": {}}}] if not entries else [lambda _, e=entries: listing(e)]
        world.client.respond({"CreateSnapshot": answers, "ListSnapshots": listed})
        for _ in range(calls_before):
            world.run_content()
        change = {"metadata": {"annotations": {ANN_DELETED: "yes"}}}
        world.api.change(paths.SNAPSHOT_CONTENTS, CONTENT, change)
        world.api.mark_deleted(paths.SNAPSHOT_CONTENTS, CONTENT)
        world.run_content()
        world.run_content()
        assert (world.content() is None) is is_gone


def listing(entries):
    return {"entries": entries}


def test_a_class_that_is_gone_does_not_keep_a_content_for_ever():
    """SND-004: The earlier request can be repeated without its class, and its snapshot deleted."""
    world = SnapshotWorld()
    world.add_class(parameters={"tier": "cold"})
    world.add_content()
    world.client.respond({"CreateSnapshot": [refused("DEADLINE_EXCEEDED"), CUT]})
    world.run_content()
    world.api.drop(paths.SNAPSHOT_CLASSES, "c1")
    change = {"metadata": {"annotations": {ANN_DELETED: "yes"}}}
    world.api.change(paths.SNAPSHOT_CONTENTS, CONTENT, change)
    world.api.mark_deleted(paths.SNAPSHOT_CONTENTS, CONTENT)
    world.run_content()
    world.run_content()
    assert world.client.methods == ["CreateSnapshot", "CreateSnapshot", "DeleteSnapshot"]
    assert dict(world.client.requests("CreateSnapshot")[1].parameters) == {"tier": "cold"}
    assert world.content() is None


def test_an_error_after_the_cut_keeps_the_handle():
    """Section 12, SND-014: The next successful call removes the error."""
    world = SnapshotWorld()
    world.add_content()
    answers = [UPLOADING, refused("INTERNAL", "upload failed"), UPLOADING, CUT]
    world.client.respond({"CreateSnapshot": answers})
    world.run_content()
    world.run_content()
    assert world.content()["status"]["snapshotHandle"] == "sh"
    assert "upload failed" in error_of(world.content())
    world.run_content()
    assert error_of(world.content()) == ""
    assert world.run_content().action.value == "done"


def test_a_handle_that_cannot_be_written_is_told():
    """SNQ-011 c: An event states the cause; the call is repeated, so that no snapshot is lost."""
    world = SnapshotWorld()
    world.add_content()
    world.client.respond({"CreateSnapshot": [CUT]})
    world.api.fail("patch", f"{CONTENT}/status", ForbiddenError(403, "Forbidden", "denied"))
    assert world.run_content().action.value == "retry"
    words = "error updating status for volume snapshot content"
    assert world.messages == [f"Failed to create snapshot: {words} {CONTENT}: denied"]
    assert world.run_content().action.value == "done"
    assert world.content()["status"]["snapshotHandle"] == "sh"


def test_a_volume_that_is_being_deleted_is_not_cut():
    """SNQ-003: The provisioner deletes the volume under the same lock, held exclusively."""
    world = SnapshotWorld()
    world.add_content()
    world.queue.busy["snap.test#h1"] = Mode.EXCLUSIVE
    assert world.run_content().action.value == "blocked"
    world.queue.busy["snap.test#h1"] = Mode.SHARED
    world.client.respond({"CreateSnapshot": [CUT]})
    assert world.run_content().action.value == "done"


def test_broken_streams_are_not_final():
    """SNS-021: An UNKNOWN that gRPC itself creates proves nothing about the snapshot."""
    world = SnapshotWorld()
    world.add_content()
    error = CsiError(errors.UNKNOWN, "Stream removed", from_transport=True, is_final=False)
    world.client.respond({"CreateSnapshot": [error]})
    world.run_content()
    assert ANN_CREATED in notes(world.content())

"""What a snapshot copies from its content, and when: SNT-020 to SNT-027."""

from __future__ import annotations

from contextlib import suppress

import pytest

from tests.support.snapshot_world import (
    CONTENT,
    SnapshotWorld,
    content_body,
    error_of,
    finalizers,
)
from workers import constants as k
from workers.kube import paths
from workers.kube.errors import ApiError, ForbiddenError
from workers.translate.snapshot_status import needs_copy, snapshot_status

AS_SOURCE, BOUND = "volumesnapshot-as-source-protection", "volumesnapshot-bound-protection"
FIELD = "boundVolumeSnapshotContentName"
CUT = {"snapshotHandle": "sh", "creationTime": 1767323045000000000, "restoreSize": 1 << 30}
ERROR = {"message": "no", "time": "2026-01-02T03:04:05Z"}


def bound_world(**status) -> SnapshotWorld:
    world = SnapshotWorld()
    world.add_source()
    world.add_snapshot()
    world.run_snapshot()
    if status:
        set_status(world, **status)
    world.events.seen.clear()
    return world


def set_status(world: SnapshotWorld, **status) -> None:
    world.api.change(paths.SNAPSHOT_CONTENTS, CONTENT, {"status": status})


def test_snt020_the_cut_is_told_once():
    """SNC-070, SNC-071: The event is emitted once."""
    world = bound_world(**CUT, readyToUse=False)
    world.run_snapshot()
    assert world.snapshot()["status"] == {
        FIELD: CONTENT,
        "creationTime": "2026-01-02T03:04:05Z",
        "restoreSize": "1Gi",
        "readyToUse": False,
    }
    world.run_snapshot()
    assert world.reasons == ["SnapshotCreated"]


def test_snt021_ready():
    """SNC-070, SNC-071, SNC-061: The claim's finalizer is removed."""
    world = bound_world(**CUT, readyToUse=False, error=ERROR)
    world.run_snapshot()
    set_status(world, readyToUse=True, error=None)
    world.run_snapshot()
    assert world.snapshot()["status"]["readyToUse"] is True
    assert error_of(world.snapshot()) == ""
    assert world.reasons == ["SnapshotCreated", "SnapshotReady"]
    assert finalizers(world.snapshot()) == [AS_SOURCE, BOUND]
    assert finalizers(world.claim()) == []


def test_snt022_snt023_errors_come_and_go():
    """SNC-070: Errors are compared and replaced by value (SND-016)."""
    world = bound_world(readyToUse=False, error=ERROR)
    world.run_snapshot()
    assert world.snapshot()["status"]["error"] == ERROR
    set_status(world, error={"message": "other", "time": "2026-01-02T03:04:06Z"})
    world.run_snapshot()
    assert error_of(world.snapshot()) == "other"
    set_status(world, error=None)
    world.run_snapshot()
    assert "error" not in world.snapshot()["status"]


def test_snt024_a_size_of_zero_is_replaced():
    """SNC-070, SNC-056: The size is copied only while the snapshot is not ready."""
    world = bound_world(**CUT | {"restoreSize": 0}, readyToUse=False)
    world.run_snapshot()
    assert world.snapshot()["status"]["restoreSize"] == "0"
    set_status(world, restoreSize=1 << 30)
    world.run_snapshot()
    assert world.snapshot()["status"]["restoreSize"] == "1Gi"
    set_status(world, readyToUse=True)
    world.run_snapshot()
    set_status(world, readyToUse=False, restoreSize=1 << 40)
    world.run_snapshot()
    status = world.snapshot()["status"]
    assert (status["readyToUse"], status["restoreSize"]) == (True, "1Gi")


def test_snt025_the_content_of_a_ready_snapshot_is_removed_by_force():
    """SNC-055: The snapshot becomes unready, and the content is created again at once."""
    world = bound_world(**CUT, readyToUse=True)
    world.run_snapshot()
    world.api.drop(paths.SNAPSHOT_CONTENTS, CONTENT)
    outcome = world.run_snapshot()
    assert (outcome.action.value, outcome.delay_seconds) == ("wait", 0)
    assert error_of(world.snapshot()) == "VolumeSnapshotContent is missing"
    assert world.snapshot()["status"]["readyToUse"] is False
    assert world.run_snapshot().action.value == "done"
    assert world.content() is not None
    assert error_of(world.snapshot()) == ""


def test_snt026_the_content_of_a_ready_snapshot_points_elsewhere():
    """SNC-052 is checked first; SNC-055 applies if the status names another content."""
    world = bound_world(**CUT, readyToUse=True)
    world.run_snapshot()
    change = {"spec": {"volumeSnapshotRef": {"uid": "u9"}}}
    world.api.change(paths.SNAPSHOT_CONTENTS, CONTENT, change)
    world.events.seen.clear()
    world.run_snapshot()
    assert world.reasons == ["SnapshotContentMisbound", "SnapshotFinalizerError"]
    assert world.snapshot()["status"]["readyToUse"] is False
    other = bound_world(**CUT, readyToUse=True)
    other.run_snapshot()
    elsewhere = {"namespace": "ns", "name": "s", "uid": "u9"}
    other.add_content(metadata={"name": "other"}, spec={"volumeSnapshotRef": elsewhere})
    other.api.drop(paths.SNAPSHOT_CONTENTS, CONTENT)
    other.api.change(paths.SNAPSHOTS, "s", {"status": {FIELD: "other"}}, "ns")
    other.events.seen.clear()
    other.run_snapshot()
    assert other.reasons == ["SnapshotMisbound"]


def ready_without_content(**changes) -> SnapshotWorld:
    world = SnapshotWorld()
    world.add_source()
    held = {"finalizers": [k.FINALIZER_SNAPSHOT_AS_SOURCE, k.FINALIZER_SNAPSHOT_BOUND]}
    status = {"readyToUse": True, FIELD: CONTENT, **changes.pop("status", {})}
    world.add_snapshot(metadata=held, status=status, **changes)
    return world


def passes_at_once(world: SnapshotWorld, number: int = 10) -> int:
    """Return how many of `number` reconciles are to be followed by another one at once."""
    at_once = 0
    for _ in range(number):
        with suppress(ApiError):
            outcome = world.run_snapshot()
            at_once += outcome.action.value == "wait" and outcome.delay_seconds == 0
    return at_once


@pytest.mark.parametrize("is_elsewhere", [False, True])
def test_a_ready_snapshot_whose_error_is_refused_backs_off(is_elsewhere):
    """SNC-055: RBAC or a webhook refuses the status, so the snapshot stays ready."""
    world = ready_without_content(status={FIELD: "other"} if is_elsewhere else {})
    if is_elsewhere:
        ref = {"namespace": "ns", "name": "s", "uid": "u9"}
        world.add_content(metadata={"name": "other"}, spec={"volumeSnapshotRef": ref})
    patch = world.api.patch

    def refusing(path, body, content_type):
        if path.endswith("/status"):
            raise ForbiddenError(403, "Forbidden", "no right to volumesnapshots/status")
        return patch(path, body, content_type)

    world.api.patch = refusing
    assert world.run_snapshot().action.value == "retry"
    assert passes_at_once(world) == 0


@pytest.mark.parametrize("named", [None, "given"])
def test_a_ready_snapshot_whose_error_is_stored_already_is_unset_in_silence(named):
    """SNC-031 drops an error with the same text; SNC-055 still makes the snapshot unready, once."""
    error = {"message": "VolumeSnapshotContent is missing", "time": None}
    world = ready_without_content(
        spec={"source": {"volumeSnapshotContentName": named}} if named else {},
        status={"error": error, FIELD: named or CONTENT},
    )
    outcome = world.run_snapshot()
    assert (outcome.action.value, outcome.delay_seconds) == ("wait", 0)
    assert world.snapshot()["status"]["readyToUse"] is False
    assert world.snapshot()["status"]["error"] == error
    assert world.reasons == []
    assert passes_at_once(world) == 0


def test_snt027_retain_has_no_bound_finalizer_until_the_policy_changes():
    """SNC-030: The bound finalizer is added only for policy Delete."""
    world = SnapshotWorld()
    world.add_class(deletionPolicy="Retain")
    world.add_source()
    world.add_snapshot()
    world.run_snapshot()
    set_status(world, **CUT, readyToUse=True)
    world.run_snapshot()
    assert finalizers(world.snapshot()) == [AS_SOURCE]
    world.api.change(paths.SNAPSHOT_CONTENTS, CONTENT, {"spec": {"deletionPolicy": "Delete"}})
    world.run_snapshot()
    assert finalizers(world.snapshot()) == [AS_SOURCE, BOUND]


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (None, {"readyToUse": True}, {FIELD: CONTENT, "readyToUse": True}),
        (None, {}, {FIELD: CONTENT, "readyToUse": False}),
        ({FIELD: "kept", "readyToUse": False}, {}, None),
        (
            {FIELD: CONTENT, "readyToUse": False, "error": ERROR},
            {"readyToUse": True},
            {FIELD: CONTENT, "readyToUse": True},
        ),
        (
            {FIELD: CONTENT, "readyToUse": False, "error": {"message": "mine"}},
            {"error": ERROR},
            None,
        ),
    ],
)
def test_the_status_table(old, new, expected):
    """SNC-070: Each row of the status table has its result."""
    snapshot = {"metadata": {"name": "s"}, **({"status": old} if old is not None else {})}
    content = content_body(status=new)
    assert snapshot_status(snapshot, content, bound_field=FIELD) == expected


def test_needs_copy_compares_values():
    """SNC-075, SND-016: Only a changed value needs to be copied."""
    content = content_body(status={"readyToUse": True})
    settled = {"metadata": {}, "status": {FIELD: CONTENT, "readyToUse": True}}
    assert not needs_copy(settled, content, bound_field=FIELD)
    assert needs_copy({"metadata": {}}, content, bound_field=FIELD)
    assert not needs_copy({"metadata": {}}, content_body(), bound_field=FIELD)


def test_a_group_handle_without_its_group():
    """SNC-070: It is an error if groups are served; otherwise it is ignored (SND-039)."""
    handle = CUT | {"volumeGroupSnapshotHandle": "gh", "readyToUse": True}
    world = bound_world(**handle)
    assert world.run_snapshot().action.value == "retry"
    assert world.reasons == ["SnapshotStatusUpdateFailed"]
    off = SnapshotWorld(groups=False)
    off.add_source()
    off.add_snapshot()
    off.run_snapshot()
    set_status(off, **handle)
    assert off.run_snapshot().action.value == "done"
    assert off.snapshot()["status"]["readyToUse"] is True

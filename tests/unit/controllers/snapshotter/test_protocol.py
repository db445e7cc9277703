"""The protocol between the two halves and with the engine, whatever a reconcile is about."""

from __future__ import annotations

import msgspec
import pytest

from csi_client import errors
from csi_client.errors import CsiError
from tests.support.snapshot_world import (
    ANN_CREATED,
    ANN_DELETED,
    CONTENT,
    CONTENT_KEY,
    CUT,
    SNAPSHOT_KEY,
    SnapshotWorld,
    content_body,
)
from workers.controllers.snapshot_controller.controller import CONTROLLER as SNAPSHOT_CONTROLLER
from workers.controllers.snapshot_controller.spec import SPEC as CONTROLLER
from workers.controllers.snapshotter.controller import CONTROLLER as SNAPSHOTTER_CONTROLLER
from workers.controllers.snapshotter.rules import SnapshotterRules
from workers.controllers.snapshotter.spec import SPEC as SNAPSHOTTER
from workers.engine.frame import Pass
from workers.engine.live import WRITE_TRIES
from workers.engine.outcome import retry
from workers.errors import LeaseLost
from workers.kube import paths
from workers.kube.errors import ConflictError
from workers.kube.objects import Snapshot, SnapshotContent
from workers.observability import trail

CONFLICT = ConflictError(409, "Conflict", "the object has been modified")
STATUS = {"status": {"snapshotHandle": "sh", "readyToUse": True}}


def test_the_api_that_is_spoken():
    """SNA-001: Only v1 is used, with a status subresource.

    SNQ-002: Keys have the object's name; a snapshot's key has no driver.
    """
    assert {paths.SNAPSHOTS.api_version, paths.SNAPSHOT_CONTENTS.api_version} == {
        "snapshot.storage.k8s.io/v1"
    }
    assert CONTENT_KEY.text == f"contents|snap.test|{CONTENT}|"
    assert SNAPSHOT_KEY.text == "snapshots||ns/s|"


def test_the_fields_that_are_read():
    """SNA-002, SNA-003: The fields are decoded as the API server writes them."""
    text = b"""{"metadata": {"name": "s"}, "spec": {"source": {"volumeSnapshotContentName": "c"}},
        "status": {"boundVolumeSnapshotContentName": "c", "readyToUse": true, "restoreSize": "1Gi",
                   "creationTime": "2026-01-01T00:00:00Z", "volumeGroupSnapshotName": "g",
                   "error": {"time": "2026-01-01T00:00:00Z", "message": "m"}}}"""
    snapshot = msgspec.json.decode(text, type=Snapshot)
    assert snapshot.spec.source.volume_snapshot_content_name == "c"
    assert snapshot.status is not None
    assert (snapshot.status.ready_to_use, snapshot.status.restore_size) == (True, "1Gi")
    text = b"""{"metadata": {"name": "c"}, "spec": {"driver": "d", "deletionPolicy": "Delete",
        "source": {"snapshotHandle": "h"}, "volumeSnapshotRef": {"namespace": "n", "name": "s"}},
        "status": {"snapshotHandle": "h", "creationTime": 1767323045000000000, "restoreSize": 7}}"""
    content = msgspec.json.decode(text, type=SnapshotContent)
    assert content.status is not None
    assert (content.status.creation_time, content.status.restore_size) == (1767323045 * 10**9, 7)


def test_work_queues_have_the_names_of_the_reference():
    """SNS-090, SNC-090: The names appear in the work queue metrics."""
    assert [kind.work_queue for kind in SNAPSHOTTER.kinds] == [
        "csi-snapshotter-content",
        "csi-snapshotter-groupsnapshotcontent",
    ]
    assert [kind.work_queue for kind in CONTROLLER.kinds] == [
        "snapshot-controller-snapshot",
        "snapshot-controller-content",
        "snapshot-controller-group-snapshot",
        "snapshot-controller-group-content",
        "snapshot-controller-claim",  # csi-fleet's own: upstream has no such queue (SNQ-013)
    ]


def test_the_back_off_is_the_flags():
    """SNA-008: Each key backs off from --retry-interval-start to --retry-interval-max, forever."""
    world = SnapshotWorld(retry_interval_start_seconds=2.0, retry_interval_max_seconds=7.0)
    world.add_snapshot()  # its claim doesn't exist
    outcomes = [world.run_snapshot()]
    world.add_content()
    world.client.respond({"CreateSnapshot": [CsiError(errors.INTERNAL, "no")]})
    for outcome in [*outcomes, world.run_content()]:
        assert outcome == retry(outcome.reason)  # the engine then applies its intervals
    for controller, driver in ((SNAPSHOT_CONTROLLER, None), (SNAPSHOTTER_CONTROLLER, world.driver)):
        kind = controller.spec.kinds[0]
        framed = Pass(world.context, controller, kind, driver, CONTENT_KEY, 0.0)
        assert framed.retry_intervals() == (2.0, 7.0)


def test_a_failed_attempt_counts_though_the_content_is_to_go():
    """SNA-008, SND-006: Only a reconcile that nothing else would cause follows at once."""
    world = SnapshotWorld()
    world.add_content()

    def refuse(_):
        change = {"metadata": {"annotations": {ANN_DELETED: "yes"}}}
        world.api.change(paths.SNAPSHOT_CONTENTS, CONTENT, change)
        world.api.mark_deleted(paths.SNAPSHOT_CONTENTS, CONTENT)
        return {"code": "NOT_FOUND", "message": "no such volume"}

    world.client.respond({"CreateSnapshot": [refuse]})
    assert world.run_content().action.value == "retry"
    world.run_content()
    assert world.content() is None


def test_each_error_is_there_for_explain():
    """SNS-026: The event is emitted once, but each attempt is added to the history."""
    world = SnapshotWorld()
    world.add_content()
    world.client.respond({"CreateSnapshot": [CsiError(errors.UNAVAILABLE, "rebooting")]})
    for _ in range(3):
        with trail.collect():
            world.run_content()
            notes = trail.collected()
        assert ["rebooting" in note for note in notes] == [True]


def test_a_resync_names_whatever_is_undecided():
    """SNA-010: A ready snapshot needs no work."""
    rules = SnapshotterRules()
    rules.set_drivers([{"name": "snap.test", "queue_name": "snap.test"}])
    bodies = [content_body(), content_body(metadata={"name": "done", "uid": "d"}, **STATUS)]
    for body in bodies:
        item = msgspec.convert(body, SnapshotContent)
        list(rules.seen(paths.SNAPSHOT_CONTENTS, item, is_listed=True))
    assert [key.text for key in rules.all_keys()] == [CONTENT_KEY.text]


def test_a_conflict_is_read_and_decided_again():
    """SNQ-006, SNA-011: It causes no event or back-off, and the other program's change stays."""
    world = SnapshotWorld()
    world.add_content()
    world.client.respond({"CreateSnapshot": [CUT]})
    foreign = {"metadata": {"annotations": {"example.org/mine": "x"}}}

    def write() -> None:
        world.api.change(paths.SNAPSHOT_CONTENTS, CONTENT, foreign)

    world.api.before("patch", f"volumesnapshotcontents/{CONTENT}", write)
    assert world.run_content().action.value == "done"
    content = world.content()
    assert content is not None
    assert content["status"]["snapshotHandle"] == "sh"
    assert content["metadata"]["annotations"] == {"example.org/mine": "x"}
    assert world.reasons == []


def test_conflicts_without_end_are_no_error_of_the_object():
    """SNQ-006: A reconcile tries each write only a few times."""
    world = SnapshotWorld()
    world.add_content()
    world.api.fail("patch", f"volumesnapshotcontents/{CONTENT}", *[CONFLICT] * WRITE_TRIES)
    with pytest.raises(ConflictError):
        world.run_content()
    assert world.client.methods == []
    assert world.reasons == []


@pytest.mark.parametrize("effect", ["create-snapshot", "delete-snapshot"])
def test_no_call_without_the_lease(effect):
    """SNQ-007: A worker whose lease has expired does not call the driver."""
    world = SnapshotWorld()
    going = {"annotations": {"snapshot.storage.kubernetes.io/volumesnapshot-being-deleted": "yes"}}
    world.add_content(**({} if effect == "create-snapshot" else {"metadata": going, **STATUS}))
    if effect == "delete-snapshot":
        world.api.mark_deleted(paths.SNAPSHOT_CONTENTS, CONTENT)

    def reach(step, lease):
        lease.is_lost = step == effect
        lease.check()

    world.steps.reach = reach  # type: ignore[method-assign]
    with pytest.raises(LeaseLost):
        world.run_content()
    assert world.client.methods == []


def test_what_the_cache_would_say_does_not_matter():
    """SNQ-008, SNA-009, SNT-097: Each reconcile reads live objects, so no stale state is used."""
    world = SnapshotWorld()
    world.add_content(**STATUS)
    stale = {"annotations": {ANN_CREATED: "yes"}}
    world.api.change(paths.SNAPSHOT_CONTENTS, CONTENT, {"metadata": stale})
    assert world.run_content().action.value == "done"
    assert world.client.methods == []
    assert [one.verb for one in world.api.requests[:1]] == ["get"]


def test_only_the_call_itself_is_made():
    """SND-024, SNQ-004: Name and capabilities are known from the start, so one call is enough."""
    world = SnapshotWorld("LIST_SNAPSHOTS")
    world.add_content()
    world.client.respond({"CreateSnapshot": [CUT]})
    world.run_content()
    assert world.client.methods == ["CreateSnapshot"]

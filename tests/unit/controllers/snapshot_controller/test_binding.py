"""The binding of snapshots and contents, and reconciles of contents: SNT-028 to SNT-035."""

from __future__ import annotations

import pytest

from tests.support.snapshot_world import CONTENT, SnapshotWorld, error_of, finalizers
from workers import constants as k
from workers.controllers.snapshot_controller.keys import snapshot_key
from workers.kube import paths
from workers.queue.locks import Lock, Mode

AS_SOURCE, BOUND = "volumesnapshot-as-source-protection", "volumesnapshot-bound-protection"


def new_world(**settings) -> SnapshotWorld:
    world = SnapshotWorld(**settings)
    world.add_source()
    world.add_snapshot()
    return world


def given(world: SnapshotWorld, **spec) -> None:
    ref = {"namespace": "ns", "name": "s"}
    metadata = {"name": "given", "finalizers": []}
    world.add_given(metadata=metadata, spec={"volumeSnapshotRef": ref} | spec)


def named(world: SnapshotWorld, *, name: str = "s", uid: str = "u1", **spec) -> None:
    source = {"volumeSnapshotContentName": "given"}
    world.add_snapshot(metadata={"name": name, "uid": uid}, spec={"source": source} | spec)


def test_snt028_a_pre_provisioned_pair():
    """SNC-040: The content gets the UID and the class; its own reconcile adds its finalizer."""
    world = SnapshotWorld()
    given(world, volumeSnapshotClassName="c9")
    named(world)
    assert world.run_snapshot().action.value == "done"
    content = world.content("given")
    assert content["spec"]["volumeSnapshotRef"]["uid"] == "u1"
    assert content["spec"]["volumeSnapshotClassName"] == "c1"
    assert world.snapshot()["status"]["boundVolumeSnapshotContentName"] == "given"
    assert finalizers(world.snapshot()) == [AS_SOURCE, BOUND]
    world.run_binding("given")
    assert world.content("given")["metadata"]["finalizers"] == [k.FINALIZER_CONTENT]


def test_a_bound_pair_without_class_is_left_alone():
    """SND-020: snapshot-controller writes the UID in every reconcile."""
    world = SnapshotWorld()
    given(world, volumeSnapshotClassName=None)
    named(world, volumeSnapshotClassName=None)
    world.run_snapshot()
    before = len(world.api.writes)
    world.run_snapshot()
    assert len(world.api.writes) == before


def test_snt029_a_snapshot_before_its_content():
    """SNC-040 row 1: The snapshot is retried until its content exists."""
    world = SnapshotWorld()
    named(world)
    assert world.run_snapshot().action.value == "retry"
    assert world.reasons == ["SnapshotContentMissing"]
    given(world)
    assert world.run_snapshot().action.value == "done"
    assert error_of(world.snapshot()) == ""


def test_snt030_a_named_content_that_is_dynamic():
    """SNC-040 row 2, SNC-051: The snapshot names a content that is not pre-provisioned."""
    world = SnapshotWorld()
    world.add_content(metadata={"name": "given"})
    named(world)
    assert world.run_snapshot().action.value == "retry"
    assert world.reasons == ["SnapshotContentMismatch", "SnapshotFinalizerError"]
    assert world.snapshot()["status"]["readyToUse"] is False
    assert finalizers(world.snapshot()) == []


def test_a_computed_content_that_is_pre_provisioned():
    """SNC-052: The content with the computed name is pre-provisioned."""
    world = new_world()
    world.add_given()
    assert world.run_snapshot().action.value == "retry"
    mismatch, finalizer = world.messages
    assert mismatch == (
        f"VolumeSnapshotContent {CONTENT} is pre-provisioned while expecting a dynamically "
        "provisioned one"
    )
    assert finalizer == (
        "Failed to check and update snapshot: snapshot ns/s expects a dynamically provisioned "
        f"VolumeSnapshotContent {CONTENT} but gets a pre-provisioned one"
    )


@pytest.mark.parametrize(
    "ref",
    [
        pytest.param({"namespace": "other", "name": "s"}, id="SNT-031"),
        pytest.param({"namespace": "ns", "name": "other"}, id="name"),
        pytest.param({"namespace": "ns", "name": "s", "uid": "u9"}, id="uid"),
    ],
)
def test_a_content_of_another_snapshot(ref):
    """SNC-040 row 3: The content's reference names another snapshot."""
    world = SnapshotWorld()
    given(world, volumeSnapshotRef=ref)
    named(world)
    assert world.run_snapshot().action.value == "retry"
    assert world.reasons[0] == "SnapshotContentMisbound"


def test_snt032_only_one_of_two_snapshots_gets_the_content():
    """SNC-040, SND-019: This holds even if both snapshots read the content while it was free."""
    world = SnapshotWorld()
    given(world)
    named(world)
    named(world, name="s2", uid="u2")
    taken = {"spec": {"volumeSnapshotRef": {"uid": "u9"}}}
    content = "volumesnapshotcontents/given"
    change = world.api.change
    world.api.before("patch", content, lambda: change(paths.SNAPSHOT_CONTENTS, "given", taken))
    assert world.run_snapshot().action.value == "retry"
    assert "SnapshotContentMisbound" in world.reasons
    world.run_snapshot(snapshot_key("ns", "s2"))
    assert error_of(world.snapshot("s2")).endswith("is bound to a different snapshot")
    assert world.content("given")["spec"]["volumeSnapshotRef"]["uid"] == "u9"


def test_a_content_with_both_handles():
    """SNC-042: A dynamic content must not have a snapshot handle in its source."""
    world = new_world()
    world.add_content(spec={"source": {"volumeHandle": "h", "snapshotHandle": "s"}})
    assert world.run_snapshot().action.value == "retry"
    words = "Snapshot handle should not be set in content ns/s for dynamic provisioning"
    assert world.messages == [words]
    assert finalizers(world.snapshot()) == [AS_SOURCE]


@pytest.mark.parametrize("source", [{}, {"volumeHandle": "h", "snapshotHandle": "s"}])
def test_snt033_a_content_without_one_handle(source):
    """SNC-073 (1): A content must have exactly one handle."""
    world = SnapshotWorld()
    world.add_content(metadata={"finalizers": []}, spec={"source": source})
    assert world.run_binding().action.value == "retry"
    assert world.reasons == ["ContentValidationError"]
    assert world.content()["metadata"]["finalizers"] == []


def test_snt034_a_content_whose_snapshot_does_not_exist():
    """SNC-073: The content gets its finalizer, and nothing else."""
    world = SnapshotWorld()
    world.add_content(metadata={"finalizers": []})
    world.run_binding()
    assert world.content()["metadata"]["finalizers"] == [k.FINALIZER_CONTENT]
    assert world.run_binding().action.value == "done"
    assert world.steps.reached == ["add-content-finalizer"]


def test_snt035_a_content_of_an_earlier_snapshot_of_the_name():
    """SNC-073 (4): The reference has the UID of a deleted snapshot of this name."""
    world = new_world()
    ref = {"namespace": "ns", "name": "s", "uid": "earlier"}
    world.add_content(metadata={"name": "old"}, spec={"volumeSnapshotRef": ref}, status={})
    world.run_binding("old")
    assert world.queue.added == []
    assert world.steps.reached == []


def test_a_content_wakes_its_snapshot():
    """SNC-073 (5), SNC-075: It adds the key only if there is something to copy (SND-016)."""
    world = new_world()
    world.run_snapshot()
    world.run_binding()
    assert world.queue.added == []
    change = {"status": {"snapshotHandle": "x", "creationTime": 10**18, "readyToUse": False}}
    world.api.change(paths.SNAPSHOT_CONTENTS, CONTENT, change)
    world.run_binding()
    assert world.queue.added == [("snapshots||ns/s|", 0.0)]


def test_an_unbound_content_waits():
    """SNC-073 (2): An unbound content gets no finalizer."""
    world = SnapshotWorld()
    given(world)
    assert world.run_binding("given").reason == "not bound"
    assert world.content("given")["metadata"]["finalizers"] == []


def test_both_sources_are_refused():
    """SNC-020 row 3: A snapshot must have exactly one source."""
    world = new_world()
    source = {"persistentVolumeClaimName": "p", "volumeSnapshotContentName": "given"}
    world.add_snapshot(spec={"source": source})
    assert world.run_snapshot().action.value == "retry"
    assert world.reasons == ["SnapshotValidationError"]
    assert finalizers(world.snapshot()) == []


def test_an_empty_content_name_is_told_by_event_only():
    """SNC-020 row 4: The snapshot gets no finalizer and no status."""
    world = SnapshotWorld()
    source = {"volumeSnapshotContentName": ""}
    world.add_snapshot(spec={"source": source, "volumeSnapshotClassName": None})
    assert world.run_snapshot().action.value == "retry"
    assert world.reasons == ["SnapshotFinalizerError"]
    assert finalizers(world.snapshot()) == []
    assert "status" not in world.snapshot()


def test_an_error_is_written_to_the_object_as_it_is():
    """SND-015, SND-017: An error without a message, and another program's write, change nothing."""
    world = SnapshotWorld()
    named(world)
    change = world.api.change
    change(paths.SNAPSHOTS, "s", {"status": {"error": {"time": "t"}}}, "ns")
    label = {"metadata": {"labels": {"a": "b"}}}
    place = "volumesnapshots/s/status"
    world.api.before("patch", place, lambda: change(paths.SNAPSHOTS, "s", label, "ns"))
    world.run_snapshot()
    assert error_of(world.snapshot()) == "VolumeSnapshotContent is missing"
    assert world.events.objects[0]["metadata"]["name"] == "s"


def test_locks_with_the_provisioner_and_with_each_other():
    """SNQ-003: The volume is locked as shared, so that it isn't deleted; the claim exclusively."""
    world = new_world()
    world.run_snapshot()
    assert world.queue.acquired == [Lock("pvc:ns/p"), Lock("pv1", Mode.SHARED)]
    for name in ("pvc:ns/p", "pv1"):
        busy = new_world()
        busy.queue.busy[name] = Mode.EXCLUSIVE
        outcome = busy.run_snapshot()
        assert (outcome.action.value, outcome.lock.name) == ("blocked", name)
        assert busy.content() is None

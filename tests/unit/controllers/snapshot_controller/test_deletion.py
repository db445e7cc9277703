"""Deletion of a snapshot: SNT-006, SNT-040 to SNT-051, and the claim's finalizer (SNT-096)."""

from __future__ import annotations

from contextlib import suppress

import pytest

from tests.support.snapshot_world import (
    ANN_DELETED,
    CONTENT,
    SnapshotWorld,
    finalizers,
    notes,
)
from workers import constants as k
from workers.controllers.snapshot_controller.keys import snapshot_key
from workers.kube import paths
from workers.kube.errors import ForbiddenError, NotFoundError
from workers.observability import trail
from workers.queue.locks import Mode
from workers.translate.fields import is_deleting

AS_SOURCE, BOUND = "volumesnapshot-as-source-protection", "volumesnapshot-bound-protection"
NOBODY = ForbiddenError(403, "Forbidden", "no")
UNSERVED = NotFoundError(404, "NotFound", "the server could not find the requested resource")
RESTORE = {"apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": "s"}


def bound(policy: str = "Delete", *, is_ready: bool = True) -> SnapshotWorld:
    world = SnapshotWorld()
    world.add_class(deletionPolicy=policy)
    world.add_source()
    world.add_snapshot()
    world.run_snapshot()
    if is_ready:
        change = {"status": {"snapshotHandle": "sh", "readyToUse": True}}
        world.api.change(paths.SNAPSHOT_CONTENTS, CONTENT, change)
        world.run_snapshot()
    world.events.seen.clear()
    world.steps.reached.clear()
    return world


def delete(world: SnapshotWorld, name: str = "s") -> None:
    world.api.mark_deleted(paths.SNAPSHOTS, name, "ns")


def restore(world: SnapshotWorld, *, phase: str = "Pending", namespace: str = "ns", **ref) -> None:
    spec = {"dataSourceRef": RESTORE | ref} if ref else {"dataSource": RESTORE}
    metadata = {"name": "r", "namespace": namespace}
    world.api.add(paths.CLAIMS, {"metadata": metadata, "spec": spec, "status": {"phase": phase}})


def test_snt006_a_class_that_is_gone_does_not_matter():
    """SNC-002, SND-011: A snapshot without a class and a claim can be deleted too (SNC-059)."""
    world = bound()
    world.api.drop(paths.SNAPSHOT_CLASSES, "c1")
    delete(world)
    world.run_snapshot()
    assert notes(world.content())[ANN_DELETED] == "yes"
    unclassed = SnapshotWorld()
    body = {"finalizers": [k.FINALIZER_SNAPSHOT_AS_SOURCE]}
    unclassed.add_snapshot(metadata=body, spec={"volumeSnapshotClassName": None})
    delete(unclassed)
    unclassed.run_snapshot()
    assert unclassed.snapshot() is None


def test_snt040_the_content_first():
    """SNC-058: The steps follow SNQ-011 e and f; the bound finalizer waits for the content."""
    world = bound()
    delete(world)
    assert world.run_snapshot().action.value == "done"
    assert notes(world.content())[ANN_DELETED] == "yes"
    assert world.content()["metadata"]["deletionTimestamp"]
    assert finalizers(world.snapshot()) == [BOUND]
    assert world.steps.reached == ["mark-deleted", "delete-content", "remove-finalizers"]
    world.run_snapshot()
    assert finalizers(world.snapshot()) == [BOUND]
    world.api.drop(paths.SNAPSHOT_CONTENTS, CONTENT)
    world.run_snapshot()
    assert world.snapshot() is None


def test_snt041_retain():
    """SNC-058, SNC-059: With policy Retain, the content is annotated but not deleted."""
    world = bound("Retain")
    delete(world)
    world.run_snapshot()
    assert world.snapshot() is None
    assert notes(world.content())[ANN_DELETED] == "yes"
    assert "deletionTimestamp" not in world.content()["metadata"]


def test_snt042_a_restore_holds_the_deletion_up():
    """SNC-058 row 2: A pending claim restores from the snapshot."""
    world = bound()
    restore(world)
    delete(world)
    assert world.run_snapshot().action.value == "retry"
    assert world.messages == ["Snapshot is being used to restore a PVC"]
    assert ANN_DELETED not in notes(world.content())
    restore(world, phase="Bound")
    assert world.run_snapshot().action.value == "done"
    assert notes(world.content())[ANN_DELETED] == "yes"


def grant(world: SnapshotWorld, namespace: str = "other") -> None:
    spec = {
        "from": [{"group": "", "kind": "PersistentVolumeClaim", "namespace": namespace}],
        "to": [{"group": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot"}],
    }
    metadata = {"name": "g", "namespace": "ns"}
    world.api.add(paths.REFERENCE_GRANTS, {"metadata": metadata, "spec": spec})


def test_snt043_a_restore_into_another_namespace():
    """SND-010: Such a claim counts where a ReferenceGrant allows the restore."""
    world = bound()
    grant(world)
    spec = {"dataSourceRef": RESTORE | {"namespace": "ns"}}
    body = {"metadata": {"name": "r", "namespace": "other"}, "spec": spec}
    world.api.add(paths.CLAIMS, body | {"status": {"phase": "Pending"}})
    delete(world)
    assert world.run_snapshot().action.value == "retry"
    assert world.reasons == ["SnapshotDeletePending"]
    world.api.drop(paths.REFERENCE_GRANTS, "g", "ns")
    assert world.run_snapshot().action.value == "done"


def test_a_restore_whose_claim_is_gone_holds_the_deletion_up():
    """SNC-058 row 2, SNA-005: The provisioner's finalizer shows that the driver may still copy."""
    world = bound()
    delete(world)
    held = [*world.snapshot()["metadata"]["finalizers"], k.FINALIZER_SNAPSHOT_SOURCE]
    world.api.change(paths.SNAPSHOTS, "s", {"metadata": {"finalizers": held}}, namespace="ns")
    assert world.run_snapshot().action.value == "retry"
    assert world.reasons == ["SnapshotDeletePending"]
    assert ANN_DELETED not in notes(world.content())
    world.api.change(paths.SNAPSHOTS, "s", {"metadata": {"finalizers": held[:-1]}}, namespace="ns")
    assert world.run_snapshot().action.value == "done"
    assert notes(world.content())[ANN_DELETED] == "yes"


def test_claims_that_cannot_be_listed_count_as_restores():
    """SND-010: snapshot-controller would treat them as no restores."""
    world = bound()
    delete(world)
    world.api.fail("get", "namespaces/ns/persistentvolumeclaims", NOBODY)
    with trail.collect():
        assert world.run_snapshot().action.value == "retry"
        assert any(trail.REFUSED in note for note in trail.collected())
    assert world.reasons == ["SnapshotDeletePending"]


def test_snt044_a_content_that_the_status_does_not_name():
    """SNC-057: The content is found by its computed name."""
    world = SnapshotWorld()
    world.add_snapshot(metadata={"finalizers": [k.FINALIZER_SNAPSHOT_AS_SOURCE]})
    world.add_content()
    delete(world)
    world.run_snapshot()
    assert world.content()["metadata"]["deletionTimestamp"]


def test_snt045_a_content_that_points_elsewhere():
    """SNC-057: A content that refers to another snapshot is not deleted."""
    world = bound()
    change = {"spec": {"volumeSnapshotRef": {"uid": "u9"}}}
    world.api.change(paths.SNAPSHOT_CONTENTS, CONTENT, change)
    delete(world)
    world.run_snapshot()
    assert world.snapshot() is None
    assert ANN_DELETED not in notes(world.content())


def test_snt046_the_claim_is_gone():
    """SNC-059: A missing claim does not block the deletion."""
    world = bound("Retain")
    world.api.drop(paths.CLAIMS, "p", "ns")
    delete(world)
    world.run_snapshot()
    assert world.snapshot() is None


def test_snt047_the_claim_stays_protected_for_another_snapshot():
    """SNC-061: The claim's finalizer stays while another snapshot needs it."""
    world = bound("Retain")
    world.add_snapshot(metadata={"name": "s2", "uid": "u2"})
    world.run_snapshot(snapshot_key("ns", "s2"))
    delete(world)
    world.run_snapshot()
    assert world.snapshot() is None
    assert finalizers(world.claim()) == ["pvc-as-source-protection"]


def test_snt048_the_last_unready_snapshot_frees_the_claim_first():
    """SNC-062, SNQ-011 e: The claim's finalizer is removed before the snapshot's."""
    world = bound("Retain", is_ready=False)
    assert finalizers(world.claim()) == ["pvc-as-source-protection"]
    delete(world)
    world.run_snapshot()
    assert world.steps.reached == ["mark-deleted", "unprotect-claim", "remove-finalizers"]
    assert finalizers(world.claim()) == []
    assert world.snapshot() is None


def member(world: SnapshotWorld, *names: str, status: dict | None = None, owner: str = "") -> None:
    owners = [{"apiVersion": "groupsnapshot.storage.k8s.io/v1", "kind": "VolumeGroupSnapshot"}]
    metadata: dict = {"finalizers": list(names)}
    if owner:
        metadata["ownerReferences"] = [owners[0] | {"name": owner, "uid": "g-uid"}]
    more = {} if status is None else {"status": status}
    world.add_snapshot(metadata=metadata, **more)
    delete(world)


ALL = (
    k.FINALIZER_SNAPSHOT_AS_SOURCE,
    k.FINALIZER_SNAPSHOT_BOUND,
    k.FINALIZER_SNAPSHOT_IN_GROUP,
)


def test_snt049_snt050_members_go_with_their_group():
    """SNC-058 row 3: A member stays until its group is gone."""
    world = SnapshotWorld()
    world.api.add(paths.GROUP_SNAPSHOTS, {"metadata": {"name": "g", "namespace": "ns"}})
    member(world, *ALL, status={"volumeGroupSnapshotName": "g"})
    assert world.run_snapshot().action.value == "retry"
    assert world.reasons == ["SnapshotDeletePending"]
    assert "belongs to group snapshot ns/g" in world.messages[0]
    assert len(finalizers(world.snapshot())) == 3
    world.api.drop(paths.GROUP_SNAPSHOTS, "g", "ns")
    world.run_snapshot()
    assert world.snapshot() is None


@pytest.mark.parametrize("owner", ["", "g"])
def test_snt051_a_member_with_only_the_group_finalizer(owner):
    """SND-022: snapshot-controller never deletes it."""
    world = SnapshotWorld()
    member(world, k.FINALIZER_SNAPSHOT_IN_GROUP, owner=owner)
    if owner:
        group = {"name": "g", "namespace": "ns", "uid": "g-uid"}
        world.api.add(paths.GROUP_SNAPSHOTS, {"metadata": group})
        assert world.run_snapshot().action.value == "retry"
        world.api.drop(paths.GROUP_SNAPSHOTS, "g", "ns")
    world.run_snapshot()
    assert world.snapshot() is None


def test_a_member_goes_alone_where_groups_are_not_served():
    """SND-039: The CRDs of groups are not installed."""
    world = SnapshotWorld()
    member(world, *ALL, status={"volumeGroupSnapshotName": "g"})
    world.api.fail("get", "volumegroupsnapshots/g", UNSERVED)
    world.run_snapshot()
    assert world.snapshot() is None


@pytest.mark.parametrize("policy", ["Delete", "Retain"])
@pytest.mark.parametrize("verb", ["get", "patch", "delete"])
def test_a_content_that_is_not_served_for_a_moment_is_not_left(verb, policy):
    """While its CRD is replaced, a 404 proves nothing about the content, so the snapshot waits."""
    world = bound(policy)
    delete(world)
    world.api.fail(verb, CONTENT, UNSERVED)
    outcome = None
    with suppress(NotFoundError):  # the frame tries again
        outcome = world.run_snapshot()
    if outcome is None or outcome.action.value == "retry":
        world.run_snapshot()
    assert notes(world.content())[ANN_DELETED] == "yes"
    assert is_deleting(world.content()) is (policy == "Delete")


def test_a_snapshot_without_our_finalizers_is_left_alone():
    """SNC-058 row 1: Only another program's finalizer is left."""
    world = SnapshotWorld()
    member(world, "example.org/other")
    assert world.run_snapshot().reason == "nothing to do"
    assert world.steps.reached == []


def test_a_content_that_cannot_be_deleted():
    """SNC-058 row 5: An event reports it, and the snapshot keeps its finalizers."""
    world = bound()
    delete(world)
    world.api.fail("delete", CONTENT, NOBODY)
    with trail.collect():
        assert world.run_snapshot().action.value == "retry"
        # `explain` names the missing permission; the event has upstream's text and does not.
        assert any(trail.REFUSED in note for note in trail.collected())
    assert world.reasons == ["SnapshotContentObjectDeleteError"]
    assert finalizers(world.snapshot()) == [AS_SOURCE, BOUND]


def test_a_claim_that_cannot_be_freed_keeps_the_snapshot():
    """SNC-058 row 6: While the snapshot exists, an event is enough (SNC-020 row 1)."""
    world = bound("Retain", is_ready=False)
    delete(world)
    world.api.fail("patch", "persistentvolumeclaims/p", NOBODY)
    with trail.collect():
        assert world.run_snapshot().action.value == "retry"
        assert any(trail.REFUSED in note for note in trail.collected())
    assert world.reasons == ["ErrorPVCFinalizer"]
    assert world.snapshot() is not None
    living = bound(is_ready=False)
    change = {"status": {"snapshotHandle": "sh", "readyToUse": True}}
    living.api.change(paths.SNAPSHOT_CONTENTS, CONTENT, change)
    living.api.fail("patch", "persistentvolumeclaims/p", NOBODY)
    assert living.run_snapshot().action.value == "done"
    assert "ErrorPVCFinalizer" in living.reasons


def test_snt096_the_claim_is_looked_at_by_one_snapshot_at_a_time():
    """SND-018: The finalizer exists exactly while a snapshot that has begun is not ready."""
    world = bound("Retain", is_ready=False)
    delete(world)
    world.queue.busy["pvc:ns/p"] = Mode.EXCLUSIVE
    outcome = world.run_snapshot()
    assert (outcome.action.value, outcome.lock.name) == ("blocked", "pvc:ns/p")
    assert finalizers(world.claim()) == ["pvc-as-source-protection"]
    world.queue.busy.clear()
    # A second snapshot is created in the meantime: its own reconcile adds the finalizer under the
    # lock.
    world.add_snapshot(metadata={"name": "s2", "uid": "u2"})
    world.run_snapshot()
    assert finalizers(world.claim()) == []
    world.run_snapshot(snapshot_key("ns", "s2"))
    assert finalizers(world.claim()) == ["pvc-as-source-protection"]


def test_the_deletion_is_told_to_the_content_by_its_own_pass_too():
    """SNC-073 (6): The content's own reconcile sets the annotation too."""
    world = bound()
    delete(world)
    world.run_binding()
    assert notes(world.content())[ANN_DELETED] == "yes"


def test_a_snapshot_that_is_gone():
    """SNC-003: A key of a deleted object needs no work."""
    assert SnapshotWorld().run_snapshot().reason == "gone"
    assert SnapshotWorld().run_binding().reason == "gone"

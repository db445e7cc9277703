"""Reconciles of a snapshot: the order of steps, other programs' writes, and outcomes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.snapshot_world import (
    ANN_DELETED,
    CONTENT,
    DRIVER,
    SnapshotWorld,
    error_of,
    finalizers,
    notes,
)
from tests.unit.controllers.snapshot_controller.test_deletion import RESTORE, bound, delete
from workers import constants as k
from workers.controllers.snapshot_controller import vanishing
from workers.controllers.snapshot_controller.explain import explain as explain_snapshot
from workers.controllers.snapshotter.explain import explain as explain_content
from workers.engine.live import WRITE_TRIES
from workers.explain import generic
from workers.explain.facts import Cause
from workers.explain.generic import Explained
from workers.kube import paths
from workers.kube.errors import ConflictError, ForbiddenError, ServerError, Unreachable
from workers.observability import trail
from workers.translate.fields import is_deleting

HELD = [k.FINALIZER_CLAIM_AS_SOURCE]
FIELD = "boundVolumeSnapshotContentName"
CONFLICT = ConflictError(409, "Conflict", "the object has been modified")
BOUND = "volumesnapshot-bound-protection"


def new_world(**settings: Any) -> SnapshotWorld:
    world = SnapshotWorld(**settings)
    world.add_source()
    world.add_snapshot()
    return world


def given_world(content_class: str | None = "c1", **ref: Any) -> SnapshotWorld:
    world = SnapshotWorld()
    spec = {"volumeSnapshotRef": {"namespace": "ns", "name": "s"} | ref}
    world.add_given(
        metadata={"name": "given"}, spec=spec | {"volumeSnapshotClassName": content_class}
    )
    world.add_snapshot(spec={"source": {"volumeSnapshotContentName": "given"}})
    return world


# Locks and conflicts.


@pytest.mark.parametrize(
    ("step", "held"), [("create-content", {"pvc:ns/p", "pv1"}), ("write-status", {"pv1"})]
)
def test_a_claims_lock_is_given_back_once_the_content_exists(step, held):
    """SNQ-003, SNC-061: The lock is needed until the content exists and the snapshot counts."""
    world = new_world()
    seen: dict[str, set[str]] = {}
    reach = world.steps.reach

    def look(name: str, lease: Any) -> None:
        seen[name] = set(world.queue.held)
        reach(name, lease)

    world.steps.reach = look  # type: ignore[method-assign]
    world.run_snapshot()
    assert seen["protect-claim"] == {"pvc:ns/p", "pv1"}
    assert seen[step] == held
    delete(world)
    world.run_snapshot()
    assert seen["unprotect-claim"] == {"pvc:ns/p"}
    assert seen["remove-finalizers"] == set()


def test_conflicts_without_end_are_no_error_of_the_snapshot():
    """SNQ-006: A reconcile tries each write a few times, each after a new read."""
    world = new_world()
    world.api.fail("patch", "volumesnapshots/s", *[CONFLICT] * WRITE_TRIES)
    with pytest.raises(ConflictError):
        world.run_snapshot()
    assert world.steps.reached == ["add-finalizers"] * WRITE_TRIES
    assert world.reasons == []


@pytest.mark.parametrize(
    ("resource", "name", "path"),
    [(paths.CLAIMS, "p", "persistentvolumeclaims/p"), (paths.SNAPSHOTS, "s", "volumesnapshots/s")],
)
def test_a_finalizer_that_comes_meanwhile_stays(resource, name, path):
    """SND-003, SND-015: The patch has the whole list and requires the version that was read."""
    world = new_world()
    change = {"metadata": {"finalizers": ["example.org/other"]}}
    world.api.before("patch", path, lambda: world.api.change(resource, name, change, "ns"))
    assert world.run_snapshot().action.value == "done"
    found = finalizers(world.api.of(resource, name, "ns"))
    ours = "pvc-as-source-protection" if name == "p" else "volumesnapshot-as-source-protection"
    assert found[:2] == ["other", ours]
    assert len(set(found)) == len(found)


@pytest.mark.parametrize("is_going", [False, True])
def test_what_another_one_wrote_first_is_not_written_again(is_going):
    """SNC-060, SNC-062: A Go controller changed the claim's finalizer first."""
    world = bound("Retain", is_ready=False) if is_going else new_world()
    wanted = [] if is_going else HELD
    change = {"metadata": {"finalizers": wanted}}
    if is_going:
        delete(world)
    claim = "persistentvolumeclaims/p"
    world.api.before("patch", claim, lambda: world.api.change(paths.CLAIMS, "p", change, "ns"))
    assert world.run_snapshot().action.value == "done"
    assert world.claim()["metadata"]["finalizers"] == wanted
    assert len([one for one in world.api.writes if one.path.endswith(claim)]) == 1 + is_going


# Errors.


def test_each_error_of_a_snapshot_is_there_for_explain():
    """SNC-031: Event and status are written once, but each attempt is added to the history."""
    world = new_world()
    world.add_claim(phase="Pending")
    for _ in range(3):
        with trail.collect():
            world.run_snapshot()
            found = [note for note in trail.collected() if "not yet bound" in note]
        assert len(found) == 1
    assert len(world.events.seen) == 1


def test_what_went_well_leaves_no_note():
    """A Normal event is not an error."""
    world = new_world()
    with trail.collect():
        world.run_snapshot()
        assert trail.collected() == []
    assert world.reasons == ["CreatingSnapshot"]


def test_an_error_takes_nothing_of_the_status_away():
    """SNC-031: Name, time and size stay."""
    world = bound()
    known = world.snapshot()["status"]
    world.api.drop(paths.SNAPSHOT_CONTENTS, CONTENT)
    world.run_snapshot()
    now = world.snapshot()["status"]
    assert now.pop("error")["message"] == "VolumeSnapshotContent is missing"
    assert now == known | {"readyToUse": False}


def test_a_group_that_nobody_has_leaves_readiness_alone():
    """SNC-031, SNC-070: Nothing was copied, so readyToUse is not written."""
    world = new_world()
    handles = {"snapshotHandle": "sh", "volumeGroupSnapshotHandle": "gh", "readyToUse": True}
    world.add_content(status=handles)
    assert world.run_snapshot().action.value == "retry"
    assert set(world.snapshot()["status"]) == {"error"}
    assert error_of(world.snapshot()).startswith("Snapshot status update failed, ")


# Reasons, and reconciles without work.


def test_what_a_pass_says_of_its_end():
    """The reasons appear in logs and metrics."""
    world = new_world()
    said = [world.run_snapshot().reason, world.run_binding().reason]
    world.api.change(paths.SNAPSHOT_CONTENTS, CONTENT, {"status": {"readyToUse": True}})
    said += [world.run_snapshot().reason, world.run_snapshot().reason, world.run_binding().reason]
    delete(world)
    said += [world.run_binding().reason, world.run_snapshot().reason, world.run_snapshot().reason]
    world.api.drop(paths.SNAPSHOT_CONTENTS, CONTENT)
    said += [world.run_snapshot().reason, world.run_snapshot().reason]
    assert said == [
        *("waits for its content", "nothing to do", "ready", "ready", "nothing to do"),
        *("marked as deleted", "waits for its content", "waits for its content"),
        *("released", "gone"),
    ]


def test_a_second_look_at_a_deletion_does_nothing():
    """SNC-058: Annotating, deleting and removing finalizers happen once."""
    world = bound()
    delete(world)
    world.run_snapshot()
    reached, writes = list(world.steps.reached), len(world.api.writes)
    assert world.run_snapshot().action.value == "done"
    assert (world.steps.reached, len(world.api.writes)) == (reached, writes)


@pytest.mark.parametrize("is_ready", [True, False])
def test_a_claim_that_is_still_held_is_freed_by_a_ready_snapshot(is_ready):
    """SNC-020 row 1: The claim is released before anything else."""
    world = bound(is_ready=is_ready)
    world.api.change(paths.CLAIMS, "p", {"metadata": {"finalizers": HELD}}, "ns")
    world.run_snapshot()
    assert finalizers(world.claim()) == ["pvc-as-source-protection"] * (not is_ready)


def test_a_content_that_others_finish_is_left_to_them():
    """SNC-073: A deleted content gets no finalizer.

    It gets no annotation either before its snapshot is deleted.
    """
    world = new_world()
    metadata = {"finalizers": ["example.org/other"]}
    world.add_content(metadata=metadata)
    world.api.mark_deleted(paths.SNAPSHOT_CONTENTS, CONTENT)
    assert world.run_binding().reason == "nothing to do"
    assert finalizers(world.content()) == ["other"]
    assert notes(world.content()) == {}


# Pre-provisioned contents.


@pytest.mark.parametrize(
    ("content_class", "uid", "is_written"),
    [
        ("c1", "u1", False),
        (None, "u1", True),
        ("c1", "", True),
        (None, "", True),
        ("c9", "u1", False),
    ],
)
def test_a_given_content_gets_what_it_lacks(content_class, uid, is_written):
    """SNC-040, SND-020: The UID and the class are written once."""
    world = given_world(content_class, **({"uid": uid} if uid else {}))
    for _ in range(2):
        assert world.run_snapshot().action.value == "done"
        assert world.steps.reached.count("bind-content") == is_written
    spec = world.content("given")["spec"]
    assert spec["volumeSnapshotRef"]["uid"] == "u1"
    assert spec["volumeSnapshotClassName"] == ("c9" if content_class == "c9" else "c1")


def test_a_given_content_that_nobody_bound_is_not_deleted():
    """SNC-057: An empty UID refers to no snapshot."""
    world = given_world()
    world.api.change(
        paths.SNAPSHOTS, "s", {"metadata": {"finalizers": [k.FINALIZER_SNAPSHOT_AS_SOURCE]}}, "ns"
    )
    world.api.change(paths.SNAPSHOTS, "s", {"status": {FIELD: "given"}}, "ns")
    delete(world)
    assert world.run_snapshot().reason == "released"
    assert ANN_DELETED not in notes(world.content("given"))
    assert not is_deleting(world.content("given"))


# Deletion.


@pytest.mark.parametrize("is_replaced", [False, True])
def test_a_content_that_goes_before_it_is_deleted(is_replaced):
    """SNC-058 row 5: A content that is already gone is no error; a new one of its name stays."""
    world = bound()
    delete(world)

    def goes() -> None:
        world.api.drop(paths.SNAPSHOT_CONTENTS, CONTENT)
        if is_replaced:
            world.add_content(metadata={"uid": "another"})

    world.api.before("delete", CONTENT, goes)
    assert world.run_snapshot().reason == "waits for its content"
    assert world.reasons == []
    assert (world.content() is not None) is is_replaced
    assert not is_replaced or not is_deleting(world.content())


def test_a_restore_does_not_hold_a_snapshot_without_content():
    """SNC-058 row 2: Without a content a restore has no data to read."""
    world = bound()
    held = [*world.snapshot()["metadata"]["finalizers"], k.FINALIZER_SNAPSHOT_SOURCE]
    world.api.change(paths.SNAPSHOTS, "s", {"metadata": {"finalizers": held}}, "ns")
    world.api.drop(paths.SNAPSHOT_CONTENTS, CONTENT)
    delete(world)
    assert world.run_snapshot().reason == "released"
    assert world.reasons == []


@pytest.mark.parametrize(
    ("kind", "name", "source", "is_pending"),
    [
        ("VolumeSnapshot", "s", "PersistentVolumeClaim", True),
        ("VolumeSnapshot", "", "PersistentVolumeClaim", True),
        ("VolumeSnapshot", "other", "PersistentVolumeClaim", False),
        ("Secret", "s", "PersistentVolumeClaim", False),
        ("VolumeSnapshot", "s", "Gateway", False),
    ],
)
def test_which_grants_may_lead_to_a_restore(kind, name, source, is_pending):
    """SND-010: Grants from claims count if they are to this snapshot or to all snapshots."""
    world = bound()
    to = {"group": "snapshot.storage.k8s.io", "kind": kind} | ({"name": name} if name else {})
    spec = {"from": [{"kind": source, "namespace": "other"}], "to": [to]}
    metadata = {"name": "g", "namespace": "ns"}
    world.api.add(paths.REFERENCE_GRANTS, {"metadata": metadata, "spec": spec})
    body = {"dataSourceRef": RESTORE | {"namespace": "ns"}}
    claim = {"metadata": {"name": "r", "namespace": "other"}, "spec": body}
    world.api.add(paths.CLAIMS, claim | {"status": {"phase": "Pending"}})
    delete(world)
    assert world.run_snapshot().action.value == ("retry" if is_pending else "done")


# A snapshot that vanishes (SND-041).


class Vanishing(SnapshotWorld):
    """The snapshot is gone before its status is written; the pauses are recorded."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, error: Exception | None = None) -> None:
        super().__init__()
        self.pauses: list[float] = []
        monkeypatch.setattr(vanishing, "PAUSE_SECONDS", 1.0)
        monkeypatch.setattr(vanishing, "time", SimpleNamespace(sleep=self.pauses.append))
        self.add_source()
        self.add_snapshot()
        self.api.before("patch", "volumesnapshots/s/status", lambda: self.vanish(error))

    def vanish(self, error: Exception | None) -> None:
        self.api.drop(paths.SNAPSHOTS, "s", "ns")
        self.happens()
        if error is not None:
            raise error

    def happens(self) -> None:
        """Do nothing more by default."""


def test_its_content_is_looked_for_at_growing_times(monkeypatch):
    """It is read at once, then after 1, 3 and 7 s; after that an operator must delete it."""
    world = Vanishing(monkeypatch)
    away = [ServerError(500, "", "etcd")] * 4
    world.happens = lambda: world.api.fail("get", "volumesnapshots/s", *away)  # type: ignore[method-assign]
    assert world.run_snapshot().reason == "gone meanwhile"
    assert world.pauses == [0.0, 1.0, 3.0, 7.0]
    assert not is_deleting(world.content())


@pytest.mark.parametrize("state", ["there", "gone too", "given"])
def test_one_look_is_enough_when_it_tells(monkeypatch, state):
    """One read is enough, also if nothing has to be deleted; a pre-provisioned content stays."""
    world = Vanishing(monkeypatch)
    handle = {"spec": {"source": {"snapshotHandle": "sx", "volumeHandle": None}}}
    happens = {
        "there": lambda: None,
        "gone too": lambda: world.api.drop(paths.SNAPSHOT_CONTENTS, CONTENT),
        "given": lambda: world.api.change(paths.SNAPSHOT_CONTENTS, CONTENT, handle),
    }
    world.happens = happens[state]  # type: ignore[method-assign]
    world.run_snapshot()
    assert world.pauses == [0.0]
    found = world.content()
    assert (found is None) is (state == "gone too")
    assert found is None or is_deleting(found) is (state == "there")
    assert found is None or (ANN_DELETED in notes(found)) is (state == "there")


@pytest.mark.parametrize("error", [Unreachable("away"), ServerError(500, "", "no")], ids=str)
def test_only_an_answer_is_a_reason_to_look(monkeypatch, error):
    """Without an API server the content cannot be read; the engine retries."""
    world = Vanishing(monkeypatch, error)
    with pytest.raises(type(error)):
        world.run_snapshot()
    assert world.pauses == ([] if isinstance(error, Unreachable) else [0.0])
    assert is_deleting(world.content()) is not isinstance(error, Unreachable)


def test_a_status_that_may_not_be_written_is_told_once():
    """SNC-031: The error cannot be stored in the status either, so only one event reports it."""
    world = new_world()
    error = ForbiddenError(403, "Forbidden", "no")
    world.api.fail("patch", "volumesnapshots/s/status", error, error)
    assert world.run_snapshot().action.value == "retry"
    assert world.reasons == ["CreatingSnapshot", "SnapshotStatusUpdateFailed"]


# Explanations.


@pytest.mark.parametrize(
    ("noun", "queue", "is_there", "code"),
    [
        ("content", "paused", True, "paused"),
        ("content", "queued", True, "failed"),
        ("content", "queued", False, "queued"),
        ("group-content", "queued", True, "queued"),
        ("snapshot", "paused", True, "paused"),
        ("snapshot", "queued", True, "failed"),
        ("snapshot", "queued", False, "queued"),
        ("group-snapshot", "queued", True, "queued"),
    ],
)
def test_whose_cause_is_told(monkeypatch, noun, queue, is_there, code):
    """The queue's cause is shown if it holds the key; otherwise the object's error is shown."""
    world = SnapshotWorld()
    failed = {"status": {"error": {"message": "no"}}}
    if is_there:
        world.add_content(**failed)
        world.add_snapshot(**failed)

    def of_queue(_tools: Any, found: Any, *, namespace: str, name: str) -> Explained:
        del namespace, name
        return Explained(Cause(queue if found.word == noun else "queued", "x", until=7.0))

    monkeypatch.setattr(generic, "explain", of_queue)
    explain = explain_content if noun.endswith("content") else explain_snapshot
    tools = world.tools(DRIVER)
    found = explain(tools, noun, "ns", CONTENT if noun.endswith("content") else "s").cause
    assert (found.code, found.until) == (code, 7.0)


@pytest.mark.parametrize(
    ("status", "content", "code"),
    [
        ({}, CONTENT, "paused"),
        ({FIELD: "other"}, "other", "paused"),
        ({FIELD: "other"}, CONTENT, "queued"),
        ({"readyToUse": True}, CONTENT, "ready"),
    ],
)
def test_a_snapshot_is_held_by_what_holds_the_content_it_is_bound_to(
    monkeypatch, status, content, code
):
    """The status's content is checked first; a ready snapshot waits for nothing."""
    world = SnapshotWorld()
    world.add_snapshot(status=status)
    world.add_content(metadata={"name": content})

    def of_queue(_tools: Any, found: Any, **_: str) -> Explained:
        return Explained(Cause("paused" if found.word == "content" else "queued", "x"))

    monkeypatch.setattr(generic, "explain", of_queue)
    tools = world.tools(DRIVER)
    assert explain_snapshot(tools, "snapshot", "ns", "s").cause.code == code

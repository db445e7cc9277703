"""What a person is told about a snapshot or content that waits."""

from __future__ import annotations

import pytest

from tests.support.snapshot_world import ANN_CREATED, ANN_DELETED, content_body
from workers import constants as k
from workers.explain.snapshots import content_cause, snapshot_cause

GOING = {"deletionTimestamp": "t"}


def snapshot(**changes):
    return {"metadata": {"name": "s", "namespace": "ns", "uid": "u1"}, **changes}


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({}, "not-made"),
        ({"metadata": {"finalizers": []}}, "no-finalizer"),
        ({"status": {"snapshotHandle": "h"}}, "uploading"),
        ({"status": {"error": {"message": "full"}}}, "failed"),
        ({"status": {"readyToUse": True}}, "ready"),
        ({"metadata": GOING}, "deleted-by-hand"),
        ({"metadata": GOING | {"annotations": {ANN_DELETED: "yes"}}}, "deleting"),
        (
            {"metadata": GOING | {"annotations": {ANN_DELETED: "yes", ANN_CREATED: "yes"}}},
            "being-created",
        ),
        (
            {
                "metadata": GOING | {"annotations": {ANN_DELETED: "yes"}},
                "status": {"error": {"message": "has a clone"}},
            },
            "delete-failed",
        ),
    ],
)
def test_contents(changes, code):
    """The first cause that holds."""
    assert content_cause(content_body(**changes)).code == code


def test_a_content_deleted_by_hand_names_its_snapshot():
    """What to do about it."""
    assert "ns/s" in content_cause(content_body(metadata=GOING)).advice


@pytest.mark.parametrize(
    ("item", "content", "code"),
    [
        (snapshot(), None, "no-content"),
        (snapshot(), content_body(), "not-made"),
        (snapshot(status={"readyToUse": True}), content_body(), "ready"),
        (snapshot(status={"error": {"message": "no class"}}), None, "failed"),
        ({"metadata": {"name": "s", **GOING}}, content_body(), "waits-for-content"),
        ({"metadata": {"name": "s", **GOING}}, None, "deleting"),
        (
            {"metadata": {"name": "s", **GOING, "finalizers": [k.FINALIZER_SNAPSHOT_SOURCE]}},
            content_body(),
            "being-restored",
        ),
        (
            {"metadata": {"name": "s", **GOING}, "status": {"volumeGroupSnapshotName": "g"}},
            content_body(),
            "in-group",
        ),
    ],
)
def test_snapshots(item, content, code):
    """The first cause that holds; a content's cause is its snapshot's."""
    assert snapshot_cause(item, content).code == code

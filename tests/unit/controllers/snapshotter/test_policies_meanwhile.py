"""The policy changes just before the finalizer is removed: the conflict leads to a new decision.

SNQ-006. The event of that change must not be mistaken for the event of an own write (COR-15): its
version is older than the one that the reconcile reports to the queue, so it would be dropped.
"""

from __future__ import annotations

import pytest

from tests.support.snapshot_world import ANN_DELETED, CONTENT, SnapshotWorld
from workers import constants as k
from workers.kube import paths

STATUS = {"snapshotHandle": "sh", "readyToUse": True}


@pytest.mark.parametrize("others", [[], ["of/another"]], ids=["ours alone", "another finalizer"])
def test_a_policy_that_becomes_delete_before_the_finalizer_goes(others):
    world = SnapshotWorld()
    metadata = {
        "finalizers": [k.FINALIZER_CONTENT, *others],
        "annotations": {ANN_DELETED: "yes"},
        "deletionTimestamp": "2026-01-01T00:00:00Z",
    }
    world.add_content(metadata=metadata, spec={"deletionPolicy": "Retain"}, status=dict(STATUS))
    versions: list[int] = []

    def user_changes() -> None:
        change = {"spec": {"deletionPolicy": "Delete"}}
        made = world.api.change(paths.SNAPSHOT_CONTENTS, CONTENT, change)
        versions.append(int(made["metadata"]["resourceVersion"]))

    world.api.before("patch", CONTENT, user_changes)
    outcome = world.run_content()
    for _ in range(5):  # as in the queue, the event of the change comes after the reconcile
        is_told = outcome.action.value != "done" or int(outcome.known or 0) < versions[0]
        if not is_told:
            break
        outcome = world.run_content()
    assert "DeleteSnapshot" in world.client.methods, "policy Delete, and its snapshot stays"
    content = world.content()
    assert content is None or k.FINALIZER_CONTENT not in content["metadata"]["finalizers"]

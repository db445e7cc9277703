"""A webhook answers the finalizer's removal with 409 for hours, and the retries back off."""

from __future__ import annotations

from contextlib import suppress

import pytest

from tests.support.snapshot_world import ANN_DELETED, CONTENT, SnapshotWorld
from workers import constants as k
from workers.kube import paths
from workers.kube.errors import ApiError, ConflictError

BUSY = ConflictError(409, "Conflict", "a webhook says: not now")


def new_going(policy: str) -> SnapshotWorld:
    world = SnapshotWorld()
    world.client.respond({"DeleteSnapshot": [{}]})
    metadata = {
        "finalizers": [k.FINALIZER_CONTENT],
        "annotations": {ANN_DELETED: "yes"},
        "deletionTimestamp": "2026-01-01T00:00:00Z",
    }
    status = {"snapshotHandle": "sh", "readyToUse": True}
    world.add_content(metadata=metadata, spec={"deletionPolicy": policy}, status=status)
    return world


@pytest.mark.parametrize("policy", ["Retain", "Delete"])
@pytest.mark.parametrize("source", ["dynamic", "given"])
def test_a_webhook_that_answers_conflict_for_ever_makes_no_hot_loop(policy, source):
    world = new_going(policy)
    if source == "given":
        world.api.change(
            paths.SNAPSHOT_CONTENTS,
            CONTENT,
            {"spec": {"source": {"volumeHandle": None, "snapshotHandle": "sh"}}},
        )
    patch = world.api.patch

    def refusing(path, body, content_type):
        if "finalizers" in (body.get("metadata") or {}):
            raise BUSY
        return patch(path, body, content_type)

    world.api.patch = refusing
    at_once = 0
    for _ in range(10):
        with suppress(ApiError):  # the engine would back off
            outcome = world.run_content()
            at_once += outcome.action.value == "wait" and outcome.delay_seconds == 0
    assert at_once <= 3, f"hot loop; DeleteSnapshot {len(world.client.methods)} times"

"""A ConfigMap copy that outlives its attempt does not delete the user's snapshot.

A reported snapshot belongs to the user. A worker that froze in its call, or a Go sidecar that
finished the attempt, leaves a copy that nothing else refers to.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.snapshot_world import CONTENT, CONTENT_KEY
from tests.unit.controllers.snapshotter import test_group_contents as groups
from tests.unit.controllers.snapshotter.test_crash_points import TIMEOUT, Life
from workers import constants as k
from workers.controllers.snapshotter.groups import sync_group_content
from workers.controllers.snapshotter.intent import copy_name
from workers.controllers.snapshotter.sync import sync_content
from workers.errors import LeaseLost
from workers.kube import paths


def copy_of(world: Any, key: Any = CONTENT_KEY) -> Any:
    return world.api.of(paths.CONFIG_MAPS, copy_name(key), "fleet")


def frozen_in_its_call(world: Any, key: Any, sync: Any, meanwhile: Any) -> None:
    """Let a worker lose its lease during the call; its successor finishes in `meanwhile`."""
    lease, call = world.lease(key), world.client.call

    def and_lose(*args: Any, **kwargs: Any) -> Any:
        answer = call(*args, **kwargs)
        world.client.call = call
        lease.is_lost = True
        meanwhile()
        return answer

    world.client.call = and_lose
    with pytest.raises(LeaseLost):
        sync(world.context, world.driver, key, lease)


def retained(life: Life) -> None:
    life.world.api.change(paths.SNAPSHOT_CONTENTS, CONTENT, {"spec": {"deletionPolicy": "Retain"}})


def frozen_life() -> Life:
    life = Life([])
    retained(life)
    frozen_in_its_call(life.world, CONTENT_KEY, sync_content, life.live)
    assert life.world.content()["status"]["readyToUse"] is True
    return life


def test_a_copy_of_an_attempt_that_a_successor_ended_is_removed_by_the_next_pass():
    life = frozen_life()
    assert copy_of(life.world) is not None  # written by the frozen worker for the next one
    life.world.run_content()  # the watcher adds the key of the copy (watcher.intents)
    assert copy_of(life.world) is None


def test_a_retained_snapshot_is_not_deleted_by_an_old_copy():
    life = frozen_life()
    life.world.run_content()
    life.user_deletes()  # snapshot and content are deleted, policy Retain, without force
    life.live()
    assert life.world.content() is None
    life.world.run_content()  # the watcher's next list of copies
    assert life.storage.snapshots, "what the policy retains is gone"


def test_a_retained_group_is_not_deleted_by_an_old_copy():
    ready = {"group_snapshot": groups.MADE["group_snapshot"] | {"ready_to_use": True}}
    world = groups.dynamic_world(ready, policy="Retain")
    frozen_in_its_call(world, groups.KEY, sync_group_content, lambda: groups.run(world))
    groups.run(world)
    groups.user_deletes(world)
    world.passed += 100.0  # after this time the frozen call cannot make anything more
    groups.run(world)
    assert groups.content(world) is None
    groups.run(world)
    assert "DeleteVolumeGroupSnapshot" not in world.client.methods


def test_a_snapshot_that_the_go_sidecar_reported_is_not_deleted_by_an_old_copy():
    """The call timed out; the Go sidecar got the Lease, finished and released the content.

    Then csi-fleet gets the Lease back.
    """
    life = Life([("after", TIMEOUT)])
    retained(life)
    life.world.run_content()
    assert copy_of(life.world) is not None
    status = {"snapshotHandle": "id-1", "readyToUse": True}
    life.world.api.change(
        paths.SNAPSHOT_CONTENTS,
        CONTENT,
        {"metadata": {"annotations": {k.ANN_BEING_CREATED: None}}, "status": status},
    )
    life.world.api.drop(paths.SNAPSHOT_CONTENTS, CONTENT)  # released by the Go sidecar
    life.redis_is_lost()  # the watcher drops key and state of a reported content (`Forget`)
    life.world.run_content()
    assert life.storage.snapshots, "what the policy retains is gone"

"""A reported snapshot belongs to the user: no record of csi-fleet deletes it (SNS-010).

Only a snapshot that was never reported is deleted without the user's request.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest

from tests.support.fake_context import Death
from tests.support.snapshot_world import CONTENT
from tests.unit.controllers.snapshotter.test_crash_points import Life
from workers.errors import QueueUnavailable
from workers.kube import paths
from workers.kube.errors import InvalidError


def new_life(policy: str) -> Life:
    life = Life([])
    change = {"spec": {"deletionPolicy": policy}}
    life.world.api.change(paths.SNAPSHOT_CONTENTS, CONTENT, change)
    return life


def dies_after(life: Life, step: str, number: int = 1) -> None:
    """Let the process die right after the n-th step of this name in a reconcile."""
    steps, reach, left = life.world.steps, life.world.steps.reach, [number]

    def told(name: str, lease: Any) -> None:
        if left[0] <= 0:
            raise Death(name)
        reach(name, lease)
        left[0] -= name == step

    steps.reach = told  # type: ignore[method-assign]
    try:
        life.world.run_content()
    finally:
        steps.reach = reach  # type: ignore[method-assign]


def is_reported(life: Life) -> bool:
    return (life.world.content()["status"] or {}).get("snapshotHandle") == "id-1"


# Deletions without force, where only the policy counts.
def test_a_retained_snapshot_outlives_a_death_after_its_finalizer():
    """One death leaves the intent of the call; the object is deleted just before another death."""
    life = new_life("Retain")
    with pytest.raises(Death):  # reported; the intent is open and has the handle
        dies_after(life, "write-status")
    assert is_reported(life)
    assert life.world.queue.marks
    life.user_deletes()
    while life.world.content() is not None:
        with suppress(Death):  # no step follows, since the finalizer is removed last
            dies_after(life, "remove-finalizer")
    life.live()
    assert "DeleteSnapshot" not in life.world.client.methods
    assert set(life.storage.snapshots.values()) == {"id-1"}, "policy Retain, reported, deleted"


def test_a_retained_snapshot_outlives_a_redis_that_is_away_twice():
    """No process dies here: Redis fails both times that the intent should be dropped."""
    life = new_life("Retain")
    mark, refused = life.world.queue.mark, [False]

    def unwilling(lease: Any, record: Any) -> None:
        if refused[0]:
            raise QueueUnavailable("Redis does not answer")
        mark(lease, record)

    life.world.queue.mark = unwilling  # type: ignore[method-assign]
    reach = life.world.steps.reach

    def told(name: str, lease: Any) -> None:
        reach(name, lease)
        refused[0] = refused[0] or name in {"write-status", "remove-finalizer"}

    life.world.steps.reach = told  # type: ignore[method-assign]
    with pytest.raises(QueueUnavailable):
        life.world.run_content()
    refused[0] = False
    assert is_reported(life)
    life.user_deletes()
    while life.world.content() is not None:
        with suppress(QueueUnavailable):
            life.world.run_content()
        refused[0] = False
    life.live()
    assert "DeleteSnapshot" not in life.world.client.methods
    assert set(life.storage.snapshots.values()) == {"id-1"}, "policy Retain, reported, deleted"


# The object is removed by force, as backup tools do with policy Retain.
@pytest.mark.parametrize("policy", ["Retain", "Delete"])
def test_forced_between_the_report_and_the_end_of_the_record(policy):
    """Within one reconcile, the status is written and the object is gone before the annotation."""
    life = new_life(policy)
    reach = life.world.steps.reach

    def told(name: str, lease: Any) -> None:
        if name == "unmark-created" and life.world.content() is not None:
            assert is_reported(life)
            life.somebody_forces()
        reach(name, lease)

    life.world.steps.reach = told  # type: ignore[method-assign]
    life.world.run_content()
    life.world.steps.reach = reach  # type: ignore[method-assign]
    life.live()
    assert "DeleteSnapshot" not in life.world.client.methods
    assert set(life.storage.snapshots.values()) == {"id-1"}


@pytest.mark.parametrize("policy", ["Retain", "Delete"])
def test_forced_while_a_webhook_refuses_the_end_of_the_announcement(policy):
    """For minutes or hours, the status is ready and the annotation cannot be removed."""
    life = new_life(policy)
    patch = life.world.api.patch

    def refusing(path: str, body: Any, content_type: str) -> Any:
        is_end = None in (body.get("metadata", {}).get("annotations") or {}).values()
        if is_end and not path.endswith("/status"):
            raise InvalidError(422, "Invalid", "a webhook says no")
        return patch(path, body, content_type)

    life.world.api.patch = refusing  # type: ignore[method-assign]
    for _ in range(3):
        with suppress(InvalidError):
            life.world.run_content()
    life.world.api.patch = patch  # type: ignore[method-assign]
    assert is_reported(life)
    life.somebody_forces()
    life.live()
    assert "DeleteSnapshot" not in life.world.client.methods
    assert set(life.storage.snapshots.values()) == {"id-1"}

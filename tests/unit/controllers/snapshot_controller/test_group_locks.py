"""Deleting a group and restoring from its members exclude each other."""

from __future__ import annotations

from tests.unit.controllers.snapshot_controller.test_group_passes import OWN, delete, told
from tests.unit.controllers.snapshot_controller.test_groups import content, run_content, run_group
from workers.queue import locks
from workers.queue.locks import Mode
from workers.translate.fields import is_deleting


def test_no_group_is_deleted_while_a_volume_is_made_from_a_member():
    """As with single snapshots (`locks.snapshot_content`), the two calls never overlap."""
    world = told()
    run_group(world)
    delete(world)
    run_group(world)
    assert is_deleting(content(world))
    world.queue.busy[locks.snapshot_content(OWN).name] = Mode.SHARED  # the provisioner's reconcile
    outcome = run_content(world)
    assert "DeleteVolumeGroupSnapshot" not in world.client.methods
    assert outcome.action.value == "blocked"

"""Snapshots are made and deleted even if ConfigMaps cannot be written or deleted."""

from __future__ import annotations

import pytest

from tests.unit.controllers.snapshotter.test_crash_points import TIMEOUT, Life
from workers.kube.errors import ForbiddenError

NO = ForbiddenError(403, "Forbidden", "configmaps is forbidden")


@pytest.mark.parametrize("takes_copies", [True, False])
def test_a_snapshot_goes_although_no_config_map_may_be_deleted(takes_copies):
    """An old role without this permission, a webhook or a policy can be the reason."""
    life = Life([TIMEOUT])
    kube = life.world.context.effects.kube

    def refuse(*_args, **_kwargs):
        raise NO

    kube.delete_config_map = refuse
    if not takes_copies:
        kube.apply_config_map = refuse
    for _ in range(5):
        life.world.run_content()
    assert life.world.content()["status"]["readyToUse"] is True
    life.user_deletes()
    for _ in range(20):
        life.world.run_content()
    assert life.world.content() is None, "Terminating forever"
    assert life.storage.snapshots == {}

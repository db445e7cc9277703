"""SND-004: A class that is created again for another driver blocks no deletion of a content."""

from __future__ import annotations

import pytest

from tests.unit.controllers.snapshotter.test_crash_points import TIMEOUT, Life


@pytest.mark.parametrize("plans", [[], [("after", TIMEOUT)]], ids=["ready", "open call"])
def test_a_snapshot_is_deleted_whatever_became_of_its_class(plans):
    life = Life(plans)
    life.world.run_content()
    assert life.storage.snapshots
    life.world.add_class(driver="other.test")
    life.user_deletes()
    for _ in range(10):
        life.world.run_content()
    assert life.world.content() is None, "Terminating forever"
    assert life.storage.snapshots == {}

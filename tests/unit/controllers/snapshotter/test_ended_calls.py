"""Whatever interrupts a call leaves an intent copy, not only a driver's error (M-010)."""

from __future__ import annotations

import pytest

from csi_client import errors
from csi_client.errors import CsiError
from tests.unit.controllers.snapshotter import test_group_contents as groups
from tests.unit.controllers.snapshotter.test_copies import forced_and_lost
from tests.unit.controllers.snapshotter.test_crash_points import TIMEOUT, Life
from tests.unit.controllers.snapshotter.test_stale_copies import copy_of
from workers.errors import DriverAway
from workers.kube.errors import ForbiddenError

AWAY = DriverAway("the driver is away")


def test_a_call_whose_driver_went_away_leaves_a_copy():
    life = Life([("after", AWAY)])
    with pytest.raises(DriverAway):
        life.world.run_content()
    assert life.storage.snapshots
    assert copy_of(life.world) is not None
    forced_and_lost(life)


def test_a_group_whose_driver_went_away_leaves_a_copy():
    world = groups.dynamic_world(AWAY)
    with pytest.raises(DriverAway):
        groups.run(world)
    assert copy_of(world, groups.KEY) is not None


def test_a_pass_that_the_api_server_refuses_copies_what_a_dead_worker_left():
    """A missing permission stops the reconcile before the driver is called."""
    life = Life([])
    assert not life.live(dies_before=3)
    life.storage.snapshots = {"snapshot-u1": "id-1"}
    life.world.api.fail("get", "volumesnapshotclasses", ForbiddenError(403, "Forbidden", "no"))
    with pytest.raises(ForbiddenError):
        life.world.run_content()
    assert copy_of(life.world) is not None


def test_a_question_for_an_orphan_that_is_not_answered_leaves_a_copy():
    """The object was removed by force, so only the key's state shows the call."""
    life = Life([TIMEOUT])
    assert not life.live(dies_before=2)
    life.somebody_forces()
    life.world.passed += 100.0  # the dead worker's call is over
    life.world.client.respond({"CreateSnapshot": [AWAY]})
    with pytest.raises(DriverAway):
        life.world.run_content()
    assert copy_of(life.world) is not None


def test_an_orphan_that_could_not_be_deleted_has_a_copy():
    """Its DeleteSnapshot failed, so only Redis knows the handle (orphans.discard)."""
    life = Life([])
    assert not life.live(dies_before=2)
    life.somebody_forces()
    busy = CsiError(errors.FAILED_PRECONDITION, "in use")
    life.world.client.respond({"DeleteSnapshot": [busy, life.storage.delete]})
    life.world.passed += 100.0
    life.world.run_content()
    assert life.storage.snapshots
    life.redis_is_lost()
    life.live()
    assert life.storage.snapshots == {}

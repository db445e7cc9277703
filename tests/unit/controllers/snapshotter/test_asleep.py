"""SND-006: A content that is to be deleted doesn't stay in Terminating until the next resync.

A worker died between writing the status and removing the annotation. The next reconcile removes the
annotation and so frees the content, but the watcher ignores that write.
"""

from __future__ import annotations

import pytest

from tests.unit.controllers.snapshotter import test_group_contents as groups
from tests.unit.controllers.snapshotter.test_crash_points import Life
from workers.kube.errors import Unreachable


def until_asleep(run, most=10):
    """Reconcile as the queue would: stop after the first outcome `done`."""
    for _ in range(most):
        if run().action.value == "done":
            return
    raise AssertionError("never comes to rest")


@pytest.mark.parametrize("how", ["death", "away"])
def test_a_snapshot_deleted_between_status_and_annotation_goes_by_itself(how):
    life = Life([])
    if how == "death":
        assert not life.live(dies_before=5)
        assert life.world.steps.reached[-1] == "write-status"
    else:
        api = life.world.api
        away = Unreachable("no answer")
        # The next write after the status is the annotation's.
        api.before("patch", "snapcontent-u1/status", lambda: api.fail("patch", "snapcontent", away))
        with pytest.raises(Unreachable):
            life.world.run_content()
    life.user_deletes()
    until_asleep(life.world.run_content)
    assert life.world.content() is None, "Terminating, and nothing will wake it"


def test_a_group_deleted_between_status_and_annotation_goes_by_itself():
    ready = {"group_snapshot": groups.MADE["group_snapshot"] | {"ready_to_use": True}}
    world = groups.dynamic_world(ready)
    world.steps.dies_before = 6
    with pytest.raises(BaseException, match="unmark-created"):
        groups.run(world)
    world.steps.dies_before = None
    groups.user_deletes(world)
    until_asleep(lambda: groups.run(world))
    assert groups.content(world) is None, "Terminating, and nothing will wake it"

"""A failed write of an intent copy does not count as a copy (M-010 for snapshots)."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.snapshot_world import CONTENT
from tests.unit.controllers.snapshotter.test_crash_points import TIMEOUT, Life
from workers.controllers.snapshotter.intent import copy_name
from workers.controllers.snapshotter.rules import KIND_CONTENTS
from workers.kube import paths
from workers.kube.errors import ForbiddenError, ServerError, Unreachable
from workers.queue.keys import Key

KEY = Key(KIND_CONTENTS, "snap.test", CONTENT)


def copy_of(life: Life) -> Any:
    return life.world.api.of(paths.CONFIG_MAPS, copy_name(KEY), "fleet")


def refuse_copies(life: Life, error: Exception, times: int) -> None:
    kube, left = life.world.context.effects.kube, [error] * times
    real = kube.apply_config_map

    def apply(body: Any) -> Any:
        if left:
            raise left.pop()
        return real(body)

    kube.apply_config_map = apply  # type: ignore[method-assign]


def forced_and_lost(life: Life) -> None:
    life.somebody_forces()
    life.redis_is_lost()
    life.live()
    life.settled()


@pytest.mark.parametrize(
    "error",
    [
        ForbiddenError(403, "Forbidden", "no"),
        ServerError(503, "ServiceUnavailable", "busy"),
        Unreachable("no answer"),
    ],
    ids=["refused", "busy", "no answer"],
)
def test_a_copy_that_was_refused_once_is_written_by_the_next_pass(error):
    life = Life([("after", TIMEOUT), TIMEOUT, TIMEOUT])
    refuse_copies(life, error, 1)
    for _ in range(3):
        life.world.run_content()
    assert life.storage.snapshots
    forced_and_lost(life)


def test_a_call_after_a_lost_redis_gets_a_copy():
    """The announcement shows that there may be a copy, not that there is one."""
    life = Life([("after", TIMEOUT)])
    assert not life.live(dies_before=2)  # announced, but the driver was not called
    life.redis_is_lost()
    life.world.run_content()
    assert life.storage.snapshots
    forced_and_lost(life)


def test_a_death_between_the_mark_and_the_copy():
    """The key's state is written first, and shows that there may be a copy."""
    life, effects = Life([("after", TIMEOUT), TIMEOUT]), ["record-intent", "copy-intent"]
    assert not life.live(dies_before=4)
    assert life.world.steps.reached[-1:] == effects[:1], life.world.steps.reached
    assert copy_of(life) is None
    life.world.run_content()
    assert life.storage.snapshots
    forced_and_lost(life)


def test_a_copy_has_the_parameters_that_were_sent():
    life = Life([("after", TIMEOUT), TIMEOUT])
    life.world.add_class(parameters={"tier": "cold"})
    life.world.run_content()
    life.world.add_class(parameters={"tier": "warm"})
    life.world.run_content()
    assert "cold" in copy_of(life)["data"]["record"]


def test_what_keeps_an_open_call_from_its_end_leaves_a_copy():
    """Its worker died in the call, the class is gone, and the parameters were too large to keep."""
    life = Life([])
    assert not life.live(dies_before=3)
    for mark in life.world.queue.marks.values():
        mark["intent"]["parameters"] = None
    life.storage.snapshots = {"snapshot-u1": "id-1"}
    life.world.api.drop(paths.SNAPSHOT_CLASSES, "c1")
    life.world.run_content()
    assert copy_of(life) is not None

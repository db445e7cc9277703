"""A dead worker's CreateSnapshot may end after its successor's snapshot was deleted.

A driver that runs two calls of one name in parallel then makes the snapshot again. So the deletion
waits for that call's deadline, as a volume's deletion does.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.fake_context import Death
from tests.unit.controllers.snapshotter import test_group_contents as groups
from tests.unit.controllers.snapshotter.test_crash_points import Life


def dies_in_its_call(life: Life) -> Any:
    """Let the process die during the call.

    Return a function that lets the driver finish the call.
    """
    out: list[Any] = []
    client, call = life.world.client, life.world.client.call

    def begun(method: str, request: Any, *args: Any, **kwargs: Any) -> Any:
        out.append(request)
        raise Death(method)

    client.call = begun  # type: ignore[method-assign]
    with pytest.raises(Death):
        life.world.run_content()
    client.call = call  # type: ignore[method-assign]
    return lambda: life.storage.create(out[0])


def quick(life: Life) -> None:
    """Reconcile as long as the next reconcile is due within a second."""
    for _ in range(10):
        outcome = life.world.run_content()
        if outcome.action.value == "wait" and outcome.delay_seconds > 1:
            return  # delayed until the dead worker's call is over


def leaves_nothing(life: Life, ends: Any) -> None:
    """Let the dead worker's call end within its deadline, and check that no snapshot is left."""
    ends()
    quick(life)
    life.live()
    assert life.world.content() is None
    assert life.storage.snapshots == {}, "nobody knows of it"


@pytest.mark.parametrize("is_forced", [False, True], ids=["deleted", "removed by force"])
def test_a_call_that_was_overtaken_makes_no_snapshot_after_its_deletion(is_forced):
    life = Life([])
    ends = dies_in_its_call(life)
    if is_forced:
        life.somebody_forces()
        quick(life)
    else:
        life.world.run_content()  # the next worker creates the snapshot
        life.user_deletes()
        quick(life)
    leaves_nothing(life, ends)


def test_the_same_for_a_group():
    ready = {"group_snapshot": groups.MADE["group_snapshot"] | {"ready_to_use": True}}
    world = groups.dynamic_world(ready)
    call = world.client.call

    def begun(method: str, *_args: Any, **_kwargs: Any) -> Any:
        raise Death(method)

    world.client.call = begun  # type: ignore[method-assign]
    with pytest.raises(Death):
        groups.run(world)
    world.client.call = call  # type: ignore[method-assign]
    groups.run(world)
    groups.user_deletes(world)
    groups.run(world)
    asked = [name for name in world.client.methods if name == "DeleteVolumeGroupSnapshot"]
    assert asked == [], "deleted at once, while the first call may still make it"

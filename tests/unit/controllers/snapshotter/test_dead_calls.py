"""Calls of dead workers and answers that could not be stored are not lost to later reconciles."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import msgspec
import pytest

from tests.support.snapshot_world import CONTENT, CONTENT_KEY
from tests.unit.controllers.snapshotter import test_group_contents as groups
from tests.unit.controllers.snapshotter import test_large_groups as large
from tests.unit.controllers.snapshotter.test_crash_points import FULL, INTERNAL, Life
from tests.unit.controllers.snapshotter.test_overtaken_calls import dies_in_its_call, quick
from tests.unit.controllers.snapshotter.test_recorded_answers import source_first
from workers.controllers.snapshotter.intent import copy_name
from workers.errors import LeaseLost, RecordTooLarge
from workers.kube import paths
from workers.kube.errors import InvalidError, Unreachable
from workers.queue.locks import Mode, stored_volume


def refuse_status(life: Life, on: bool = True) -> None:
    refused = InvalidError(422, "Invalid", "a webhook says no")
    life.world.api.fail("patch", "snapcontent-u1/status", refused)


# A reconcile that fails before its call must not erase the dead worker's deadline.
@pytest.mark.parametrize("is_forced", [False, True], ids=["deleted", "forced"])
def test_a_pass_that_fails_before_its_call_keeps_the_dead_workers_deadline(is_forced):
    life = Life([])
    ends = dies_in_its_call(life)
    real, failed = life.world.context.kube.get, []

    def get(resource: Any, name: str, **kw: Any) -> Any:
        if not failed:
            failed.append(1)
            raise Unreachable("the API server restarts")
        return real(resource, name, **kw)

    life.world.context.kube.get = get
    with pytest.raises(Unreachable):
        life.world.run_content()
    assert life.world.queue.marks, "the record is there"
    if is_forced:
        life.somebody_forces()
        quick(life)
    else:
        life.world.run_content()  # the next worker creates the snapshot
        life.user_deletes()
        quick(life)
    ends()
    quick(life)
    life.live()
    assert life.world.content() is None
    assert life.storage.snapshots == {}, "nobody knows of it"


# A known handle must not hide the deadline in the intent itself.
@pytest.mark.parametrize("is_forced", [False, True], ids=["deleted", "forced"])
def test_a_dead_repeat_after_an_answer_is_waited_for(is_forced):
    life = Life([])
    refuse_status(life)
    life.world.run_content()  # the driver answers, but the status is refused
    ends = dies_in_its_call(life)  # the call is repeated, and the worker dies during it
    if is_forced:
        life.somebody_forces()
    else:
        life.user_deletes()
    quick(life)
    ends()
    quick(life)
    life.live()
    assert life.world.content() is None
    assert life.storage.snapshots == {}, "nobody knows of it"


# The copy of a slow call must get the handle.
def slow(life: Life) -> None:
    """Call `on_slow` in each CreateSnapshot."""
    client, call = life.world.client, life.world.client.call

    def slowly(*args: Any, on_slow: Any = None, **kw: Any) -> Any:
        if on_slow is not None:
            on_slow()
        return call(*args, **kw)

    client.call = slowly  # type: ignore[method-assign]


def copied(life: Life) -> Any:
    found = life.world.api.of(paths.CONFIG_MAPS, copy_name(CONTENT_KEY), "fleet")
    return None if found is None else msgspec.json.decode(found["data"]["record"])


def test_the_copy_of_a_slow_call_gets_the_handle_when_its_status_is_refused():
    life = Life([])
    slow(life)
    volume_goes = source_first(life)
    refuse_status(life)
    life.world.run_content()
    assert life.storage.snapshots
    volume_goes()
    life.somebody_forces()
    life.redis_is_lost()
    life.live()
    assert life.storage.snapshots == {}, "the driver told its handle, and the copy does not"


def test_the_copy_of_a_slow_call_gets_the_handle_when_the_lease_is_lost():
    life = Life([])
    client, call = life.world.client, life.world.client.call
    lease: list[Any] = []
    real_mark = life.world.queue.mark

    def mark(one: Any, record: Any) -> None:
        lease.append(one)
        real_mark(one, record)

    life.world.queue.mark = mark

    def slowly(method: str, *args: Any, on_slow: Any = None, **kw: Any) -> Any:
        if on_slow is not None:
            on_slow()
        answer = call(method, *args, **kw)
        if method.endswith("CreateSnapshot"):
            lease[-1].is_lost = True
        return answer

    client.call = slowly  # type: ignore[method-assign]
    with pytest.raises(LeaseLost):
        life.world.run_content()
    assert copied(life)["handle"] == "id-1"


# An empty list proves nothing while a dead worker's call still runs.
def test_a_volume_without_snapshots_yet_is_asked_again_after_the_dead_call():
    life = Life([])
    life.world.driver.capabilities = {"CREATE_DELETE_SNAPSHOT", "LIST_SNAPSHOTS"}
    life.world.driver.supports = lambda name: name in {"CREATE_DELETE_SNAPSHOT", "LIST_SNAPSHOTS"}
    ends = dies_in_its_call(life)  # the call has taken the last space in the pool
    life.user_deletes()
    life.world.client.respond(
        {"CreateSnapshot": [FULL, life.storage.create], "ListSnapshots": [{"entries": []}]}
    )
    quick(life)
    ends()
    life.live()
    assert life.world.content() is None
    assert life.storage.snapshots == {}, "nobody knows of it"


# A busy lock or a delayed deletion must not cause a hot loop.
def test_a_last_call_waits_for_a_busy_volume():
    life = Life([INTERNAL])
    life.world.run_content()
    life.user_deletes()
    life.world.queue.busy[stored_volume("snap.test", "h1", Mode.SHARED).name] = Mode.EXCLUSIVE
    outcomes = [life.world.run_content() for _ in range(5)]
    assert "blocked" in str({one.action for one in outcomes[2:]}).lower()


def test_a_held_back_discard_is_no_hot_loop():
    life = Life([])
    dies_in_its_call(life)
    refuse_status(life)
    life.world.run_content()  # the second worker's status is refused
    mend = {"metadata": {"annotations": None}}
    life.world.api.change(paths.SNAPSHOT_CONTENTS, CONTENT, mend)  # another program's update
    life.user_deletes()
    outcomes = [life.world.run_content() for _ in range(5)]
    assert any(one.delay_seconds > 0 for one in outcomes), outcomes


# An answer that does not fit into the key's state.
@pytest.mark.parametrize("is_deleted", [False, True])
def test_a_group_whose_answer_does_not_fit_is_ended(is_deleted):
    world = large.new_world(large.AZURE, 300)
    handles = [large.AZURE.format(n) for n in range(300)]
    members = [{"snapshot_id": one, "source_volume_id": one} for one in handles]
    ready = {"group_snapshot_id": "gh", "ready_to_use": True, "snapshots": members}
    world.client.respond({"CreateVolumeGroupSnapshot": [{"group_snapshot": ready}]})
    for n in range(6):
        with suppress(RecordTooLarge):
            groups.run(world)
        if n == 1 and is_deleted:
            groups.user_deletes(world)
    if is_deleted:
        assert "DeleteVolumeGroupSnapshot" in world.client.methods
    else:
        status = groups.content(world).get("status") or {}
        assert status.get("readyToUse"), world.client.methods

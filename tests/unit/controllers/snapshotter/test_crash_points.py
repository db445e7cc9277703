"""A process dies before each step on a content; another one finishes (SNT-091 to SNT-095).

Each scenario runs once per step, with a death just before that step and one other event at the same
time: none, the snapshot is deleted, its object is removed by force, or Redis loses all data. In the
end the storage must match the objects.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import pytest

from csi_client import errors
from csi_client.errors import CsiError
from tests.support.fake_context import Death
from tests.support.snapshot_world import ANN_CREATED, ANN_DELETED, CONTENT, SnapshotWorld
from workers.controllers.snapshotter.intent import copy_name
from workers.controllers.snapshotter.rules import KIND_CONTENTS
from workers.controllers.snapshotter.sync import sync_content
from workers.errors import LeaseLost
from workers.kube import paths
from workers.queue.keys import Key

TIMEOUT = CsiError(errors.DEADLINE_EXCEEDED, "context deadline exceeded")
INTERNAL = CsiError(errors.INTERNAL, "told to fail")
FULL = CsiError(errors.RESOURCE_EXHAUSTED, "no room")


class Storage:
    """Snapshots by name, idempotent as CSI requires; each CreateSnapshot takes the next plan.

    A plan is None (succeed), an error (fail without a snapshot), ("after", error) (make the
    snapshot and lose the answer) or "uploading" (not ready yet).
    """

    def __init__(self, world: SnapshotWorld, plans: list[Any]) -> None:
        self.snapshots: dict[str, str] = {}
        self.plans = plans
        self.made = 0
        world.client.respond({"CreateSnapshot": [self.create], "DeleteSnapshot": [self.delete]})

    def create(self, request: Any) -> Any:
        plan = self.plans.pop(0) if self.plans else None
        if isinstance(plan, CsiError):
            raise plan
        if request.name not in self.snapshots:
            self.made += 1
            self.snapshots[request.name] = f"id-{self.made}"
        if isinstance(plan, tuple):
            raise plan[1]
        handle = self.snapshots[request.name]
        return {"snapshot": {"snapshot_id": handle, "ready_to_use": plan != "uploading"}}

    def delete(self, request: Any) -> Any:
        for name in [n for n, one in self.snapshots.items() if one == request.snapshot_id]:
            del self.snapshots[name]
        return {}


PLANS: dict[str, list[Any]] = {
    "happy": [],
    "uploading": ["uploading", "uploading"],
    "answer lost": [("after", TIMEOUT), TIMEOUT],
    "final, then ok": [INTERNAL],
    "open, then final": [TIMEOUT, INTERNAL],
    "answer lost, then final": [("after", TIMEOUT), INTERNAL],
    "made, but INTERNAL": [("after", INTERNAL)],
    "full, then ok": [FULL],
    "uploading, no answer": ["uploading", ("after", TIMEOUT)],
}
# Plans of calls for a content that is to be deleted, after a first call that proved nothing.
LAST_PLANS: dict[str, list[Any]] = {
    "cut afresh": [INTERNAL],
    "it was made": [("after", INTERNAL)],
    "uploading": [INTERNAL, "uploading"],
    "answer lost": [INTERNAL, ("after", TIMEOUT)],
    "answer lost, then final": [INTERNAL, ("after", TIMEOUT), INTERNAL],
    "made, but INTERNAL": [INTERNAL, TIMEOUT, ("after", INTERNAL)],
    "full": [("after", INTERNAL), FULL],
}


class Life:
    """Reconciles one content until no work is left."""

    def __init__(self, plans: list[Any]) -> None:
        self.world = SnapshotWorld()
        self.storage = Storage(self.world, list(plans))
        self.world.add_content()

    def live(self, dies_before: int | None = None) -> bool:
        """Reconcile until no work is left; return False if the process died."""
        self.world.steps.reached = []
        self.world.steps.dies_before = dies_before
        quiet = 0
        for _ in range(40):
            try:
                outcome = self.world.run_content()
            except Death:
                self.world.steps.dies_before = None
                return False
            self.world.passed += outcome.delay_seconds
            quiet = quiet + 1 if outcome.action.value == "done" else 0
            if quiet == 2:
                return True
        raise AssertionError("never comes to rest")

    def user_deletes(self) -> None:
        if self.world.content() is None:
            return
        change = {"metadata": {"annotations": {ANN_DELETED: "yes"}}}
        self.world.api.change(paths.SNAPSHOT_CONTENTS, CONTENT, change)
        self.world.api.mark_deleted(paths.SNAPSHOT_CONTENTS, CONTENT)

    def somebody_forces(self) -> None:
        if self.world.content() is not None:
            self.world.api.drop(paths.SNAPSHOT_CONTENTS, CONTENT)

    def redis_is_lost(self) -> None:
        self.world.queue.marks.clear()
        self.world.fails.clear()

    def settled(self) -> None:
        """Check for one snapshot if the content exists, none if it is gone, and no intent left."""
        content = self.world.content()
        handles = set(self.storage.snapshots.values())
        if content is None:
            assert handles == set()
        else:
            assert handles == {content["status"]["snapshotHandle"]}
            assert content["status"]["readyToUse"] is True
            assert ANN_CREATED not in (content["metadata"].get("annotations") or {})
        assert self.world.queue.marks == {}
        key = Key(KIND_CONTENTS, "snap.test", CONTENT)
        assert self.world.api.of(paths.CONFIG_MAPS, copy_name(key), "fleet") is None


def lives(plans: list[Any], prepare: Callable[[Life], None] = lambda _: None) -> Iterator[Life]:
    """Yield one life per step, whose process died just before that step."""
    for effect in count():
        life = Life(plans)
        prepare(life)
        if life.live(effect):
            assert effect > 2, "the scenario reaches no effects"
            return
        yield life


@pytest.mark.parametrize("plans", PLANS.values(), ids=PLANS)
def test_snt091_snt092_death_before_each_effect(plans):
    """SNQ-005: CreateSnapshot is repeated with the same name, so there is one snapshot."""
    for life in lives(plans):
        life.live()
        life.settled()


@pytest.mark.parametrize("plans", PLANS.values(), ids=PLANS)
def test_death_and_the_snapshot_is_deleted(plans):
    """SNS-011: The open attempt is finished before its snapshot is deleted."""
    for life in lives(plans):
        life.user_deletes()
        life.live()
        life.settled()
        assert life.world.content() is None


@pytest.mark.parametrize("plans", PLANS.values(), ids=PLANS)
def test_snt093_death_and_redis_lost_everything(plans):
    """SNQ-005: The announcement on the object is enough to continue."""
    for life in lives(plans):
        life.redis_is_lost()
        life.live()
        life.settled()


@pytest.mark.parametrize("plans", PLANS.values(), ids=PLANS)
def test_death_and_the_object_is_removed_by_force(plans):
    """The intent outlives the object."""
    for life in lives(plans):
        if "snapshotHandle" in (life.world.content().get("status") or {}):
            continue  # a reported snapshot stays if its object is removed by force
        life.somebody_forces()
        life.live()
        life.settled()


@pytest.mark.parametrize("plans", PLANS.values(), ids=PLANS)
def test_death_and_a_reported_snapshot_stays(plans):
    """The object is removed by force after another reconcile; then the intent has no effect."""
    for life in lives(plans):
        if "snapshotHandle" not in (life.world.content().get("status") or {}):
            continue
        life.world.run_content()
        life.somebody_forces()
        life.live()
        assert len(life.storage.snapshots) == life.storage.made == 1
        assert life.world.queue.marks == {}


@pytest.mark.parametrize("policy", ["Delete", "Retain"])
@pytest.mark.parametrize("plans", LAST_PLANS.values(), ids=LAST_PLANS)
def test_death_during_a_last_call(plans, policy):
    """The snapshot was never reported, so it is deleted whatever the policy is."""

    def prepare(life: Life) -> None:
        change = {"spec": {"deletionPolicy": policy}}
        life.world.api.change(paths.SNAPSHOT_CONTENTS, CONTENT, change)
        life.world.run_content()
        life.user_deletes()

    for life in lives(plans, prepare):
        life.live()
        assert life.world.content() is None
        assert "snapshotHandle" not in str(life.world.api.writes)
        life.settled()


def test_the_object_is_removed_by_force_while_the_driver_works():
    """The process lives: it finds the object gone and deletes the snapshot that it just made."""
    life = Life([])

    class Steps(type(life.world.steps)):  # type: ignore[misc]
        def reach(self, name: str, lease: Any) -> None:
            if name == "write-status":
                life.somebody_forces()
            super().reach(name, lease)

    life.world.context.effects.steps = life.world.steps = Steps()
    life.live()
    assert life.storage.made == 1
    assert life.world.content() is None
    life.settled()


def test_an_open_call_survives_force_and_a_lost_redis():
    """The intent of a call with unknown outcome is copied to a ConfigMap."""
    life = Life([("after", TIMEOUT)])
    life.world.run_content()
    assert life.storage.snapshots
    life.somebody_forces()
    life.redis_is_lost()
    life.live()
    life.settled()


def test_a_last_question_without_an_answer_survives_a_lost_redis():
    """The call is for an object that was removed by force; its snapshot is deleted anyway."""
    life = Life([("after", TIMEOUT)])
    assert not life.live(dies_before=2)
    assert life.storage.snapshots == {}
    life.somebody_forces()
    assert life.world.run_content().action.value == "wait"  # a dead worker's call may still run
    life.world.passed += 100.0
    life.world.run_content()
    assert life.storage.snapshots
    life.redis_is_lost()
    life.live()
    life.settled()


def test_a_slow_call_is_copied_and_the_copy_goes():
    """As with volumes, the intent is copied to a ConfigMap after two seconds."""
    life = Life([])
    seen: list[Any] = []
    call = life.world.client.call

    def slow(method: str, *args: Any, on_slow: Any = None, **kwargs: Any) -> Any:
        if on_slow is not None:
            on_slow()
            key = Key(KIND_CONTENTS, "snap.test", CONTENT)
            seen.append(life.world.api.of(paths.CONFIG_MAPS, copy_name(key), "fleet"))
        return call(method, *args, **kwargs)

    life.world.client.call = slow  # type: ignore[method-assign]
    life.live()
    assert seen[0]["metadata"]["labels"] == {"csi-fleet.io/intent": "true"}
    assert f"contents|snap.test|{CONTENT}|" in seen[0]["data"]["record"]
    life.settled()


def test_snt098_a_lease_lost_during_the_call_leaves_a_copy():
    """G9: The worker writes nothing more, but the next worker learns of the call."""
    life = Life([])
    lease = life.world.lease(Key(KIND_CONTENTS, "snap.test", CONTENT))
    call = life.world.client.call

    def and_lose(*args: Any, **kwargs: Any) -> Any:
        answer = call(*args, **kwargs)
        lease.is_lost = True
        return answer

    life.world.client.call = and_lose  # type: ignore[method-assign]
    with pytest.raises(LeaseLost):
        sync_content(life.world.context, life.world.driver, lease.key, lease)  # type: ignore[arg-type]
    assert "status" not in life.world.content()
    life.world.client.call = call  # type: ignore[method-assign]
    life.somebody_forces()
    life.redis_is_lost()
    life.live()
    life.settled()


def deletion(life: Life) -> None:
    life.live()
    life.user_deletes()


def test_death_during_a_deletion():
    """SNS-042: DeleteSnapshot is repeated, and then the object is deleted."""
    for effect in count():
        life = Life([])
        deletion(life)
        if life.live(effect):
            assert effect > 1
            return
        life.redis_is_lost()
        life.live()
        life.settled()
        assert life.world.content() is None


def test_snt095_deleted_before_the_first_pass():
    """SND-002, SND-034: No snapshot is left, because none was made."""
    life = Life([])
    life.user_deletes()
    life.live()
    assert life.storage.made == 0
    life.settled()

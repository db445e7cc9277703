"""A process dies before each step of reconciling a claim or volume; another one finishes.

A first run of each scenario counts the steps. Then the scenario runs once per step, with a death
just before that step and with other failures at the same time. I-1 to I-8, M-010, M-011.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count

import pytest

from csi_client import errors
from csi_client.errors import CsiError
from tests.support.crash_world import CLAIM, UID, VOLUME, CrashWorld, Owner
from tests.support.fake_cluster import DRIVER
from workers.engine.steps import Step
from workers.kube.errors import ForbiddenError

TIMEOUT = CsiError(errors.DEADLINE_EXCEEDED, "context deadline exceeded")
INTERNAL = CsiError(errors.INTERNAL, "told to fail")
FULL = CsiError(errors.RESOURCE_EXHAUSTED, "no room")
BAD = CsiError(errors.INVALID_ARGUMENT, "never")
REFUSED = ForbiddenError(403, "Forbidden", "denied by policy")


def too_small(answer):
    answer.volume.capacity_bytes = 1


def happy(world):
    world.add_claim()


def slow(world):
    world.add_claim()
    world.storage.plans = ["slow"]


def background_then_ok(world):
    world.add_claim()
    world.storage.plans = [("after", TIMEOUT), TIMEOUT, None]


def background_then_final(world):
    world.add_claim()
    world.storage.plans = [TIMEOUT, INTERNAL, None]


def final_then_ok(world):
    world.add_claim()
    world.storage.plans = [INTERNAL, None]


def infeasible_then_ok(world):
    world.add_claim()
    world.storage.plans = [BAD, None]


def rejected_then_ok(world):
    world.add_claim()
    world.storage.plans = [too_small, None]


def save_refused(world):
    world.add_claim()
    world.kube.fail["create_volume"] = [REFUSED, REFUSED]


def restore(world):
    world.add_snapshot()
    world.add_claim(
        dataSource={"apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": "snap"}
    )


def rescheduled(world):
    world.add_claim()
    world.storage.plans = [FULL, None]


def deletion(world):
    world.add_claim()
    world.live(world.owner())
    assert VOLUME in world.kube.kind("persistentvolumes")
    world.delete_claim()


def retained(world):
    """The volume loses its finalizer in its first reconcile (L-072)."""
    world.add_claim()


def relabelled(world):
    world.add_claim()
    world.relabel_while_saving()


SCENARIOS: dict[str, Callable] = {
    one.__name__: one
    for one in (
        *(happy, slow, background_then_ok, background_then_final, final_then_ok),
        *(infeasible_then_ok, rejected_then_ok, save_refused, restore, rescheduled, deletion),
        *(retained, relabelled),
    )
}


def begin(client, scenario: str) -> CrashWorld:
    client.flushall()
    policy = "Retain" if scenario == "retained" else "Delete"
    world = CrashWorld(client, has_topology=scenario == "rescheduled", reclaim_policy=policy)
    SCENARIOS[scenario](world)
    return world


def lives(client, scenario: str) -> Iterator[CrashWorld]:
    """Yield one world per step, whose owner died just before that step."""
    for effect in count():
        world = begin(client, scenario)
        owner = world.owner(dies_before=effect)
        world.live(owner)
        if not owner.is_dead:
            assert effect > 2, "the scenario reaches no effects"
            return
        world.pass_away()
        yield world


def settled(world: CrashWorld, *, is_redis_kept: bool = True) -> None:
    """I-6: Check for one volume and one PV if the claim exists, and for none if it is gone."""
    volumes = world.kube.kind("persistentvolumes")
    is_kept = CLAIM in world.kube.objects or (world.reclaim_policy == "Retain" and volumes)
    wanted = {VOLUME} if is_kept else set()
    assert set(volumes) == wanted, world.died_at
    assert set(world.storage.volumes) == wanted, world.died_at
    if wanted:
        handle = volumes[VOLUME]["spec"]["csi"]["volumeHandle"]
        assert handle == world.storage.volumes[VOLUME], world.died_at
    if CLAIM in world.kube.objects:
        assert not world.has_other_labels(world.kube.objects[CLAIM]), world.died_at
    if CLAIM in world.kube.objects and is_redis_kept:
        # If the claim was deleted before its attempt was recorded, or was bound when Redis lost the
        # intent, only the sweep removes the finalizer (SN-005).
        assert world.finalizers_of_snapshot() == [], world.died_at
    assert world.left_in_redis() == [], world.died_at
    assert world.kube.kind("configmaps") == {}, world.died_at


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_c056_death_before_each_effect(redis_client, scenario):
    """I-7: The next owner reaches the same state as an owner that never died."""
    for world in lives(redis_client, scenario):
        world.live(world.owner())
        settled(world)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_c057_death_and_the_claim_is_deleted_meanwhile(redis_client, scenario):
    """G7: An open attempt is finished although its claim is gone, so no volume is orphaned."""
    for world in lives(redis_client, scenario):
        world.delete_claim()
        world.live(world.owner())
        settled(world)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_c148_death_and_redis_lost_everything(redis_client, scenario):
    for world in lives(redis_client, scenario):
        world.wipe()
        world.live(world.owner())
        settled(world, is_redis_kept=False)


@pytest.mark.parametrize("is_noticed", [False, True], ids=["unnoticed", "noticed"])
@pytest.mark.parametrize("is_deleted", [False, True], ids=["claim stays", "claim deleted"])
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_redis_lost_everything_while_the_owner_lives(
    redis_client, scenario, is_deleted, is_noticed
):
    """Redis is emptied before each step; the owner continues and must not forget its call."""
    for effect in count():
        world = begin(redis_client, scenario)
        owner = world.owner()
        was_reached = wipe_before(
            world, owner, effect, is_deleted=is_deleted, is_noticed=is_noticed
        )
        world.live(owner)
        if not was_reached:
            assert effect > 2
            return
        settled(world, is_redis_kept=False)


def test_living_owner_goes_on_over_a_wipe(redis_client):
    """The worker restores its lease and its intent in Redis, so one reconcile is enough (COR-1)."""
    world = begin(redis_client, "happy")
    owner = world.owner()
    wipe_before(world, owner, 5, is_deleted=False, is_noticed=True)
    one_pass(world, owner)
    assert VOLUME in world.kube.kind("persistentvolumes")
    assert world.storage.calls.count("create") == 1
    assert world.waiting() == []


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_the_one_bound_death_wipe_and_deletion_at_once(redis_client, scenario):
    """A volume leaks only if owner, Redis and claim are all lost during one fast call.

    A ConfigMap covers a call of more than 2 s, a call with an unknown outcome, and a volume whose
    PV was refused once. A saved PV is covered too.
    """
    for world in lives(redis_client, scenario):
        is_covered = bool(world.kube.kind("configmaps"))
        is_made = VOLUME in world.storage.volumes
        is_saved = VOLUME in world.kube.kind("persistentvolumes")
        world.wipe()
        world.delete_claim()
        world.live(world.owner())
        if is_made and not (is_covered or is_saved):
            assert world.died_at in {
                *(Step.RECORD_VOLUME, Step.SAVE_VOLUME, Step.COPY_INTENT, Step.CLEAN_UP),
            }
            continue
        settled(world)


@pytest.mark.parametrize("passes", [1, 2])
@pytest.mark.parametrize("goes_first", ["claim", "class", "both"])
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_pass_that_leaves_an_attempt_without_end_copies_it(
    redis_client, scenario, goes_first, passes
):
    """M-010: The first owner died, and the second waits or cannot call yet when Redis is emptied.

    The second may wait for the deadline of the dead worker's call, or until the class exists again.
    That takes far longer than a lease lasts, so the intent must not depend on luck.
    """
    for world in lives(redis_client, scenario):
        if goes_first != "class":
            world.delete_claim()
        if goes_first != "claim":
            world.hide_class()
        second = world.owner()
        for _ in range(passes):
            world.live(second, passes=1)
        world.wipe()
        world.delete_claim()
        world.show_class()
        world.live(world.owner())
        settled(world, is_redis_kept=False)


def wipe_before(
    world: CrashWorld, owner: Owner, effect: int, *, is_deleted: bool, is_noticed: bool
) -> list[Step]:
    """Plan to empty Redis just before the n-th step.

    The returned list is filled when it happens.
    """
    happened: list[Step] = []
    reach = owner.steps.reach

    def wipe_and_reach(step, lease):
        if len(owner.steps.reached) == effect and not happened:
            happened.append(step)
            world.died_at = step
            world.wipe()
            if is_deleted:
                world.delete_claim()
            if is_noticed:
                owner.queue.heartbeat()
        reach(step, lease)

    owner.runtime.effects.steps.reach = wipe_and_reach
    return happened


def test_every_effect_was_met(redis_client):
    """A new step must be added to a scenario."""
    met = set()
    for scenario in SCENARIOS:
        world = begin(redis_client, scenario)
        owner = world.owner()
        world.live(owner)
        met |= set(owner.steps.reached)
    assert met == set(Step)


def one_pass(world: CrashWorld, owner: Owner) -> None:
    """Run only the first reconcile of the claim; the cluster does nothing."""
    world.watcher()
    world._work(owner, world.messages.pop(0))


def test_issue_1449_claim_and_source_snapshot_deleted_while_in_background(redis_client):
    """The call is repeated although its source is being deleted, so no volume is orphaned."""
    world = CrashWorld(redis_client)
    restore(world)
    world.storage.plans = [("after", TIMEOUT)]
    owner = world.owner()
    one_pass(world, owner)
    snapshot = world.kube.objects["volumesnapshots", "default", "snap"]
    snapshot["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    world.delete_claim()
    world.live(owner)
    settled(world)
    assert world.storage.calls == ["create", "create", "delete"]


@pytest.mark.parametrize("is_restarted", [False, True], ids=["same worker", "another worker"])
def test_issue_1449_claim_and_source_snapshot_gone_while_in_background(redis_client, is_restarted):
    """Another restore removed the finalizer, or setting it is forbidden.

    The recorded source is used.
    """
    world = CrashWorld(redis_client)
    restore(world)
    world.storage.plans = [("after", TIMEOUT)]
    owner = world.owner()
    one_pass(world, owner)
    world.kube.drop("volumesnapshots", "snap", "default")
    world.kube.drop("volumesnapshotcontents", "content")
    world.delete_claim()
    world.live(world.owner() if is_restarted else owner)
    settled(world)
    assert world.storage.calls == ["create", "create", "delete"]


def test_d046_a_claim_that_lives_waits_for_its_source(redis_client):
    """As with csi-provisioner (golden case clone-12), an event says why no call is made."""
    world = CrashWorld(redis_client)
    restore(world)
    world.storage.plans = [("after", TIMEOUT)]
    owner = world.owner()
    one_pass(world, owner)
    world.kube.drop("volumesnapshots", "snap", "default")
    world.messages.clear()
    world.now_ms += 60_000
    owner.queue.heartbeat()
    owner.queue.pump(period_seconds=0)
    one_pass(world, owner)
    assert world.storage.calls == ["create"]
    assert "error getting snapshot snap" in world.events.seen[-1][2]


def test_a_source_that_is_gone_before_the_first_call_is_an_error(redis_client):
    """Only an attempt that may have left a volume continues without its source."""
    world = CrashWorld(redis_client)
    restore(world)
    world.kube.drop("volumesnapshots", "snap", "default")
    one_pass(world, world.owner())
    assert world.storage.calls == []
    assert "ProvisioningFailed" in world.events.reasons()


def test_issue_1469_volume_that_is_being_deleted_is_no_home(redis_client):
    """If the existing PV is being deleted, its volume may be gone.

    A new volume would have no PV.
    """
    world = CrashWorld(redis_client)
    world.add_claim()
    dying = {
        "metadata": {
            "name": VOLUME,
            "deletionTimestamp": "2026-01-01T00:00:00Z",
            "finalizers": ["kubernetes.io/pv-protection"],
        },
        "spec": {
            "claimRef": {"uid": UID},
            "csi": {"driver": DRIVER, "volumeHandle": "id-1"},
            "persistentVolumeReclaimPolicy": "Delete",
        },
    }
    world.kube.add("persistentvolumes", dying)
    owner = world.owner()
    one_pass(world, owner)
    assert "ProvisioningSucceeded" not in world.events.reasons()
    world.kube.drop("persistentvolumes", VOLUME)
    world.live(owner)
    settled(world)
    assert world.storage.calls == ["create"]

"""Later answers do not erase what an earlier call may have left or may still make (COR-8, M-010).

Each test failed before the defect that it found was corrected.
"""

from __future__ import annotations

from typing import Any

import pytest

from csi_client import errors
from csi_client.errors import CsiError
from tests.support.crash_world import CLAIM, CrashWorld
from tests.unit.controllers.provisioner.test_copies import (
    AWAY,
    BAD,
    BUSY,
    COPY,
    INTERNAL,
    NO,
    TIMEOUT,
    PatientWorld,
    dead_before,
    dies_before,
    lost_and_deleted,
    nothing_left,
    restore,
)
from workers.engine.steps import Step

INFEASIBLE = CsiError(errors.INVALID_ARGUMENT, "never")
FULL = CsiError(errors.RESOURCE_EXHAUSTED, "no room")


# A later error that surely left no volume does not erase an earlier call with unknown outcome.


@pytest.mark.parametrize("error", [INFEASIBLE, FULL], ids=["infeasible", "rescheduled"])
def test_an_error_without_doubt_forgets_nothing_of_a_call_without_a_known_end(redis_client, error):
    """Like COR-8's test with INTERNAL, but here the first call timed out."""
    world = CrashWorld(redis_client, has_topology=True)
    world.add_claim()
    world.storage.plans = [("after", TIMEOUT), error]
    owner = world.owner()
    world.live(owner, passes=2)
    assert world.storage.calls == ["create", "create"]
    world.delete_claim()
    world.live(owner)
    nothing_left(world)


def overtaking(client, *plans: Any) -> tuple[CrashWorld, Any]:
    """Return a world whose first worker died in a call that makes its volume 50 s later.

    Another worker calls the driver in the meantime, with the answers in `plans`.
    """
    world = dead_before(client, Step.RECORD_VOLUME, kind=PatientWorld)
    world.storage.volumes.clear()
    world.late_at = world.now_ms + 50_000
    world.storage.plans = list(plans)
    owner = world.owner()
    return world, owner


def first_call_ends(world: CrashWorld, owner: Any) -> None:
    """Let the first call make its volume, and check that nothing of it is left."""
    world.now_ms += 60_000
    world.live(owner)
    assert not world.late_at
    nothing_left(world)


@pytest.mark.parametrize("error", [INFEASIBLE, INTERNAL], ids=["infeasible", "internal"])
def test_a_final_error_to_the_second_call_forgets_nothing_of_the_first(redis_client, error):
    """The claim is deleted after the answer, and the first call makes its volume later."""
    world, owner = overtaking(redis_client, error)
    world.live(owner, passes=1)
    assert world.storage.calls == ["create", "create"]
    world.delete_claim()
    world.live(owner)
    first_call_ends(world, owner)


def test_a_third_call_remembers_the_first_one(redis_client):
    """The answers are INTERNAL and success; the claim is deleted during the dead worker's call."""
    world, owner = overtaking(redis_client, INTERNAL)
    while not world.kube.kind("persistentvolumes"):
        world.live(owner, passes=1)
        world.now_ms += 1000
    assert world.late_at, "too late for this test"
    world.delete_claim()
    world.live(owner)
    first_call_ends(world, owner)


def test_a_claim_that_is_being_deleted_waits_for_the_first_call(redis_client):
    world, owner = overtaking(redis_client, INTERNAL)
    world.kube.objects[CLAIM]["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    world.live(owner, passes=1)
    world.delete_claim()
    world.live(owner)
    first_call_ends(world, owner)


def test_a_volume_that_makes_no_pv_is_not_deleted_before_the_first_call_is_over(redis_client):
    world, owner = overtaking(redis_client)
    world.kube.fail["create_volume"] = [BAD] * 50
    world.live(owner, passes=1)
    # The second answer's PV is recorded; the next call repeats it and is refused again.
    world.delete_claim()
    world.live(owner)
    first_call_ends(world, owner)


# An intent copy that cannot be removed.


def test_a_copy_that_stays_does_not_bring_a_deleted_pv_back(redis_client):
    """An admission webhook refuses deletions of ConfigMaps for a while."""
    world = CrashWorld(redis_client)
    world.add_claim()
    world.storage.plans = ["slow"]
    world.kube.fail["delete_config_map"] = [NO] * 8
    owner = world.owner()
    world.live(owner, passes=1)
    world.cluster()
    world.delete_claim()
    world.live(owner)
    nothing_left(world)
    made = [call for call in world.kube.writes if call[0] == "create_volume"]
    told = [one for one in world.events.reasons() if one == "ProvisioningSucceeded"]
    assert (len(made), len(told)) == (1, 1)


def test_a_copy_that_stays_does_not_provision_without_the_scheduler(redis_client):
    world = CrashWorld(redis_client, has_topology=True)
    world.add_claim()
    asked = []
    world.storage.plans = [TIMEOUT, FULL]
    world.kube.fail["delete_config_map"] = [BUSY]
    real = world.storage.create_volume

    def create(request, **options):
        claim = world.kube.objects[CLAIM]["metadata"]["annotations"]
        asked.append("volume.kubernetes.io/selected-node" in claim)
        return real(request, **options)

    world.storage.create_volume = create
    world.cluster = lambda: None  # the scheduler does nothing yet
    world.live(world.owner(), passes=4)
    assert all(asked), asked


@pytest.mark.parametrize("error", [AWAY], ids=["hangs"])
def test_a_source_whose_read_hangs_leaves_a_copy(redis_client, error):
    """The conversion webhook of snapshots does not answer, but ConfigMaps can be written."""
    world = dead_before(redis_client, Step.RECORD_VOLUME, restore)
    world.kube.fail["get_snapshot"] = [error] * 9
    world.live(world.owner(), passes=5)
    assert COPY in world.kube.kind("configmaps")
    world.kube.fail.clear()
    lost_and_deleted(world)


def test_an_unsavable_volume_of_a_gone_claim_waits_for_the_first_call(redis_client):
    """The second worker died before it saved the PV, which the API server refuses permanently."""
    world, owner = overtaking(redis_client)
    dies_before(owner, Step.SAVE_VOLUME)
    world.live(owner, passes=1)
    assert owner.is_dead
    world.pass_away()
    world.kube.fail["create_volume"] = [BAD] * 50
    world.delete_claim()
    third = world.owner()
    world.live(third)
    world.kube.fail.clear()
    first_call_ends(world, third)

"""Whatever keeps an attempt open, its intent copy exists, is up to date and is removed (M-010).

Each test failed once, before `ClaimWork.keep_copy` was corrected.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from csi_client import errors
from csi_client.errors import CsiError
from tests.support.crash_world import DRIVER, VOLUME, CrashWorld, Owner
from tests.support.fake_cluster import World
from workers.config.settings import Settings
from workers.custom import Options, ProvisionResult
from workers.custom.driver import custom_driver
from workers.engine.outcome import Action
from workers.engine.steps import Step
from workers.errors import DriverAway, LeaseLost
from workers.kube.errors import ForbiddenError, InvalidError, ServerError, Unreachable
from workers.queue.intents import IntentStore

COPY = f"csi-fleet-intent-{VOLUME}"
INTERNAL = CsiError(errors.INTERNAL, "told to fail")
TIMEOUT = CsiError(errors.DEADLINE_EXCEEDED, "late")
BUSY = ServerError(503, "ServiceUnavailable", "busy")
BROKEN = ServerError(500, "InternalError", "conversion webhook")
AWAY = Unreachable("no answer")
NO = ForbiddenError(403, "Forbidden", "no")
BAD = InvalidError(422, "Invalid", "bad label")


class PatientWorld(CrashWorld):
    """A world with `--timeout=60s`, where time passes while a call of a dead process is running."""

    late_at: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        patient = replace(self.settings.driver, timeout_seconds=60.0)
        self.settings = replace(self.settings, driver=patient)
        self.driver = replace(self.driver, settings=self.settings)

    def cluster(self) -> None:
        if self.late_at and self.now_ms >= self.late_at:
            self.late_at = 0.0
            self.storage.volumes.setdefault(VOLUME, "id-late")
        super().cluster()


def plain(world: CrashWorld) -> None:
    world.add_claim()


def topology(world: CrashWorld) -> None:
    world.add_claim()


def restore(world: CrashWorld) -> None:
    world.add_snapshot()
    world.add_claim(
        dataSource={"apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": "snap"}
    )


def dead_before(
    client: Any,
    step: Step,
    scenario: Callable[[CrashWorld], None] = plain,
    kind: type[CrashWorld] = CrashWorld,
) -> CrashWorld:
    """Return a world whose first owner died right before `step`."""
    for effect in range(20):
        client.flushall()
        world = kind(client, has_topology=scenario is topology)
        scenario(world)
        world.live(world.owner(dies_before=effect))
        if world.died_at == step:
            world.pass_away()
            return world
    raise AssertionError(step)


def dies_before(owner: Owner, step: Step) -> None:
    """Let the owner die when it next reaches `step`."""
    real = owner.steps.reach

    def reach(name, lease):
        if name == step:
            owner.steps._dies_before = len(owner.steps.reached)
        real(name, lease)

    owner.runtime.effects.steps.reach = reach


def copied(world: CrashWorld) -> dict[str, Any]:
    """Return the intent stored in the ConfigMap."""
    return msgspec.json.decode(world.kube.kind("configmaps")[COPY]["data"]["record"])


def during_the_call(world: CrashWorld, look: Callable[[], object]) -> list[object]:
    """Return a list that gets the result of `look` at the end of each CreateVolume call."""
    seen, real = [], world.storage.create_volume

    def create(request, **options):
        try:
            return real(request, **options)
        finally:
            seen.append(look())

    world.storage.create_volume = create
    return seen


def nothing_left(world: CrashWorld) -> None:
    assert world.storage.volumes == {}
    assert world.kube.kind("persistentvolumes") == {}
    assert world.left_in_redis() == []
    assert world.kube.kind("configmaps") == {}


def lost_and_deleted(world: CrashWorld) -> None:
    """Empty Redis and delete the claim; then let a new worker finish."""
    world.wipe()
    world.delete_claim()
    world.live(world.owner())
    nothing_left(world)


# The copy describes the present attempt.


def test_a_slow_call_has_the_deadline_of_its_own_in_its_copy(redis_client):
    """The driver runs two calls of one name in parallel, and ends the second after a minute."""
    world = dead_before(redis_client, Step.RECORD_VOLUME, kind=PatientWorld)
    world.storage.volumes.clear()  # the first call made no volume
    second = world.owner()
    world.kube.fail["get_claim"] = [NO]
    world.live(second, passes=1)  # the reconcile ends there: it copies what it knows
    world.now_ms += 60_000
    world.storage.plans = ["slow"]
    dies_before(second, Step.RECORD_VOLUME)
    world.live(second)
    assert second.is_dead
    assert (
        copied(world)["deadline"]
        == IntentStore(redis_client, driver=DRIVER).get(VOLUME)["deadline"]
    )
    world.storage.volumes.clear()
    world.late_at = world.now_ms + 58_000
    world.pass_away()
    lost_and_deleted(world)
    assert not world.late_at


def test_a_slow_call_has_its_class_in_its_copy(redis_client):
    """The class is created again with other parameters after the first call."""
    world = dead_before(redis_client, Step.CREATE_VOLUME)
    first = world.storage_class.get("parameters")
    world.hide_class()
    world.storage_class = {**world.storage_class, "parameters": {"type": "new"}}
    world.show_class()
    world.storage.plans = ["slow"]
    seen = during_the_call(world, lambda: copied(world)["class"].get("parameters"))
    world.live(world.owner())
    assert seen == [first]


@pytest.mark.parametrize("first", [TIMEOUT, ("after", TIMEOUT)], ids=["nothing made", "made"])
def test_a_slow_call_after_an_unknown_end_has_a_copy_of_its_own(redis_client, first):
    world = CrashWorld(redis_client)
    world.add_claim()
    world.storage.plans = [first, "slow"]
    owner = world.owner()
    world.live(owner, passes=1)
    intents = IntentStore(redis_client, driver=DRIVER)
    seen = during_the_call(
        world, lambda: copied(world)["deadline"] == intents.get(VOLUME)["deadline"]
    )
    world.live(owner)
    assert seen == [True]


def test_a_copy_that_was_perhaps_removed_is_written_again(redis_client):
    """The removal got no answer; the next call is slow, and its worker dies during the call."""
    world = CrashWorld(redis_client)
    world.add_claim()
    world.storage.plans = [TIMEOUT, INTERNAL, "slow"]
    remove, lost = world.kube.delete_config_map, [AWAY]

    def removed(*args):
        remove(*args)
        if lost:
            raise lost.pop()

    world.kube.delete_config_map = removed
    owner = world.owner()
    world.live(owner, passes=2)
    assert not lost
    dies_before(owner, Step.RECORD_VOLUME)
    seen = during_the_call(world, lambda: COPY in world.kube.kind("configmaps"))
    world.live(owner)
    assert seen == [True]
    world.pass_away()
    lost_and_deleted(world)


# Every exit of a reconcile.


@pytest.mark.parametrize("error", [DriverAway("gone"), BUSY], ids=["driver", "its secret"])
def test_a_volume_that_makes_no_pv_of_a_gone_claim_is_copied(redis_client, error):
    """The deletion of the volume fails with an error that ends the reconcile."""
    world = dead_before(redis_client, Step.SAVE_VOLUME)
    world.delete_claim()
    world.kube.fail["create_volume"] = [BAD] * 3
    delete, away = world.storage.delete_volume, [error] * 3

    def deleted(*args, **options):
        if away:
            raise away.pop()
        return delete(*args, **options)

    world.storage.delete_volume = deleted
    world.live(world.owner(), passes=2)
    lost_and_deleted(world)


def test_an_error_that_ends_the_pass_leaves_a_copy(redis_client):
    """The API server serves other requests, so this failure may last for hours."""
    world = dead_before(redis_client, Step.RECORD_VOLUME, restore)
    world.kube.fail["get_snapshot"] = [BROKEN] * 9
    world.live(world.owner(), passes=2)
    assert COPY in world.kube.kind("configmaps")
    world.kube.fail.clear()
    lost_and_deleted(world)


def test_an_api_server_that_is_away_is_not_asked_for_a_copy(world, claim):
    """The write would fail too, every second and for each key."""
    world.client.answers = [TIMEOUT]
    world.claim_pass(claim)
    world.intents.intents[VOLUME]["is_copied"] = False
    world.kube.fail["get_claim"] = [AWAY]
    world.kube.fail["apply_config_map"] = [NO]
    with pytest.raises(Unreachable):
        world.claim_pass(claim)
    assert world.kube.fail["apply_config_map"] == [NO]


class Plugin:
    """A plug-in that returns an unusable PV."""

    name = DRIVER

    def __init__(self, volume):
        self.options, self.volume = Options(), volume

    def provision(self, options):
        return ProvisionResult(self.volume)

    def delete(self, volume):
        pass


@pytest.mark.parametrize("volume", [None, {"metadata": VOLUME}], ids=["none", "a name"])
def test_the_volume_of_a_plugin_that_names_no_pv_is_copied(volume):
    """No worker has to die: the volume exists, and an event reports the plug-in's error."""
    world = World()
    world.driver = custom_driver(Plugin(volume), Settings())
    world.add_class()
    world.claim_pass(world.add_claim())
    assert "ProvisioningFailed" in world.events.reasons()
    assert COPY in world.kube.kind("configmaps")


def test_a_call_that_is_cancelled_for_a_go_sidecar_is_copied(world, claim):
    """--leader-election: the Go sidecar is active now, and does not know about this call."""
    is_permitted, lease_of = [True], world.lease

    def lease(*args):
        lease = lease_of(*args)
        lease.permit = lambda: bool(is_permitted)
        return lease

    def cancelled(_request):
        is_permitted.clear()
        return LeaseLost("CreateVolume was cancelled: others may work now")

    world.lease = lease
    world.client.answers = [cancelled]
    with pytest.raises(LeaseLost):
        world.claim_pass(claim)
    assert COPY in world.kube.kind("configmaps")


def test_nobody_strands_a_record_without_its_copy(world, claim):
    """A stranded key is not retried, and `audit` still shows the copy if Redis loses the intent."""
    world.client.answers = [TIMEOUT]
    world.kube.fail["apply_config_map"] = [NO] * 3
    world.claim_pass(claim)
    world.drop_claim()
    world.kube.drop("storageclasses.storage.k8s.io", "fast")
    world.intents.intents[VOLUME]["class"] = None
    lease_of = world.lease

    def lease(*args):
        lease = lease_of(*args)
        lease.fails = 8
        return lease

    world.lease = lease
    actions = [world.claim_pass(claim).action for _ in range(3)]
    assert actions == [Action.RETRY, Action.RETRY, Action.DONE]
    assert copied(world)["stage"] == "stranded"


# Requests that copies cost.


@pytest.mark.parametrize("is_slow", [False, True], ids=["fast", "slow"])
@pytest.mark.parametrize("error", [NO, AWAY], ids=["refused", "away"])
def test_a_pass_tries_each_copy_once(world, claim, error, is_slow):
    """An immediate second try would fail too, and hold the thread and the CPU slot for longer."""
    world.client.answers = [TIMEOUT]
    world.client.is_slow = is_slow
    world.kube.fail["apply_config_map"] = [error] * 9
    world.claim_pass(claim)
    assert 9 - len(world.kube.fail["apply_config_map"]) == 1 + is_slow


@pytest.mark.parametrize(
    ("plans", "requests"),
    [
        pytest.param([], [], id="happy"),
        pytest.param(["slow"], [*["apply_config_map"] * 2, "delete_config_map"], id="slow"),
        pytest.param([INTERNAL], [], id="a final error"),
        pytest.param([CsiError(3, "never")], [], id="infeasible"),
    ],
)
def test_a_claim_without_a_fault_needs_no_copy(redis_client, plans, requests):
    world = CrashWorld(redis_client)
    world.add_claim()
    world.storage.plans = list(plans)
    seen: list[str] = []
    for name in ("apply_config_map", "delete_config_map"):
        real = getattr(world.kube, name)

        def call(*args, name=name, real=real):
            seen.append(name)
            return real(*args)

        setattr(world.kube, name, call)
    world.live(world.owner())
    world.delete_claim()
    world.live(world.owner())
    assert seen == requests


def test_a_full_namespace_does_not_turn_a_wait_into_a_failure(redis_client):
    """The intent was deleted by hand during a reconcile; the copy restores it."""
    world = dead_before(redis_client, Step.RECORD_VOLUME)
    world.delete_claim()
    owner = world.owner()
    owner.runtime.parts["provisioner"].intents._namespace_bytes = 10
    real = owner.steps.reach

    def reach(step, lease):
        if step is Step.COPY_INTENT:
            redis_client.hdel(f"csifleet:intents:{DRIVER}", VOLUME)
        real(step, lease)

    owner.runtime.effects.steps.reach = reach
    world.live(owner, passes=1)
    assert COPY in world.kube.kind("configmaps")
    failures = owner.runtime.metrics.unexpected_errors
    assert failures.labels("claims", DRIVER)._value.get() == 0


@pytest.mark.parametrize("record", ["of before", "of now"])
def test_records_of_both_versions_end(world, claim, record):
    """A rolling upgrade: the old release ignores `is_copied`, and its intents lack the field."""
    world.client.answers = [TIMEOUT, TIMEOUT]
    world.claim_pass(claim)
    kept = world.intents.intents[VOLUME]
    assert kept["is_copied"] is True
    if record == "of before":
        del kept["is_copied"]
    world.claim_pass(claim)
    assert world.claim_pass(claim).action is Action.DONE
    assert (world.kube.kind("configmaps"), world.intents.intents) == ({}, {})

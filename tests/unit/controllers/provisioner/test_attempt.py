"""Attempts to provision: unusable answers, clean-up, secrets that never leak (P-150, P-430)."""

from __future__ import annotations

import base64
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from csi_client import errors
from csi_client import messages as csi
from csi_client.errors import CsiError
from tests.support.fake_cluster import TOPOLOGY, World, default_answer
from workers.controllers.provisioner import attempt
from workers.engine.outcome import Action
from workers.engine.steps import Step
from workers.errors import AttemptError, LeaseLost, State
from workers.kube.errors import (
    AwayError,
    ForbiddenError,
    ServerError,
    TooManyRequestsError,
    Unreachable,
)

DOMAIN = "pvc-u1"
CREDS = {
    "csi.storage.k8s.io/provisioner-secret-name": "creds",
    "csi.storage.k8s.io/provisioner-secret-namespace": "default",
}


def answer(**volume):
    return csi.CreateVolumeResponse(volume=csi.Volume(**volume))


def add_secret(world, **data):
    world.kube.add("secrets", {"metadata": {"name": "creds", "namespace": "default"}, "data": data})


def encoded(value: bytes) -> str:
    return base64.b64encode(value).decode()


UNUSABLE = [
    pytest.param(answer(volume_id="v", capacity_bytes=1023), True, id="T-050 too small"),
    pytest.param(answer(volume_id="v", capacity_bytes=-5), True, id="negative capacity"),
    pytest.param(answer(volume_id="v", capacity_bytes=-(2**63)), True, id="smallest capacity"),
    pytest.param(answer(volume_id=""), False, id="D-002 empty volume id"),
    pytest.param(csi.CreateVolumeResponse(), False, id="D-002 no volume"),
]


@pytest.mark.parametrize(("unusable", "is_deleted"), UNUSABLE)
def test_t050_an_unusable_answer_is_told_cleaned_up_and_retried(world, claim, unusable, is_deleted):
    world.client.answers = [unusable]
    assert world.claim_pass(claim).action is Action.RETRY
    assert world.volumes() == {}
    assert world.client.deleted == ([("v", {})] if is_deleted else [])
    assert len(world.events.warnings()) == 1
    assert world.claim_pass(claim).action is Action.DONE
    assert set(world.volumes()) == {DOMAIN}


IN_USE = "test-volume-id"  # ID of the volume that the first claim got


def its_own(request):
    """Return the answer that the driver should have given."""
    found = default_answer(request)
    found.volume.volume_id = "its own"
    return found


@pytest.mark.parametrize(
    ("wrong", "spec"),
    [
        pytest.param(answer(volume_id=IN_USE, capacity_bytes=1023), {}, id="too small"),
        pytest.param(answer(volume_id=IN_USE, capacity_bytes=-5), {}, id="negative capacity"),
        pytest.param(
            answer(volume_id=IN_USE, capacity_bytes=1024),
            {"dataSource": {"kind": "PersistentVolumeClaim", "name": "data"}},
            id="a clone without its source",
        ),
    ],
)
def test_an_unusable_answer_with_the_id_of_a_volume_in_use_deletes_nothing(
    world, claim, wrong, spec
):
    """The driver mixed up two calls: a clean-up would delete the data of the other claim."""
    world.claim_pass(claim)
    world.driver = replace(
        world.driver, controller_capabilities=world.controller | {"CLONE_VOLUME"}
    )
    world.live_claim()["spec"]["volumeName"] = DOMAIN
    world.live_claim()["status"] = world.volumes()[DOMAIN]["status"] = {"phase": "Bound"}
    other = world.add_claim("other", "u2", **spec)
    world.client.answers = [wrong, its_own]
    assert world.claim_pass(other).action is Action.RETRY
    assert world.client.deleted == []
    (told,) = world.events.warnings()
    assert told.endswith(f"volume {IN_USE} is kept because PersistentVolume {DOMAIN} names it")
    assert world.claim_pass(other).action is Action.DONE
    assert world.volumes()["pvc-u2"]["spec"]["csi"]["volumeHandle"] == "its own"


def test_t017_without_its_class_a_claim_asks_nothing_and_comes_again(world, claim):
    """The library looks the class up first, so no provisioner sees a claim without one (L-022)."""
    world.kube.drop("storageclasses.storage.k8s.io", "fast")
    outcome = world.claim_pass(claim)
    assert (outcome.action, outcome.reason) == (Action.RETRY, "storage class not found")
    assert world.client.created == []
    assert world.intents.intents == {}


def test_t051_a_clean_up_that_fails_five_times_is_in_progress(world, claim):
    """P-430: The clean-up tries five times with the same secrets.

    The state is then InBackground.
    """
    world.kube.drop("storageclasses.storage.k8s.io", "fast")
    world.add_class(parameters=CREDS)
    add_secret(world, key=encoded(b"value"))
    world.client.answers = [answer(volume_id="v", capacity_bytes=1)]
    world.client.delete_answers = [CsiError(9, "busy")] * 9
    world.claim_pass(claim)
    assert world.client.deleted == [("v", {"key": "value"})] * 5
    (told,) = world.events.warnings()
    assert told.endswith("volume is orphaned: rpc error: code = FailedPrecondition desc = busy")
    assert world.intents.intents[DOMAIN]["stage"] == "background"


def test_p430_nothing_is_sent_after_the_window_of_the_clean_up(world, claim, monkeypatch):
    """All tries share one `--timeout`, so a driver that hangs is called only once (D-010)."""
    clock = [100.0]
    monkeypatch.setattr(attempt.time, "monotonic", lambda: clock[0])

    def hangs(_volume_id, _secrets, *, timeout_seconds):
        world.client.deleted.append(timeout_seconds)
        clock[0] += timeout_seconds
        raise CsiError(4, "context deadline exceeded")

    world.client.answers = [answer(volume_id="v", capacity_bytes=1)]
    world.client.delete_volume = hangs
    world.claim_pass(claim)
    assert len(world.client.deleted) == 1
    (told,) = world.events.warnings()
    assert told.endswith(
        "orphaned: rpc error: code = DeadlineExceeded desc = context deadline exceeded"
    )


def test_t052_capacity_zero_means_as_requested(world, claim):
    world.client.answers = [answer(volume_id="v")]
    world.claim_pass(claim)
    assert world.volumes()[DOMAIN]["spec"]["capacity"] == {"storage": "1Ki"}


def test_the_largest_capacity_is_stored_as_it_is(world, claim):
    world.client.answers = [answer(volume_id="v", capacity_bytes=2**63 - 1)]
    world.claim_pass(claim)
    assert world.volumes()[DOMAIN]["spec"]["capacity"] == {"storage": "9223372036854775807"}


def test_topologies_without_segments_give_no_affinity():
    """D-014: A PV gets no node affinity if the accessible topologies have no segments."""
    world = World(plugin=TOPOLOGY)
    world.add_class(volumeBindingMode="Immediate")
    object.__setattr__(
        world.driver,
        "plugin_capabilities",
        frozenset({"CONTROLLER_SERVICE", "VOLUME_ACCESSIBILITY_CONSTRAINTS"}),
    )
    world.clusters.topology = type(world.clusters.topology).of_node(
        "n1", world.driver.name, {"zone": "z1"}
    )
    world.client.answers = [
        answer(volume_id="v", accessible_topology=[csi.Topology(), csi.Topology()])
    ]
    world.claim_pass(world.add_claim())
    assert "nodeAffinity" not in world.volumes()[DOMAIN]["spec"]


@pytest.mark.parametrize("attempts", [3])
def test_t056_every_attempt_uses_one_name(world, claim, attempts):
    """P-425: Each retry requests the same volume name, so the driver can answer idempotently."""
    world.client.answers = [CsiError(4, "slow")] * attempts
    for _ in range(attempts + 1):
        world.claim_pass(claim)
    assert {one.name for one in world.client.created} == {DOMAIN}
    assert len(world.client.created) == attempts + 1


@pytest.fixture
def secret_world(world):
    world.add_class(parameters=CREDS)
    return world


def test_t031_a_missing_secret_is_named_and_the_driver_not_asked(secret_world):
    world = secret_world
    assert world.claim_pass(world.add_claim()).action is Action.RETRY
    assert world.events.warnings() == [
        'error getting secret creds in namespace default: secrets "creds" not found'
    ]
    assert world.client.created == []


def test_a_forbidden_secret_is_told(secret_world):
    world = secret_world
    world.kube.fail["get_secret"] = [ForbiddenError(403, "Forbidden", "no right")]
    world.claim_pass(world.add_claim())
    (told,) = world.events.warnings()
    assert told.endswith("no right")


def test_d033_a_value_that_is_no_text_is_named_not_shown(secret_world):
    world = secret_world
    add_secret(world, good=encoded(b"fine"), bad=encoded(b"s3cr\xff\xfet"))
    assert world.claim_pass(world.add_claim()).action is Action.RETRY
    (told,) = world.events.warnings()
    assert "bad" in told
    assert "default/creds" in told
    assert "s3cr" not in told
    assert world.client.created == []


def test_secrets_reach_the_driver_and_no_record(secret_world):
    """No intent, intent copy, PV or event contains the value of a secret."""
    world = secret_world
    add_secret(world, password=encoded(b"planted-value"))
    world.client.answers = [CsiError(4, "slow")]
    claim = world.add_claim()
    world.claim_pass(claim)
    kept = [world.intents.intents, world.kube.kind("configmaps"), world.events.seen]
    world.claim_pass(claim)
    kept += [world.volumes(), world.events.seen]
    assert dict(world.client.created[1].secrets) == {"password": "planted-value"}
    for form in ("planted-value", encoded(b"planted-value")):
        assert form not in repr(kept)


@pytest.mark.parametrize(
    "error",
    [
        ServerError(503, "ServiceUnavailable", "busy"),
        TooManyRequestsError(429, "TooManyRequests", "busy"),
        Unreachable("no answer"),
    ],
    ids=["503", "429", "no answer"],
)
def test_an_api_server_that_is_away_is_no_fault_of_the_claim(secret_world, error):
    """The reconcile ends with `AwayError`: no event is emitted and the back-off doesn't grow."""
    world = secret_world
    world.kube.fail["get_secret"] = [error]
    with pytest.raises(AwayError):
        world.claim_pass(world.add_claim())
    assert world.events.warnings() == []


class Losing:
    """Loses the lease just before a given step."""

    def __init__(self, step):
        self.step = step

    def reach(self, reached, lease):
        if reached is self.step:
            raise LeaseLost("lost")


@pytest.mark.parametrize(
    "step", [Step.RECORD_INTENT, Step.CREATE_VOLUME, Step.SAVE_VOLUME, Step.FORGET_INTENT]
)
def test_a_lost_lease_stops_before_the_next_effect(world, claim, step):
    """G9: A worker that has lost its lease does not perform the next step."""
    world.runtime.effects.steps = Losing(step)
    with pytest.raises(LeaseLost):
        world.claim_pass(claim)
    assert (world.client.created == []) is (step in {Step.RECORD_INTENT, Step.CREATE_VOLUME})
    assert (world.volumes() == {}) is (step is not Step.FORGET_INTENT)
    assert (DOMAIN in world.intents.intents) is (step is not Step.RECORD_INTENT)


@pytest.mark.parametrize(
    "answers",
    [
        pytest.param([], id="made"),
        pytest.param([CsiError(errors.INTERNAL, "no")], id="final"),
        pytest.param([CsiError(errors.INVALID_ARGUMENT, "never")], id="infeasible"),
    ],
)
def test_a_record_s_copy_stays_the_next_owner_s_however_the_call_ended(world, claim, answers):
    """G9: Only the holder of the lease removes an intent copy or marks an intent as failed."""
    world.runtime.effects.steps = Losing(Step.FORGET_INTENT)
    world.client.is_slow = True
    world.client.answers = answers
    with pytest.raises(LeaseLost):
        world.claim_pass(claim)
    assert "configmaps" in {kind for kind, *_ in world.kube.objects}
    assert b"failed" not in world.intents.intents[DOMAIN]


@pytest.mark.parametrize(
    ("problem", "state"),
    [(None, State.FINISHED), (CsiError("UNAVAILABLE", "gone"), State.BACKGROUND)],
)
def test_a_migrated_volume_without_an_in_tree_form_is_deleted_or_remembered(problem, state):
    """P-605, D-001: The attempt is finished only if the driver has deleted the volume."""
    deleted: list[str] = []
    own: Any = SimpleNamespace(
        work=SimpleNamespace(driver=SimpleNamespace(name="ebs.csi.aws.com")),
        clean_up=lambda _, volume_id: deleted.append(volume_id) or problem,
    )
    nameless = {"metadata": {"name": "pv-1"}, "spec": {}}
    with pytest.raises(AttemptError) as caught:
        attempt.Attempt.to_in_tree(own, None, nameless, "v-1")  # type: ignore[arg-type]
    assert (caught.value.state, deleted) == (state, ["v-1"])


def test_every_effect_of_a_slow_call_is_announced(world, claim):
    """I-7: The crash tests stop before each announced step, also before the mid-call copy."""
    reached = []
    world.runtime.effects.steps = SimpleNamespace(reach=lambda step, _lease: reached.append(step))
    world.client.is_slow = True
    assert world.claim_pass(claim).action is Action.DONE
    assert reached == [
        *(Step.RECORD_INTENT, Step.CREATE_VOLUME, Step.COPY_INTENT),
        *(Step.RECORD_VOLUME, Step.SAVE_VOLUME, Step.FORGET_INTENT),
    ]

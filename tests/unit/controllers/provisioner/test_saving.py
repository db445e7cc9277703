"""A volume that exists gets its PV, however long the API server refuses (M-011, L-080, L-084)."""

from __future__ import annotations

import pytest

from csi_client import messages as csi
from csi_client.errors import CsiError
from tests.support.fake_cluster import World, default_answer
from workers.config.settings import ProvisionSettings, Settings
from workers.engine.outcome import Action
from workers.errors import ApiError
from workers.kube.errors import (
    ForbiddenError,
    InvalidError,
    ServerError,
    TooManyRequestsError,
    Unreachable,
)

DOMAIN = "pvc-u1"
QUOTA = ForbiddenError(403, "Forbidden", "exceeded quota: gold")
WEBHOOK = ServerError(500, "InternalError", "failed calling webhook: no endpoints")


@pytest.mark.parametrize(
    "error",
    [
        pytest.param(QUOTA, id="C-051 quota"),
        pytest.param(WEBHOOK, id="C-051 webhook"),
    ],
)
def test_c051_d040_a_refused_save_is_told_and_tried_again(world, claim, error):
    """The PV is recorded, so CreateVolume is not called a second time."""
    world.kube.fail["create_volume"] = [error] * 3
    for _ in range(3):
        outcome = world.claim_pass(claim)
        assert outcome.action is Action.RETRY
        assert (outcome.base_seconds, outcome.cap_seconds) == (0.1, 1000.0)
    assert DOMAIN in world.intents.unsaved
    assert world.events.warnings() == [f"failed to save volume {DOMAIN}: {error}"] * 3
    assert world.claim_pass(claim).action is Action.DONE
    assert len(world.client.created) == 1
    assert world.client.deleted == []
    assert world.events.reasons().count("ProvisioningSucceeded") == 1


@pytest.mark.parametrize(
    "error",
    [
        pytest.param(ServerError(503, "ServiceUnavailable", "busy"), id="503"),
        pytest.param(TooManyRequestsError(429, "TooManyRequests", "busy"), id="429"),
    ],
)
def test_a_busy_api_server_is_nothing_to_tell_the_user(world, claim, error):
    """COR-15: The PV is valid and will be saved, so no event is emitted."""
    world.kube.fail["create_volume"] = [error] * 3
    assert [world.claim_pass(claim).action for _ in range(3)] == [Action.RETRY] * 3
    assert world.events.warnings() == []
    assert world.claim_pass(claim).action is Action.DONE
    assert len(world.client.created) == 1


UNSAVABLE = [
    pytest.param(InvalidError(422, "Invalid", "nodeAffinity: bad label"), id="invalid"),
    pytest.param(ApiError(413, "RequestEntityTooLarge", "limit is 3145728"), id="too large"),
    pytest.param(ServerError(500, "InternalError", "etcdserver: request is too large"), id="etcd"),
]


POLICY = ForbiddenError(422, "Invalid", "ValidatingAdmissionPolicy 'p' denied request: no")


def test_a_policy_that_refuses_with_422_keeps_the_volume(world, claim):
    """G8: The volume is fine, and the policy may be changed."""
    world.kube.fail["create_volume"] = [POLICY] * 2
    for _ in range(2):
        assert world.claim_pass(claim).action is Action.RETRY
        assert set(world.intents.unsaved) == {DOMAIN}
    assert world.claim_pass(claim).action is Action.DONE
    assert len(world.client.created) == 1


@pytest.mark.parametrize("error", UNSAVABLE)
def test_a_volume_that_no_valid_pv_can_hold_is_asked_for_again(world, claim, error):
    """L-083: Only a different answer of the driver can help, so the driver is called again."""
    world.kube.fail["create_volume"] = [error] * 2
    assert world.claim_pass(claim).action is Action.RETRY
    assert world.claim_pass(claim).action is Action.RETRY
    assert world.events.warnings() == [f"failed to save volume {DOMAIN}: {error}"] * 2
    assert world.claim_pass(claim).action is Action.DONE
    assert {one.name for one in world.client.created} == {DOMAIN}
    assert len(world.client.created) == 3
    assert world.client.deleted == []
    assert world.kube.kind("configmaps") == {}


@pytest.mark.parametrize("error", UNSAVABLE)
def test_such_a_volume_is_deleted_once_its_claim_is_gone(world, claim, error):
    """Without a PV nothing else would ever delete the volume."""
    world.kube.fail["create_volume"] = [error] * 9
    world.claim_pass(claim)
    world.drop_claim()
    world.client.delete_answers = [CsiError(14, "not now")]
    assert world.claim_pass(claim).action is Action.RETRY
    assert DOMAIN in world.intents.intents
    assert world.claim_pass(claim).action is Action.DONE
    assert world.client.deleted == [("test-volume-id", {})] * 2
    assert (world.intents.intents, world.intents.unsaved) == ({}, {})
    assert world.kube.kind("configmaps") == {}


def test_its_record_stays_until_its_copy_is_gone(world, claim):
    """M-010: The copy alone would restore the attempt, although its volume is deleted."""
    world.kube.fail["create_volume"] = [InvalidError(422, "Invalid", "bad")] * 9
    world.claim_pass(claim)
    world.drop_claim()
    world.kube.fail["delete_config_map"] = [ServerError(503, "ServiceUnavailable", "busy")]
    assert world.claim_pass(claim).action is Action.RETRY
    assert DOMAIN in world.intents.intents
    assert len(world.kube.kind("configmaps")) == 1
    assert world.claim_pass(claim).action is Action.DONE
    assert (world.intents.intents, world.kube.kind("configmaps")) == ({}, {})


def test_such_a_volume_stays_with_policy_retain(world):
    world.add_class(reclaimPolicy="Retain")
    claim = world.add_claim()
    world.kube.fail["create_volume"] = [InvalidError(422, "Invalid", "bad")] * 9
    world.claim_pass(claim)
    world.drop_claim()
    assert world.claim_pass(claim).action is Action.RETRY
    assert world.client.deleted == []
    assert DOMAIN in world.intents.intents


def test_c052_an_api_server_that_is_away_is_no_event(world, claim):
    world.kube.fail["create_volume"] = [Unreachable("connection refused")] * 2
    world.claim_pass(claim)
    world.claim_pass(claim)
    world.claim_pass(claim)
    assert set(world.volumes()) == {DOMAIN}
    assert world.intents.unsaved == {}
    assert world.events.reasons() == ["Provisioning", "ProvisioningSucceeded"]


def test_c053_the_volume_of_a_deleted_claim_is_saved_without_event(world, claim):
    world.kube.fail["create_volume"] = [Unreachable("connection refused")]
    world.claim_pass(claim)
    world.drop_claim()
    assert world.claim_pass(claim).action is Action.DONE
    assert world.volumes()[DOMAIN]["spec"]["claimRef"]["uid"] == "u1"
    assert "ProvisioningSucceeded" not in world.events.reasons()


def test_c054_c055_no_volume_is_deleted_because_saving_fails(world, claim):
    """The library's default store would delete the volume.

    The CSI provisioner's never does (L-080).
    """
    world.kube.fail["create_volume"] = [QUOTA] * 10
    for _ in range(10):
        world.claim_pass(claim)
    assert world.client.deleted == []
    assert "ProvisioningCleanupFailed" not in world.events.reasons()


def test_c003_an_equal_volume_that_exists_is_success(world, claim):
    """L-084: The claimRef's UID and the volume handle are compared."""
    other = World()
    other.add_class()
    other.claim_pass(other.add_claim())
    world.kube.add("persistentvolumes", other.volumes()[DOMAIN])
    assert world.claim_pass(claim).action is Action.DONE
    assert world.events.reasons()[-1] == "ProvisioningSucceeded"


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"claimRef": {"uid": "other"}}, id="C-058 another claim"),
        pytest.param({"claimRef": {}}, id="C-058 no claim"),
        pytest.param({"csi": {"driver": "d", "volumeHandle": "other"}}, id="C-058 other handle"),
        pytest.param({"csi": None, "hostPath": {"path": "/x"}}, id="C-058 not CSI"),
    ],
)
def test_c058_a_foreign_volume_of_that_name_is_told_and_left_alone(world, claim, change):
    spec = {
        "claimRef": {"uid": "u1"},
        "csi": {"driver": "d", "volumeHandle": "test-volume-id"},
    } | change
    world.kube.add("persistentvolumes", {"metadata": {"name": DOMAIN}, "spec": spec})
    assert world.claim_pass(claim).action is Action.RETRY
    assert "ProvisioningSucceeded" not in world.events.reasons()
    (told,) = world.events.warnings()
    assert "already exists and belongs to another claim or volume" in told
    assert world.client.deleted == []
    # Once the other PV is deleted, the volume's PV is saved.
    world.kube.drop("persistentvolumes", DOMAIN)
    assert world.claim_pass(claim).action is Action.DONE


def test_c058_two_claims_with_one_truncated_name():
    """D-005: The second claim never gets the first claim's volume."""
    world = World(Settings(provision=ProvisionSettings(volume_name_uuid_length=1)))
    world.add_class()
    world.claim_pass(world.add_claim("one", "a1"))
    world.claim_pass(world.add_claim("two", "a2"))
    assert world.volumes()["pvc-a"]["spec"]["claimRef"]["uid"] == "a1"
    assert world.events.reasons().count("ProvisioningSucceeded") == 1
    assert "already exists" in world.events.warnings()[-1]


def test_c056_a_recorded_volume_is_saved_without_asking_the_driver_again(world, claim):
    """M-011: A worker that dies between recording and saving the volume leaves this state."""
    other = World()
    other.add_class()
    other.kube.fail["create_volume"] = [Unreachable("died here")]
    other.claim_pass(other.add_claim())
    world.intents.intents, world.intents.unsaved = other.intents.intents, other.intents.unsaved
    assert world.claim_pass(claim).action is Action.DONE
    assert world.client.created == []
    assert set(world.volumes()) == {DOMAIN}


def test_c057_a_recorded_call_of_a_deleted_claim_is_run_to_its_end(world, claim):
    """M-010: A worker that dies between the record and the call leaves this state."""
    world.client.answers = [CsiError(14, "died here")]
    world.claim_pass(claim)
    world.intents.intents[DOMAIN]["stage"] = "calling"
    world.drop_claim()
    assert world.claim_pass(claim).action is Action.WAIT  # the call may still run at the driver
    world.intents.intents[DOMAIN]["deadline"] = 1.0
    assert world.claim_pass(claim).action is Action.DONE
    assert set(world.volumes()) == {DOMAIN}
    assert world.intents.intents == {}


def test_the_copy_is_removed_before_the_key_is_done(world, claim):
    """After a loss of Redis, a leftover ConfigMap would create a deleted volume again."""
    world.client.answers = [CsiError(4, "slow"), default_answer]
    world.claim_pass(claim)
    world.kube.fail["delete_config_map"] = [ServerError(503, "ServiceUnavailable", "busy")]
    assert world.claim_pass(claim).action is Action.RETRY
    assert world.intents.intents[DOMAIN]["stage"] == "saved"
    assert world.intents.unsaved == {}  # a PV that is deleted in the meantime is not created again
    assert world.claim_pass(claim).action is Action.DONE
    assert world.intents.intents == {}
    assert world.kube.kind("configmaps") == {}
    assert isinstance(world.client.created[0], csi.CreateVolumeRequest)


def test_a_volume_the_api_refuses_is_remembered_outside_of_redis_too(world, claim):
    """After its claim is deleted and Redis has lost its data, only the copy shows the volume."""
    world.kube.fail["create_volume"] = [QUOTA] * 2
    world.claim_pass(claim)
    assert set(world.kube.kind("configmaps")) == {"csi-fleet-intent-pvc-u1"}
    world.claim_pass(claim)
    world.claim_pass(claim)
    assert world.kube.kind("configmaps") == {}
    assert set(world.volumes()) == {DOMAIN}

"""A claim whose request is infeasible waits long, without events, but not too long (P-414)."""

from __future__ import annotations

import time

import pytest

from csi_client.errors import CsiError
from tests.support.fake_cluster import World
from workers.config.settings import ProvisionSettings, Settings
from workers.controllers.provisioner.claims import slow_delay_seconds
from workers.engine.outcome import Action

DOMAIN = "pvc-u1"


def rpc(code, details="told to fail"):
    return CsiError(code, details)


@pytest.mark.parametrize("seconds", [300.0, 77.0])
def test_t059_c044_an_infeasible_claim_waits_silently(seconds):
    """P-414, L-060: The claim waits for --retry-interval-max (D-023)."""
    settings = Settings(provision=ProvisionSettings(retry_interval_max_seconds=seconds))
    world = World(settings)
    world.add_class()
    claim = world.add_claim()
    world.client.answers = [rpc(3, "no such pool")]
    first = world.claim_pass(claim)
    assert first.delay_seconds == pytest.approx(seconds)
    assert world.intents.intents == {}
    told = list(world.events.seen)
    for _ in range(3):
        again = world.claim_pass(claim)
        assert again.action is Action.RETRY
        assert again.delay_seconds == pytest.approx(seconds, abs=5)
    assert len(world.client.created) == 1
    assert world.events.seen == told
    assert told[-1][2] == (
        "Volume provisioning failed with infeasible error. Retries will be delayed. "
        "rpc error: code = InvalidArgument desc = no such pool"
    )


def test_c045_a_replaced_class_ends_the_wait(world, claim):
    world.client.answers = [rpc(3)]
    world.claim_pass(claim)
    world.kube.drop("storageclasses.storage.k8s.io", "fast")
    world.add_class()
    world.claim_pass(claim)
    assert set(world.volumes()) == {DOMAIN}


def test_c046_the_wait_ends_by_itself(world, claim):
    world.client.answers = [rpc(3)]
    world.claim_pass(claim)
    now = time.time()
    world.clock = lambda: now + 301
    world.claim_pass(claim)
    assert set(world.volumes()) == {DOMAIN}


def test_c047_an_internal_error_does_not_slow_down(world, claim):
    world.client.answers = [rpc(13)]
    assert world.claim_pass(claim).delay_seconds == 0
    world.claim_pass(claim)
    assert len(world.client.created) == 2


@pytest.mark.parametrize("memo", ["", "{", "[]", '{"slow_until": "soon", "class_uid": ""}', "{}"])
def test_an_unreadable_memo_never_delays(memo):
    assert slow_delay_seconds(memo, None, 0.0) == 0

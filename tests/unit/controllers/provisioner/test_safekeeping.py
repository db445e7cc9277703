"""Intents in Redis and their copies in ConfigMaps are written, marked and dropped (M-010)."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

from csi_client.errors import CsiError
from tests.support.fake_cluster import DRIVER
from workers.controllers.provisioner import safekeeping
from workers.controllers.provisioner.intent import Intent
from workers.deadlines import Deadline
from workers.engine.outcome import Action
from workers.engine.steps import Step
from workers.errors import RecordTooLarge, State
from workers.kube.errors import ForbiddenError, ServerError, Unreachable
from workers.queue.keys import claim_key
from workers.queue.records import encode

DOMAIN = "pvc-u1"
COPY = f"csi-fleet-intent-{DOMAIN}"
KEY = claim_key(DRIVER, "default", "data", "u1")
SLOW = CsiError(4, "slow")
REFUSED = ServerError(503, "ServiceUnavailable", "busy")
INTENT = Intent(
    key=KEY.text,
    driver=DRIVER,
    claim={"metadata": {"namespace": "default", "name": "data", "uid": "u1"}},
    selected_node="",
    stage="calling",
    has_copy=False,
    since=1.0,
)


@pytest.fixture
def keeping(world):
    return world.own.safekeeping


@pytest.fixture
def lease(world):
    return world.lease(KEY, DOMAIN)


def test_sec4_a_claim_of_64_kib_is_the_largest(world, keeping, lease, monkeypatch):
    """SEC-4: The limit is exact to the byte, as documented."""
    size = len(encode(INTENT.claim))
    monkeypatch.setattr(safekeeping, "CLAIM_BYTES", size - 1)
    with pytest.raises(RecordTooLarge):
        keeping.begin(lease, INTENT)
    assert world.intents.intents == {}
    monkeypatch.setattr(safekeeping, "CLAIM_BYTES", size)
    keeping.begin(lease, INTENT)
    assert world.intents.intents == {DOMAIN: INTENT.record()}


def test_a_failed_attempt_has_no_copy(world, keeping, lease):
    """No attempt is in progress, and a copy would restore one after Redis lost its data."""
    kept = keeping.copy(lease, INTENT)
    assert kept.has_copy
    assert set(world.kube.kind("configmaps")) == {COPY}
    assert keeping.keep_failed(lease, kept) == INTENT.failed()
    assert world.intents.intents[DOMAIN] == INTENT.failed().record()
    assert world.kube.kind("configmaps") == {}


def test_while_its_copy_cannot_be_removed_a_failed_attempt_knows_of_it(world, keeping, lease):
    """The intent records that the copy exists, so the copy is removed later."""
    kept = keeping.copy(lease, INTENT)
    world.kube.fail["delete_config_map"] = [REFUSED]
    failed = replace(kept, is_copied=False).failed()
    assert keeping.keep_failed(lease, kept) == failed
    assert world.intents.intents[DOMAIN] == failed.record()


def test_a_saved_volume_leaves_the_record_of_a_call_that_may_still_run(world, keeping, lease):
    """The PV exists, so it is not saved again; the intent delays its deletion."""
    running = replace(INTENT, overtaken=Deadline(9.0))
    world.intents.created(DOMAIN, running.record(), {"metadata": {"name": DOMAIN}})
    keeping.keep_saved(lease, running)
    assert world.intents.intents == {DOMAIN: running.saved().record()}
    assert world.intents.unsaved == {}


@pytest.mark.parametrize(
    ("has_copy", "errors", "left"),
    [
        pytest.param(False, [], ([], []), id="no copy: not looked for"),
        pytest.param(True, [], ([], []), id="both go"),
        pytest.param(True, [REFUSED], ([DOMAIN], [COPY]), id="a refusal: both stay"),
    ],
)
def test_record_and_copy_go_together(world, keeping, lease, has_copy, errors, left):
    """Only the intent shows that there is a copy."""
    if has_copy:
        keeping.copy(lease, INTENT)
    else:
        keeping.begin(lease, INTENT)
        world.kube.fail["delete_config_map"] = [REFUSED]
    world.kube.fail["delete_config_map"] += errors
    keeping.forget(lease, replace(INTENT, has_copy=has_copy))
    assert ([*world.intents.intents], [*world.kube.kind("configmaps")]) == left


@pytest.mark.parametrize(
    ("error", "has_copy", "is_copied"),
    [
        pytest.param(None, True, True, id="written"),
        pytest.param(Unreachable("no answer"), True, False, id="perhaps written: to be removed"),
        pytest.param(ForbiddenError(403, "Forbidden", "no"), False, False, id="not written"),
    ],
)
def test_a_copy_is_known_wherever_there_may_be_one(
    world, keeping, lease, error, has_copy, is_copied
):
    world.kube.fail["apply_config_map"] = [error]
    kept = keeping.copy(lease, INTENT)
    assert (kept.has_copy, kept.is_copied) == (has_copy, is_copied)
    assert Intent.from_record(world.intents.intents[DOMAIN]) == kept


def test_a_class_is_taken_from_the_catalog_else_live(world, keeping):
    """The shared cache may be slightly out of date, and a claim may have no class."""
    assert keeping.storage_class("fast", None) is None
    world.add_class(provisioner="live")
    assert keeping.storage_class("fast", None)["provisioner"] == "live"
    world.catalog.classes = {"fast": {"provisioner": "known"}, "": {"provisioner": "none"}}
    assert keeping.storage_class("fast", None)["provisioner"] == "known"
    assert keeping.storage_class("", None) is None


def steps(world, *, loses_before=None):
    """Record the announced steps; from `loses_before` on, another worker owns the volume."""
    reached = []

    def reach(step, lease):
        reached.append(step)
        lease.is_lost = lease.is_lost or step is loses_before

    world.runtime.effects.steps = SimpleNamespace(reach=reach)
    return reached


def count(world, call):
    """Record each such request to the API server."""
    asked, real = [], getattr(world.kube, call)
    setattr(world.kube, call, lambda *args: asked.append(args) or real(*args))
    return asked


def test_m010_an_answer_ends_the_call_for_everybody(world, claim):
    """M-010: No worker waits for the deadline of a call whose volume is recorded."""
    world.kube.fail["create_volume"] = [Unreachable("no answer")]
    seen = {}
    world.client.answers = [lambda _: seen.update(world.intents.intents[DOMAIN]) or SLOW, None]
    world.claim_pass(claim)
    assert seen["deadline"][0] > world.clock()
    world.client.answers = []
    world.claim_pass(claim)
    assert DOMAIN in world.intents.unsaved
    assert "deadline" not in world.intents.intents[DOMAIN]


def test_p401_an_unknown_end_is_announced_before_it_is_copied(world, claim):
    """I-7, P-401: A process may die before this step too."""
    reached = steps(world)
    world.client.answers = [SLOW]
    world.claim_pass(claim)
    assert reached == [Step.RECORD_INTENT, Step.CREATE_VOLUME, Step.COPY_INTENT]
    assert world.intents.intents[DOMAIN]["stage"] == "background"


def test_m010_each_slow_call_writes_a_copy_of_its_own_once(world, claim):
    """M-010: The copy of an earlier attempt has another deadline, and perhaps another class."""
    copies = count(world, "apply_config_map")
    world.client.answers, world.client.is_slow = [SLOW], True
    world.claim_pass(claim)
    # The first copy is written during the call, the second adds its UID, and the third its unknown
    # outcome.
    assert len(copies) == 3
    world.kube.fail["create_volume"] = [Unreachable("no answer")]
    world.claim_pass(claim)
    assert len(copies) == 4


def test_g9_a_slow_call_whose_lease_is_lost_leaves_the_copy_to_the_next_owner(world, claim):
    """G9: A worker without the lease must not write the copy."""
    reached = steps(world, loses_before=Step.CREATE_VOLUME)
    world.client.is_slow = True
    world.claim_pass(claim)
    assert Step.COPY_INTENT not in reached
    assert world.kube.kind("configmaps") == {}


@pytest.mark.parametrize(
    ("earlier", "left", "state"),
    [
        pytest.param([], None, State.FINISHED, id="nothing was asked yet"),
        pytest.param([SLOW], "background", State.NO_CHANGE, id="a call may still run"),
    ],
)
def test_d008_an_attempt_that_cannot_be_recorded_forgets_nothing(
    world, claim, monkeypatch, earlier, left, state
):
    """D-008, SEC-4: The intent of an earlier call is kept: that call may have made a volume."""
    world.client.answers = list(earlier)
    for _ in earlier:
        world.claim_pass(claim)
    monkeypatch.setattr(safekeeping, "CLAIM_BYTES", 1)
    outcome = world.claim_pass(claim)
    assert (outcome.action, outcome.reason) == (Action.RETRY, state.value)
    assert len(world.client.created) == len(earlier)
    assert world.intents.intents.get(DOMAIN, {}).get("stage") == left


def test_a_final_error_after_an_unknown_end_leaves_the_record_alone(world, claim):
    """T-058: The intent is marked as failed and has no copy, which no worker would look for."""
    world.client.answers = [SLOW, CsiError(13, "no")]
    world.claim_pass(claim)
    world.claim_pass(claim)
    record = world.intents.intents[DOMAIN]
    assert (record["stage"], record["has_copy"]) == ("failed", False)
    assert world.kube.kind("configmaps") == {}

"""What an attempt leaves for the next reconcile, and when it is forgotten (P-400, P-401, T-058)."""

from __future__ import annotations

import time
from types import SimpleNamespace

import msgspec
import pytest

from csi_client.errors import CsiError
from workers.controllers.provisioner.backend import CsiBackend
from workers.controllers.provisioner.claims import slow_delay_seconds
from workers.engine.outcome import Action
from workers.engine.steps import LeasedSteps, Step
from workers.errors import IgnoredError, LeaseLost
from workers.kube.errors import ForbiddenError
from workers.observability import trail

DOMAIN = "pvc-u1"
LATE, BROKEN = CsiError(4, "late"), CsiError(13, "broken")
SECOND, STAMP = 1767323045.0, "2026-01-02T03:04:05Z"


def after(world, claim, error):
    """Reconcile once, with a driver call that fails with `error`."""
    world.client.answers = [error]
    world.claim_pass(claim)
    assert DOMAIN in world.intents.intents
    return world


def stage(world):
    record = world.intents.intents.get(DOMAIN)
    return record and record["stage"]


# Claims whose volume already exists (L-040 step 1, L-084).


@pytest.mark.parametrize("is_orphaned", [False, True], ids=["claim waits", "claim is gone"])
def test_l040_a_volume_that_was_saved_and_is_gone_again_is_made_again(world, claim, is_orphaned):
    """The mark in Redis is only a hint that a PV may exist; the API server decides."""
    if is_orphaned:
        after(world, claim, LATE)
        world.drop_claim()
    world.intents.saved.add(DOMAIN)
    calls = len(world.client.created)
    world.claim_pass(claim)
    assert len(world.client.created) == calls + 1
    assert set(world.volumes()) == {DOMAIN}


def test_a_claim_bound_to_its_own_volume_leaves_no_record(world, claim):
    """P-401: Redis may restore an old intent after the PV was saved and bound."""
    after(world, claim, LATE)
    world.live_claim()["spec"]["volumeName"] = DOMAIN
    outcome = world.claim_pass(claim)
    assert (outcome.action, outcome.reason) == (Action.DONE, "bound")
    assert len(world.client.created) == 1
    assert (world.intents.intents, world.kube.kind("configmaps")) == ({}, {})


@pytest.mark.parametrize(
    ("volume", "reason"), [("by-hand", "bound"), (None, "claim is gone")], ids=["bound", "gone"]
)
def test_a_claim_that_nobody_began_with_says_why_it_is_done(world, claim, volume, reason):
    if volume:
        world.live_claim()["spec"]["volumeName"] = volume
    else:
        world.drop_claim()
    outcome = world.claim_pass(claim)
    assert (outcome.action, outcome.reason) == (Action.DONE, reason)
    assert (world.client.created, world.events.seen) == ([], [])


def test_an_unsaved_volume_is_copied_by_whoever_is_refused(world, claim):
    """M-011: The next worker knows that a fast attempt's intent has no copy, and copies it."""

    def reach(step, lease):
        if step is Step.SAVE_VOLUME:
            lease.is_lost = True
            raise LeaseLost("lost")

    world.runtime.effects.steps = SimpleNamespace(reach=reach)
    with pytest.raises(LeaseLost):
        world.claim_pass(claim)
    world.runtime.effects.steps = LeasedSteps()
    world.kube.fail["create_volume"] = [ForbiddenError(403, "Forbidden", "denied by policy")]
    assert world.kube.kind("configmaps") == {}
    assert world.claim_pass(claim).action is Action.RETRY
    assert set(world.kube.kind("configmaps")) == {f"csi-fleet-intent-{DOMAIN}"}
    assert len(world.client.created) == 1


# Attempts whose claim is gone.


def orphan(world, claim):
    """Delete the claim after a failed call; its class now belongs to another provisioner."""
    after(world, claim, LATE)
    world.intents.intents[DOMAIN]["class"]["provisioner"] = "another"
    world.drop_claim()
    world.fails = 0
    return world


def test_an_attempt_of_another_provisioner_s_class_is_not_asked_again(world, claim):
    """csi-fleet cannot repeat the call, so it keeps the intent for an operator."""
    orphan(world, claim)
    outcome = world.claim_pass(claim)
    assert (outcome.action, outcome.reason) == (Action.RETRY, "cannot be asked for")
    assert (len(world.client.created), stage(world)) == (1, "background")


@pytest.mark.parametrize(("fails", "is_stranded"), [(0, False), (7, False), (8, True), (9, True)])
def test_after_eight_failures_the_attempt_is_stranded(world, claim, fails, is_stranded):
    """COR-7: Eight failures take about four minutes, so that a temporary problem can end.

    `explain` shows the cause.
    """
    orphan(world, claim).fails = fails
    reached = []
    world.runtime.effects.steps = SimpleNamespace(reach=lambda step, _lease: reached.append(step))
    with trail.collect():
        outcome = world.claim_pass(claim)
        notes = trail.collected()
    assert outcome.action is (Action.DONE if is_stranded else Action.RETRY)
    assert stage(world) == ("stranded" if is_stranded else "background")
    assert reached == [Step.COPY_INTENT] * is_stranded
    assert any("error its storage class is gone" in note for note in notes)


def test_t058_two_final_errors_in_a_row_keep_the_record_of_a_claim_that_waits(world, claim):
    """Each failed call may have left a volume, so the claim's deletion causes one last call."""
    after(world, claim, BROKEN)
    after(world, claim, BROKEN)
    assert stage(world) == "failed"
    world.drop_claim()
    assert world.claim_pass(claim).action is Action.DONE
    assert len(world.client.created) == 3
    assert (set(world.volumes()), world.intents.intents) == ({DOMAIN}, {})


def test_p400_a_final_error_ends_the_attempt_of_a_claim_that_was_gone_by_then(world, claim):
    """P-401: The outcome is unknown, the claim is deleted, then a final error ends the attempt.

    This holds even if no reconcile has seen the deletion.
    """
    after(world, claim, LATE)
    world.drop_claim()
    world.client.answers = [BROKEN]
    assert world.claim_pass(claim).action is Action.DONE
    assert (len(world.client.created), world.intents.intents) == (2, {})
    assert world.claim_pass(claim).action is Action.DONE
    assert len(world.client.created) == 2


class Ignoring(CsiBackend):
    """A back end that behaves like a plug-in which ignores the claim."""

    def attempt(self, work, claim, storage_class, intent):
        del work, storage_class, intent

        def run():
            raise IgnoredError("not mine")

        return SimpleNamespace(claim=claim, was_sent=False, run=run)


@pytest.mark.parametrize(("error", "left"), [(LATE, None), (BROKEN, "failed")])
def test_l044_an_ignored_claim_leaves_only_what_failed_for_good(world, claim, error, left):
    """A failed attempt may have left a volume, so its intent stays; an open one is forgotten."""
    after(world, claim, error)
    object.__setattr__(world.driver, "backend", Ignoring())
    outcome = world.claim_pass(claim)
    assert (outcome.action, outcome.reason) == (Action.DONE, "not mine")
    assert stage(world) == left


# Causes that are reported, and failures that are counted.


def test_l095_every_failed_attempt_counts(world, claim):
    name = "controller_persistentvolumeclaim_provision_failed_total"
    for number in (1, 2):
        after(world, claim, BROKEN)
        value = world.runtime.metrics.registry.get_sample_value
        assert value(name, {"class": "fast", "source": ""}) == number


@pytest.mark.parametrize(("age", "is_told"), [(59.9, False), (60.0, False), (60.1, True)])
def test_a_pause_is_told_once_the_first_minute_is_over(world, claim, monkeypatch, age, is_told):
    told = []
    world.runtime.pauses = SimpleNamespace(of_class=lambda _: SimpleNamespace(reason="upgrade"))
    world.runtime.lasting = SimpleNamespace(tell=lambda key, _cause: told.append(key.object))
    world.live_claim()["metadata"]["creationTimestamp"] = STAMP
    monkeypatch.setattr(time, "time", lambda: SECOND + age)
    assert world.claim_pass(claim).action is Action.WAIT
    assert told == ["default/data"] * is_told


def test_a_pause_without_anybody_to_tell_still_holds(world, claim):
    world.runtime.pauses = SimpleNamespace(of_class=lambda _: SimpleNamespace(reason="upgrade"))
    world.live_claim()["metadata"]["creationTimestamp"] = STAMP
    assert world.claim_pass(claim).action is Action.WAIT
    assert world.client.created == []


@pytest.mark.parametrize(
    ("storage_class", "seconds"),
    [
        pytest.param(None, 30.0, id="the class is gone"),
        pytest.param({"metadata": {"uid": "c1"}}, 30.0, id="the same class"),
        pytest.param({"metadata": {"uid": "c2"}}, 0.0, id="C-045 replaced"),
    ],
)
def test_l060_only_another_class_ends_the_wait(storage_class, seconds):
    memo = msgspec.json.encode({"slow_until": SECOND + 30, "class_uid": "c1"}).decode()
    assert slow_delay_seconds(memo, storage_class, SECOND) == seconds

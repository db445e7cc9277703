"""Saving a volume besides its PV: copies, events, metrics and later retries."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from csi_client.errors import CsiError
from workers.controllers.provisioner import saving
from workers.controllers.provisioner.work import ClaimWork
from workers.deadlines import Deadline
from workers.engine.outcome import Action
from workers.engine.steps import Step
from workers.kube.errors import (
    ForbiddenError,
    InvalidError,
    NotFoundError,
    ServerError,
    Unreachable,
)
from workers.queue.leases import Session

DOMAIN = "pvc-u1"
QUOTA = ForbiddenError(403, "Forbidden", "exceeded quota: gold")
BAD = InvalidError(422, "Invalid", "nodeAffinity: bad label")
BUSY = ServerError(503, "ServiceUnavailable", "busy")
AWAY = Unreachable("connection refused")


def announced(world):
    """Record the steps of all reconciles from now on."""
    reached: list[Step] = []
    world.runtime.effects.steps = SimpleNamespace(reach=lambda step, _lease: reached.append(step))
    return reached


def calls(world, name):
    """Record the arguments of this API call from now on."""
    asked, real = [], getattr(world.kube, name)
    setattr(world.kube, name, lambda *args: asked.append(args) or real(*args))
    return asked


def figure(world, name):
    """Return an upstream counter for claims of class `fast` without a data source."""
    labels = {"class": "fast", "source": ""}
    full = f"controller_persistentvolumeclaim_{name}_total"
    return world.runtime.metrics.registry.get_sample_value(full, labels) or 0


@pytest.mark.parametrize(
    "error",
    [
        pytest.param(QUOTA, id="refused"),
        pytest.param(BUSY, id="busy"),
        pytest.param(AWAY, id="away"),
    ],
)
def test_m010_a_volume_that_waits_for_its_pv_is_known_outside_of_redis(world, claim, error):
    """M-010: Saving may take hours. The intent is copied, and retries have no limit (L-080)."""
    world.kube.fail["create_volume"] = [error] * 3
    copies = calls(world, "apply_config_map")
    outcomes = [world.claim_pass(claim) for _ in range(3)]
    assert [(one.action, one.may_give_up) for one in outcomes] == [(Action.RETRY, False)] * 3
    assert len(copies) == 2, "the second one names the uid of the first"
    assert set(world.kube.kind("configmaps")) == {f"csi-fleet-intent-{DOMAIN}"}


def test_m010_a_copy_that_was_perhaps_not_written_is_written_again(world, claim):
    """The API server is briefly unavailable and then refuses the PV for hours."""
    world.kube.fail["create_volume"] = [AWAY, QUOTA, QUOTA]
    world.kube.fail["apply_config_map"] = [AWAY]
    copies = calls(world, "apply_config_map")
    found = []
    for _ in range(3):
        world.claim_pass(claim)
        record = world.intents.intents[DOMAIN]
        found.append((record["has_copy"], record.get("is_copied", False), len(copies)))
    assert found == [(True, False, 1), (True, True, 3), (True, True, 3)]
    assert world.claim_pass(claim).action is Action.DONE
    assert world.kube.kind("configmaps") == {}


@pytest.mark.parametrize(
    ("error", "ends_with"),
    [
        pytest.param(QUOTA, [Step.COPY_INTENT], id="refused"),
        pytest.param(BUSY, [Step.COPY_INTENT], id="busy"),
        pytest.param(BAD, [Step.COPY_INTENT, Step.RECORD_VOLUME], id="unsavable"),
        pytest.param(AWAY, [Step.COPY_INTENT], id="away"),
    ],
)
def test_i7_every_effect_of_a_save_that_fails_is_announced(world, claim, error, ends_with):
    """I-7: A process may die before each of these steps."""
    world.kube.fail["create_volume"] = [error]
    reached = announced(world)
    world.claim_pass(claim)
    assert reached[-len(ends_with) - 1 :] == [Step.SAVE_VOLUME, *ends_with]


def test_a_volume_whose_record_is_lost_is_saved_all_the_same(world, claim):
    """Redis lost the intent but not the volume's PV, so the PV can be saved but not copied."""
    world.kube.fail["create_volume"] = [AWAY, QUOTA]
    world.kube.fail["apply_config_map"] = [QUOTA]
    world.claim_pass(claim)
    del world.intents.intents[DOMAIN]
    reached = announced(world)
    assert world.claim_pass(claim).action is Action.RETRY
    assert reached == [Step.SAVE_VOLUME]
    assert world.kube.kind("configmaps") == {}
    assert world.claim_pass(claim).action is Action.DONE
    assert len(world.client.created) == 1


def test_c002_a_volume_that_was_saved_and_is_gone_is_made_anew(world, claim):
    """C-002: The mark shows only that the volume existed earlier."""
    world.intents.saved.add(DOMAIN)
    assert world.claim_pass(claim).action is Action.DONE
    assert set(world.volumes()) == {DOMAIN}
    assert len(world.client.created) == 1


def test_a_saved_volume_whose_call_may_run_twice_keeps_its_record(world, claim):
    """D-008: An earlier process died in its call, so nothing is deleted until that call is over."""
    world.client.answers = [CsiError(4, "slow")]
    world.claim_pass(claim)
    now = world.clock()
    world.clock = lambda: now
    record = world.intents.intents[DOMAIN]
    record["stage"], record["deadline"] = "calling", Deadline(now + 20).data()
    outcome = world.claim_pass(claim)
    assert set(world.volumes()) == {DOMAIN}
    assert (outcome.action, outcome.delay_seconds) == (Action.WAIT, 20)
    assert (world.intents.intents[DOMAIN]["stage"], world.intents.unsaved) == ("saved", {})
    world.clock = lambda: now + 20
    assert world.claim_pass(claim).action is Action.DONE
    assert (world.intents.intents, len(world.client.created)) == ({}, 2)


@pytest.mark.parametrize(
    ("overtaken", "seconds"),
    [
        pytest.param(Deadline(), 0.0, id="none"),
        pytest.param(Deadline(120.0), 20.0, id="still runs"),
        pytest.param(Deadline(100.0), 0.0, id="over"),
    ],
)
def test_an_overtaken_call_is_waited_for_until_its_deadline(overtaken, seconds):
    session = Session(clock=lambda: 100.0)
    work: Any = SimpleNamespace(
        record=SimpleNamespace(overtaken=overtaken), lease=SimpleNamespace(session=session)
    )
    assert ClaimWork.overtaken_seconds(work) == seconds
    work.record = None
    assert ClaimWork.overtaken_seconds(work) == 0


FOUND = {"metadata": {"uid": "u1"}}


@pytest.mark.parametrize(
    ("seconds", "live", "now", "asked", "expected"),
    [
        pytest.param(0.0, None, FOUND, 0, False, id="gone before the pass"),
        pytest.param(9.0, None, FOUND, 0, False, id="gone before a long pass"),
        pytest.param(0.9, FOUND, None, 0, True, id="just read"),
        pytest.param(1.0, FOUND, FOUND, 1, True, id="after a second: still there"),
        pytest.param(1.0, FOUND, None, 1, False, id="after a second: gone meanwhile"),
        pytest.param(9.0, FOUND, AWAY, 1, True, id="nobody can tell"),
    ],
)
def test_c053_a_claim_that_went_during_a_long_call_gets_no_event(
    monkeypatch, seconds, live, now, asked, expected
):
    """C-053: The claim is read again only if it was last read at least a second ago."""
    reads = []

    def read_claim():
        reads.append(now)
        if isinstance(now, Exception):
            raise now
        return now

    monkeypatch.setattr(saving, "time", SimpleNamespace(monotonic=lambda: 50.0 + seconds))
    work: Any = SimpleNamespace(started=50.0, read_claim=read_claim)
    assert saving.is_still_there(work, live) is expected
    assert len(reads) == asked


def in_tree(handle, uid="u1"):
    claim = {"namespace": "default", "name": "data", "uid": uid}
    return {
        "metadata": {"name": DOMAIN},
        "spec": {"claimRef": claim, "cinder": {"volumeID": handle}},
    }


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (in_tree("disk-1"), True),
        (in_tree("disk-2"), False),
        (in_tree("disk-1", uid="u2"), False),
    ],
    ids=["the same", "another disk", "another claim"],
)
def test_l084_a_migrated_volume_is_known_by_its_in_tree_source(found, expected):
    """L-084, P-612: Such a volume is stored without a CSI handle."""
    assert saving.is_same(found, in_tree("disk-1")) is expected


@pytest.mark.parametrize(
    ("errors", "answers", "counted"),
    [
        pytest.param([], [], (1, 0), id="saved"),
        pytest.param([], [CsiError(13, "no")], (0, 1), id="the driver fails"),
        pytest.param([], [CsiError(4, "late")], (0, 1), id="no end is known"),
        pytest.param([BAD], [], (0, 1), id="no valid PV can hold it"),
        pytest.param([QUOTA], [], (0, 0), id="not saved yet: neither"),
    ],
)
def test_l095_every_attempt_is_counted_by_its_end(world, claim, errors, answers, counted):
    """L-095: The counters have the labels class and source."""
    world.kube.fail["create_volume"], world.client.answers = errors, answers
    world.claim_pass(claim)
    assert (figure(world, "provision"), figure(world, "provision_failed")) == counted


@pytest.mark.parametrize("is_busy", [False, True])
def test_a_volume_without_pv_is_forgotten_once_it_is_deleted(world, claim, is_busy):
    """L-083: Without a PV nothing else deletes the volume, so its intent is kept until then."""
    world.kube.fail["create_volume"] = [BAD] * 9
    world.claim_pass(claim)
    world.drop_claim()
    world.client.delete_answers = [CsiError(14, "not now")] * is_busy
    outcome = world.claim_pass(claim)
    assert (outcome.action is Action.RETRY, outcome.finish_intent) == (is_busy, not is_busy)
    assert (DOMAIN in world.intents.intents) is is_busy
    assert world.client.deleted == [("test-volume-id", {})]


def test_issue_1469_a_pv_that_is_gone_by_the_time_it_is_looked_at(world, claim):
    """Issue 1469: The existing PV is gone when it is read, so the next attempt can save the PV."""
    world.kube.add("persistentvolumes", {"metadata": {"name": DOMAIN}, "spec": {}})
    world.kube.fail["get_volume"] = [NotFoundError(404, "NotFound", "gone")]
    outcome = world.claim_pass(claim)
    assert (outcome.action, world.events.warnings()) == (Action.RETRY, [])
    assert DOMAIN in world.intents.unsaved

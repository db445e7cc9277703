"""An intent that was valid once has no effect when it is written back later (SEC2-1)."""

from __future__ import annotations

from copy import deepcopy

import pytest

from csi_client import errors
from csi_client.errors import CsiError
from tests.support.fake_cluster import DRIVER, World, default_answer
from workers.engine.outcome import Action
from workers.kube.errors import ForbiddenError, GoneError, ServerError, Unreachable

VOLUME = "pvc-u1"
LATE = CsiError(errors.DEADLINE_EXCEEDED, "late")


@pytest.fixture
def world():
    found = World()
    found.add_class()
    return found


def provisioned(world):
    """Return a claim that is bound after a first call without an answer, and its old intents."""
    claim = world.add_claim()
    world.client.answers = [LATE]
    world.claim_pass(claim)
    intent = deepcopy(world.intents.intents[VOLUME])
    for name in ("is_copied", "copy_uid"):  # as when the call began
        intent.pop(name)
    intent["has_copy"] = False
    world.claim_pass(claim)
    volume = deepcopy(world.volumes()[VOLUME])
    world.live_claim()["spec"]["volumeName"] = VOLUME
    assert (world.intents.intents, world.intents.unsaved) == ({}, {})
    assert world.kube.kind("configmaps") == {}
    world.kube.writes.clear()
    world.client.created.clear()
    return claim, {"intent": intent, "unsaved": volume}


def kept(world):
    """The administrator keeps the data: the claim and the PV are deleted, the volume is not."""
    world.drop_claim()
    world.kube.drop("persistentvolumes", VOLUME)


def handed_over(world):
    """As in `kept`, and another PV names the volume."""
    kept(world)
    csi = {"driver": DRIVER, "volumeHandle": "test-volume-id"}
    archive = {"metadata": {"name": "archive"}, "spec": {"csi": csi, "claimRef": {"uid": "u9"}}}
    world.kube.add("persistentvolumes", archive)


def long_ago(world):
    """As in `kept`, and the API server no longer has the history of the deletion."""
    kept(world)
    world.kube.deleted.clear()


def too_old(world):
    """As in `kept`, and the API server reports that the history has expired."""
    kept(world)
    world.kube.fail["past"] = [GoneError(410, "Expired", "too old resource version")] * 4


def not_allowed(world):
    """As in `kept`, and this worker is not allowed to read the history."""
    kept(world)
    world.kube.fail["past"] = [ForbiddenError(403, "Forbidden", "no")] * 4


def made_again(world):
    """As in `long_ago`, and a new claim of that name was deleted before it had a volume."""
    long_ago(world)
    world.add_claim(uid="u2")
    world.drop_claim()


def lost(world):
    """Only the PV is deleted, by force, so the claim is Lost."""
    world.kube.drop("persistentvolumes", VOLUME)


def bound(world):
    """Change nothing."""


def pending_elsewhere(world):
    """The claim is bound to another volume, which was made by hand."""
    world.live_claim()["spec"]["volumeName"] = "by-hand"
    handed_over_pv = {"driver": DRIVER, "volumeHandle": "test-volume-id"}
    world.kube.drop("persistentvolumes", VOLUME)
    by_hand = {"metadata": {"name": "by-hand"}, "spec": {"csi": handed_over_pv}}
    world.kube.add("persistentvolumes", by_hand)


@pytest.mark.parametrize("types", [("intent",), ("unsaved",), ("intent", "unsaved")])
@pytest.mark.parametrize(
    "situation",
    [
        *(bound, lost, kept, handed_over, long_ago, made_again, too_old, not_allowed),
        pending_elsewhere,
    ],
)
def test_a_record_put_back_makes_and_deletes_nothing(world, situation, types):
    claim, records = provisioned(world)
    situation(world)
    before = deepcopy(world.kube.kind("persistentvolumes"))
    for _ in range(3):  # a reconcile must not leave anything that the next one acts on
        for name in types:
            where = world.intents.intents if name == "intent" else world.intents.unsaved
            where[VOLUME] = deepcopy(records[name])
        assert world.claim_pass(claim).action is Action.DONE
        assert world.kube.kind("persistentvolumes") == before
        assert world.client.deleted == []
        assert world.kube.kind("configmaps") == {}, "a copy would prove that the attempt is open"


@pytest.mark.parametrize("error", [Unreachable("away"), ServerError(503, "Unavailable", "busy")])
def test_no_copy_is_made_of_a_record_that_cannot_be_judged(world, error):
    claim, records = provisioned(world)
    kept(world)
    world.intents.intents[VOLUME] = records["intent"]
    world.kube.fail["past"] = [error]
    with pytest.raises(type(error)):
        world.claim_pass(claim)
    assert world.kube.kind("configmaps") == {}


def test_no_copy_is_made_while_the_call_of_a_bound_claims_record_might_run(world):
    """Redis has a new epoch, and the deadline in the intent is in the future."""
    claim, records = provisioned(world)
    world.intents.intents[VOLUME] = {
        **records["intent"],
        "stage": "calling",
        "epoch": "earlier",
        "deadline": [4_000_000_000.0, 60.0, 0.0],
    }
    assert world.claim_pass(claim).action is Action.DONE
    assert world.kube.kind("configmaps") == {}
    kept(world)
    assert world.claim_pass(claim).action is Action.DONE
    assert (len(world.client.created), world.volumes()) == (0, {})


def test_no_copy_is_made_of_a_bound_claims_record_when_the_api_server_fails(world):
    claim, records = provisioned(world)
    world.intents.intents[VOLUME] = records["intent"]
    world.intents.unsaved[VOLUME] = records["unsaved"]
    world.kube.fail["get_volume"] = [ServerError(503, "Unavailable", "busy")]
    with pytest.raises(ServerError):
        world.claim_pass(claim)
    assert world.kube.kind("configmaps") == {}


@pytest.mark.parametrize("types", [("intent",), ("intent", "unsaved")])
def test_the_record_of_an_attempt_that_ended_goes(world, types):
    """A worker died before it dropped the intent. The bound claim was then deleted."""
    claim, records = provisioned(world)
    for name in types:
        where = world.intents.intents if name == "intent" else world.intents.unsaved
        where[VOLUME] = deepcopy(records[name])
    world.drop_claim()
    outcome = world.claim_pass(claim)
    assert (outcome.action, outcome.finish_intent) == (Action.DONE, True)
    assert (world.client.created, world.client.deleted) == ([], [])


def test_what_is_not_believed_is_left_to_a_person(world):
    claim, records = provisioned(world)
    long_ago(world)
    world.intents.intents[VOLUME] = records["intent"]
    world.claim_pass(claim)
    left = world.intents.intents[VOLUME]
    assert (left["stage"], left["problem"]) == (
        "stranded",
        "nothing in the API server shows that its attempt is still open",
    )


# The same intents while the attempt is open.


def begun(world):
    claim = world.add_claim()
    world.client.answers = [LATE]
    world.claim_pass(claim)
    return claim


def test_the_api_server_remembers_that_the_claim_had_no_volume(world):
    claim = begun(world)
    world.kube.objects = {
        key: one for key, one in world.kube.objects.items() if key[0] != "configmaps"
    }
    world.drop_claim()
    world.claim_pass(claim)
    assert set(world.volumes()) == {VOLUME}, "released and deleted by the cluster"


def test_a_copy_shows_it_long_after(world):
    claim = begun(world)
    world.drop_claim()
    world.kube.deleted.clear()
    world.claim_pass(claim)
    assert set(world.volumes()) == {VOLUME}


@pytest.mark.parametrize("change", [{"key": "claims|other|default/data|u1"}, None])
def test_the_copy_of_another_attempt_shows_nothing(world, change):
    claim = begun(world)
    world.drop_claim()
    world.kube.deleted.clear()
    place = next(key for key in world.kube.objects if key[0] == "configmaps")
    if change is None:
        world.kube.objects[place]["data"] = {}
    else:
        text = world.kube.objects[place]["data"]["record"]
        world.kube.objects[place]["data"]["record"] = text.replace("claims|", "claims|other-")
    world.claim_pass(claim)
    assert world.volumes() == {}


@pytest.mark.parametrize("name", ["archive", VOLUME])
def test_a_volume_that_a_live_pv_names_is_not_cleaned_up(world, name):
    """The driver answers a repeated call with a volume that is in use and too small.

    A restored backup has PVs with their earlier names, for new claims.
    """
    claim = begun(world)
    world.drop_claim()
    csi = {"driver": DRIVER, "volumeHandle": "test-volume-id"}
    in_use = {"metadata": {"name": name}, "spec": {"csi": csi, "claimRef": {"uid": "u9"}}}
    world.kube.add("persistentvolumes", in_use)

    def too_small(request):
        answer = default_answer(request)
        answer.volume.capacity_bytes = 1
        return answer

    world.client.answers = [too_small]
    world.claim_pass(claim)
    assert world.client.deleted == []


@pytest.mark.parametrize("is_claim_there", [False, True])
def test_a_copy_that_is_made_again_shows_nothing(world, is_claim_there):
    """The ConfigMap is restored from a backup, and the intent is written back to Redis."""
    claim = begun(world)
    place = next(key for key in world.kube.objects if key[0] == "configmaps")
    backup = deepcopy(world.kube.objects[place])
    record = deepcopy(world.intents.intents[VOLUME])
    world.claim_pass(claim)
    world.live_claim()["spec"]["volumeName"] = VOLUME
    if not is_claim_there:
        long_ago(world)
    del backup["metadata"]["uid"]
    world.kube.add("configmaps", backup)
    world.intents.intents[VOLUME] = record
    before, world.client.created = deepcopy(world.volumes()), []
    world.claim_pass(claim)
    assert (world.volumes(), world.client.created, world.client.deleted) == (before, [], [])


@pytest.mark.parametrize("has_pv", [False, True], ids=["asked again", "only to be saved"])
def test_an_open_attempt_saves_no_second_pv_of_a_volume_in_use(world, has_pv):
    """An operator found the volume in the storage and created a PV for it by hand."""
    claim = begun(world)
    world.drop_claim()
    csi = {"driver": DRIVER, "volumeHandle": "test-volume-id"}
    world.kube.add("persistentvolumes", {"metadata": {"name": "archive"}, "spec": {"csi": csi}})
    if has_pv:
        spec = {"claimRef": {"uid": "u1", "namespace": "default", "name": "data"}, "csi": csi}
        world.intents.unsaved[VOLUME] = {"metadata": {"name": VOLUME}, "spec": spec}
    assert world.claim_pass(claim).reason == "stranded"
    assert set(world.volumes()) == {"archive"}
    assert world.client.deleted == []
    assert world.intents.intents[VOLUME]["problem"] == "PersistentVolume archive names its volume"

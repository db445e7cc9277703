"""Which claims and volumes the resizer handles, and when they need work (section 11.1)."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tests.support.resizer_world import HANDLE, NAME, NAMESPACE, VOLUME, ResizerWorld
from workers.kube import paths
from workers.kube.errors import ForbiddenError
from workers.queue.locks import Lock, Mode

OTHER = {"namespace": NAMESPACE, "name": NAME, "uid": "another"}
ELSEWHERE = {"namespace": "elsewhere", "name": NAME, "uid": "claim-uid"}
RENAMED = {"namespace": NAMESPACE, "name": "renamed", "uid": "claim-uid"}


def rests(world):
    """Check that one reconcile makes no call and no write, and return its outcome."""
    outcome = world.run()
    assert world.client.methods == []
    assert world.api.writes == []
    assert world.events.seen == []
    return outcome


@pytest.mark.parametrize(
    ("spec", "cap"),
    [
        pytest.param("1Gi", "1Gi", id="TR-001 as wanted"),
        pytest.param("1Gi", "1024Mi", id="TR-015 spelt differently"),
        pytest.param("1500m", "2", id="TR-015 a fraction of a byte"),
    ],
)
def test_a_claim_of_the_wanted_size_rests(spec, cap):
    """R-020/5: Sizes are compared by value."""
    world = ResizerWorld()
    world.claim(1, 1)
    world.edit({"spec": {"resources": {"requests": {"storage": spec}}}})
    world.edit({"status": {"capacity": {"storage": cap}}})
    assert rests(world).action.value == "done"


def test_tr002_a_claim_that_is_gone_leaves_nothing():
    """DR-006: The key's state is dropped too."""
    world = ResizerWorld()
    world.queue.marks[world.key.text] = {"in_use": True}
    assert rests(world).action.value == "done"
    assert world.queue.marks == {}


def test_tr068_another_claim_of_the_name_inherits_nothing():
    """DR-006: Keys and their state belong to a UID."""
    world = ResizerWorld()
    world.claim(2, 1)
    world.edit({"metadata": {"uid": "another"}})
    assert rests(world).reason == "another claim of this name"


def test_tr003_an_unbound_claim_rests():
    world = ResizerWorld()
    world.claim(2, 1)
    world.edit({"spec": {"volumeName": None}})
    assert rests(world).action.value == "done"


def test_tr004_a_volume_that_is_missing_is_waited_for():
    """R-020/3: The arrival of the volume adds the claim's key, see the rules."""
    world = ResizerWorld()
    world.claim(2, 1)
    world.api.drop(paths.VOLUMES, VOLUME)
    assert rests(world).action.value == "retry"
    world.volume(1)
    world.run()
    assert world.sizes() == [2]


@pytest.mark.parametrize("reference", [None, OTHER, ELSEWHERE], ids=["none", "uid", "namespace"])
@pytest.mark.parametrize("is_class", [False, True], ids=["size", "class"])
def test_tr005_tr144_a_volume_of_another_claim_is_left_alone(reference, is_class):
    """R-021: This also holds for a modification, which csi-resizer does not check (DR-022)."""
    world = ResizerWorld()
    world.attributes_class("b")
    world.volume(1, claimRef=reference)
    if is_class:
        world.claim(1, 1, volumeAttributesClassName="b")
    else:
        world.claim(2, 1)
    rests(world)


def test_tr006_the_claims_name_is_not_compared():
    """R-021: The claim's UID decides."""
    world = ResizerWorld()
    world.volume(1, claimRef=RENAMED)
    world.claim(2, 1)
    world.run()
    assert world.sizes() == [2]


@pytest.mark.parametrize("phase", ["Lost", "Pending", ""])
def test_tr007_only_bound_claims_grow(phase):
    world = ResizerWorld()
    world.claim(2, 1, phase=phase)
    rests(world)


def test_tr008_a_volume_of_another_driver_is_left_alone():
    world = ResizerWorld()
    world.volume(1, csi={"driver": "other", "volumeHandle": "h"})
    world.claim(2, 1)
    rests(world)


def test_tr016_fractions_of_a_byte_are_rounded_up():
    """R-041: A fraction of a byte cannot be requested."""
    world = ResizerWorld()
    world.claim(1, 1)
    size = {"storage": "1500000000500m"}
    world.edit({"spec": {"resources": {"requests": size}}})
    world.run()
    request = world.client.requests("ControllerExpandVolume")[0]
    assert request.capacity_range.required_bytes == 1_500_000_001
    assert world.seen["status"]["allocatedResources"] == size


@pytest.mark.parametrize("what", ["claim", "volume"])
@pytest.mark.parametrize("is_class", [False, True], ids=["size", "class"])
def test_nothing_is_begun_for_what_is_being_deleted(what, is_class):
    """R-022, DR-022: Expanding a volume that is about to be deleted has no use."""
    world = ResizerWorld()
    world.attributes_class("b")
    world.claim(1, 1, volumeAttributesClassName="b") if is_class else world.claim(2, 1)
    resource, name, namespace = (
        (paths.CLAIMS, NAME, NAMESPACE) if what == "claim" else (paths.VOLUMES, VOLUME, "")
    )
    world.api.change(resource, name, {"metadata": {"deletionTimestamp": "now"}}, namespace)
    rests(world)


def test_a_call_that_may_run_is_brought_to_its_end_before_the_claim_goes():
    """DR-022: The storage may be expanding the volume, and no other reconcile would record it."""
    world = ResizerWorld()
    world.claim(5, 3, 10, "C-IP", 3)
    world.edit({"metadata": {"deletionTimestamp": "now"}})
    world.run()
    assert world.sizes() == [10]


def test_a_claim_that_goes_during_the_call():
    """R-022: The new size is written to the volume (I-3), and nothing is retried."""
    world = ResizerWorld()

    def vanish(request):
        world.api.drop(paths.CLAIMS, NAME, NAMESPACE)
        return {"capacity_bytes": request.capacity_range.required_bytes}

    world.answers(vanish)
    world.claim(2, 1)
    assert world.run().action.value == "done"
    assert world.stored["spec"]["capacity"] == {"storage": "2Gi"}
    assert [one for one in world.messages() if "failed" in one] == []
    assert world.queue.marks == {}


def test_a_refused_first_write_sends_nothing():
    """R-035: Without the state on the claim, no call is made."""
    world = ResizerWorld()
    world.claim(2, 1)
    world.api.fail("patch", f"{NAME}/status", ForbiddenError(403, "Forbidden", "no"))
    assert world.run().action.value == "retry"
    assert world.sizes() == []
    assert world.events.seen == []


@pytest.mark.parametrize("expands", [True, False], ids=["expand", "modify"])
def test_a_volume_that_is_being_deleted_parks_the_claim(expands):
    """MR-011, MR-013: No failure is counted and nothing is written."""
    world = ResizerWorld()
    world.attributes_class("b")
    world.claim(2, 1) if expands else world.claim(1, 1, volumeAttributesClassName="b")
    world.queue.busy[VOLUME] = Mode.EXCLUSIVE
    outcome = world.run()
    assert outcome.action.value == "blocked"
    assert outcome.lock.name == VOLUME
    assert world.api.writes == []


def test_an_attached_volume_may_grow():
    """MR-011: ControllerPublishVolume and an expansion both hold a shared lock on the volume."""
    world = ResizerWorld()
    world.claim(2, 1)
    world.queue.busy[VOLUME] = Mode.SHARED
    world.run()
    assert world.sizes() == [2]


@pytest.mark.parametrize(
    ("modes", "mark", "expected"),
    [
        (("OFFLINE",), {}, Mode.EXCLUSIVE),
        (("OFFLINE", "ONLINE"), {}, Mode.SHARED),
        ((), {}, Mode.SHARED),
        ((), {"in_use": True}, Mode.EXCLUSIVE),
    ],
)
def test_tr160_an_offline_expansion_stands_alone(modes, mark, expected):
    """MR-011: It never overlaps with publishing or unpublishing the same volume (DR-033)."""
    world = ResizerWorld(modes=modes)
    world.claim(2, 1)
    world.queue.marks[world.key.text] = mark
    world.run()
    assert world.queue.acquired[0] == Lock(VOLUME, expected)


def test_static_volumes_of_one_handle_are_kept_apart():
    """MR-011: Two claims may share a volume in the storage.

    A provisioned volume has only one claim.
    """
    world = ResizerWorld()
    world.claim(2, 1)
    world.run()
    assert Lock(f"resize:{world.driver_name}#{HANDLE}") in world.queue.acquired
    world = ResizerWorld()
    world.volume(1, annotations={"pv.kubernetes.io/provisioned-by": world.driver_name})
    world.claim(2, 1)
    world.run()
    assert world.queue.acquired == [Lock(VOLUME, Mode.SHARED)]


def test_a_paused_class_waits():
    """While an operator pauses a class, no new call is made and no failure is counted."""
    world = ResizerWorld()
    world.claim(2, 1, storageClassName="slow")
    world.context.pauses = SimpleNamespace(of_class=lambda _: SimpleNamespace(reason="upgrade"))
    outcome = world.run()
    assert outcome.action.value == "wait"
    assert world.api.writes == []

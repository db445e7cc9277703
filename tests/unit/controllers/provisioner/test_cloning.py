"""When the cloning protection finalizer of a deleted claim is removed."""

from __future__ import annotations

import pytest

from tests.support.fake_cluster import DRIVER, World
from tests.support.fake_context import FakeLease
from workers.config.gates import FeatureGates
from workers.config.settings import Settings
from workers.constants import FINALIZER_CLONE_SOURCE
from workers.controllers.provisioner.cloning import sync_cloning
from workers.engine.outcome import Action
from workers.errors import LeaseLost
from workers.kube.errors import ConflictError, NotFoundError
from workers.queue.keys import Key


@pytest.fixture
def world():
    world = World()
    world.reads = []
    get_claim = world.kube.get_claim

    def counted(namespace, name):
        world.reads.append(name)
        return get_claim(namespace, name)

    world.kube.get_claim = counted
    return world


def add_source(world, *, is_deleting=True, finalizers=(FINALIZER_CLONE_SOURCE, "other")):
    claim = world.add_claim("src", "src-uid")
    claim["metadata"]["finalizers"] = list(finalizers)
    if is_deleting:
        claim["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    return world.kube.add("persistentvolumeclaims", claim)


def add_clone(world, name, phase, namespace="default", *, field="dataSource", **source):
    reference = {"kind": "PersistentVolumeClaim", "name": "src"} | source
    clone = world.add_claim(name, f"{name}-uid", **{field: reference})
    world.kube.drop("persistentvolumeclaims", name, "default")
    clone["metadata"]["namespace"] = namespace
    clone["status"] = {"phase": phase}
    return world.kube.add("persistentvolumeclaims", clone)


def sync(world, uid="src-uid"):
    key = Key("cloning", DRIVER, "default/src", uid)
    return sync_cloning(world.runtime, world.driver, key, world.lease(key, ""))


def finalizers(world):
    return world.live_claim("src")["metadata"]["finalizers"]


def test_c117_clone_bound_finalizer_goes_others_stay(world):
    """The claim is read once and written once, so the write is based on that read."""
    add_source(world)
    add_clone(world, "clone", "Bound")
    assert sync(world).action is Action.DONE
    assert finalizers(world) == ["other"]
    assert world.reads == ["src"]


@pytest.mark.parametrize(
    ("phases", "sources"),
    [
        pytest.param(["Pending"], {}, id="C-118 one clone pending"),
        pytest.param(["Bound", "Pending"], {}, id="C-118 one of two pending"),
        pytest.param(["Pending"], {"field": "dataSourceRef"}, id="CL-009 by dataSourceRef"),
    ],
)
def test_pending_clones_hold_the_source(world, phases, sources):
    add_source(world)
    for number, phase in enumerate(phases):
        add_clone(world, f"clone{number}", phase, **sources)
    assert sync(world).action is Action.RETRY
    assert FINALIZER_CLONE_SOURCE in finalizers(world)


def test_c119_same_name_in_another_namespace_does_not_hold(world):
    add_source(world)
    add_clone(world, "clone", "Pending", namespace="elsewhere")
    assert sync(world).action is Action.DONE


def test_cl009_cross_namespace_clone_holds_with_the_gate(world):
    """D-018: csi-provisioner removes the finalizer while such a clone is still in progress."""
    gates = FeatureGates(cross_namespace_volume_data_source=True)
    world = World(Settings(gates=gates))
    add_source(world)
    clone = add_clone(world, "clone", "Pending", namespace="elsewhere", field="dataSourceRef")
    clone["spec"]["dataSourceRef"]["namespace"] = "default"
    world.kube.add("persistentvolumeclaims", clone)
    assert sync(world).action is Action.RETRY


def test_cl009_clone_deleted_in_mid_air_holds(world):
    """The claim of the clone is in no list any more, but the storage may still copy data."""
    add_source(world)
    clone = add_clone(world, "clone", "Pending")
    world.drop_claim("clone")
    world.intents.intents["pvc-clone-uid"] = {"claim": clone, "stage": "background"}
    assert sync(world).action is Action.RETRY
    world.intents.intents["pvc-clone-uid"]["stage"] = "failed"
    assert sync(world).action is Action.DONE


def test_c120_without_finalizer_nothing_is_written(world):
    add_source(world, finalizers=["other"])
    assert sync(world).action is Action.DONE
    assert world.kube.writes == []


def test_c121_claim_that_is_not_deleted_keeps_it(world):
    add_source(world, is_deleting=False)
    assert sync(world).action is Action.DONE
    assert FINALIZER_CLONE_SOURCE in finalizers(world)


def test_c122_conflict_is_read_and_written_again(world):
    add_source(world)
    world.kube.fail["update_claim"] = [ConflictError(409, "Conflict", "modified")]
    assert sync(world).action is Action.DONE
    assert finalizers(world) == ["other"]
    assert world.reads == ["src", "src"]


def test_c122_gone_or_replaced_is_done(world):
    assert sync(world).reason == "claim is gone"
    add_source(world)
    assert sync(world, "older-uid").reason == "nothing to do"
    assert world.kube.writes == []


def test_g9_without_its_lease_the_pass_takes_nothing_off(world):
    """Listing claims may take long, and another worker may have found a clone in the meantime."""
    add_source(world)
    key = Key("cloning", DRIVER, "default/src", "src-uid")
    lease = FakeLease(key, fails=0, memo="", mark={})
    lease.is_lost = True
    with pytest.raises(LeaseLost):
        sync_cloning(world.runtime, world.driver, key, lease)
    assert world.kube.writes == []


def test_c122_a_source_that_was_made_anew_during_the_conflict_keeps_its_finalizer(world):
    """CL-004: The claim that is read after the conflict is checked again."""
    add_source(world)
    world.kube.fail["update_claim"] = [ConflictError(409, "Conflict", "modified")]
    world.kube.before["update_claim"] = lambda: add_source(world, is_deleting=False)
    sync(world)
    assert FINALIZER_CLONE_SOURCE in finalizers(world)
    assert world.kube.writes == []


def test_c122_a_source_that_goes_during_the_write_is_done(world):
    add_source(world)
    world.kube.fail["update_claim"] = [NotFoundError(404, "NotFound", "gone")]
    assert sync(world).reason == "claim is gone"


def test_a_key_without_a_uid_is_of_whichever_claim_has_the_name(world):
    """Keys of older releases have no UID."""
    add_source(world)
    assert sync(world, "").reason == "protection removed"
    assert finalizers(world) == ["other"]

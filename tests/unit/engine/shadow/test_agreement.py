"""Each controller reaches the same result as a shadow as it does instead of the sidecar."""

from __future__ import annotations

import pytest

from tests.support.attach_world import AttachWorld
from tests.support.shadow_world import foresee, verdicts
from workers.kube import paths
from workers.kube.client import MERGE_PATCH
from workers.kube.errors import ConflictError
from workers.queue.keys import Key

KEY = Key("attachments", "csi-test", "pv1-node1")
VA, PV = "volumeattachments/pv1-node1", "persistentvolumes/pv1"


def attach(**options):
    world = AttachWorld()
    world.add_volume(**options.pop("volume", {}))
    return world, world.add_attachment(**options)


@pytest.mark.parametrize(
    ("options", "touched"),
    [
        pytest.param({}, {VA}, id="attach"),
        pytest.param({"volume": {"finalizers": None}}, {VA, PV}, id="attach, volume unprotected"),
        pytest.param({"is_marked": True, "node_id": "old"}, {VA}, id="node id renewed"),
        pytest.param({"is_marked": True, "attached": True}, set(), id="nothing to do"),
        pytest.param({"is_marked": True, "attached": True, "is_deleting": True}, {VA}, id="detach"),
    ],
)
def test_attacher_agrees_with_itself(options, touched):
    """The attacher, run for real, does what its shadow predicted."""
    world, key = attach(**options)
    before = world.api.objects.copy()
    expected = foresee(world, lambda: world.run(key))
    assert (world.api.objects, world.api.writes, world.client.calls) == (before, [], [])
    world.run(key)
    assert verdicts(world, expected) == dict.fromkeys(touched, "agrees")


def test_publish_context_is_the_drivers():
    """A value that only the driver knows (the publish context) does not count as a difference."""
    world, key = attach()
    expected = foresee(world, lambda: world.run(key))
    world.client.respond({"ControllerPublishVolume": [{"publish_context": {"a": "b"}}]})
    world.run(key)
    assert verdicts(world, expected) == {VA: "agrees"}


def test_driver_that_fails_is_no_difference():
    """A failure of the driver is not a difference, because the shadow never calls the driver."""
    world, key = attach()
    expected = foresee(world, lambda: world.run(key))
    world.client.respond({"ControllerPublishVolume": [{"code": "INTERNAL", "message": "no"}]})
    world.run(key)
    assert verdicts(world, expected)[VA].startswith("driver-failed")


def test_sidecar_with_another_name_is_told():
    """A finalizer with another spelling appears in the report."""
    world, key = attach()
    expected = foresee(world, lambda: world.run(key))
    world.api.change(
        paths.ATTACHMENTS,
        "pv1-node1",
        {"metadata": {"finalizers": ["other/attacher"]}, "status": {"attached": True}},
    )
    found = verdicts(world, expected)[VA]
    assert found.startswith("waits")
    assert "metadata.finalizers[external-attacher/csi-test]" in found


def test_calls_are_told_without_secrets():
    """The report lists the call that the driver would have received."""
    world, key = attach()
    expected = foresee(world, lambda: world.run(key))
    (prediction,) = expected.values()
    assert [one["method"] for one in prediction.calls] == ["Controller/ControllerPublishVolume"]


@pytest.mark.parametrize(
    ("metadata", "is_gone"),
    [
        pytest.param({"finalizers": ["x"]}, False, id="lives, held"),
        pytest.param({"finalizers": []}, False, id="lives, free"),
        pytest.param({"finalizers": ["x"], "deletionTimestamp": "t"}, False, id="leaves, held"),
        pytest.param({"finalizers": [], "deletionTimestamp": "t"}, True, id="leaves, free"),
    ],
)
def test_an_object_is_gone_once_nothing_holds_it(metadata, is_gone):
    """As at the API server, removing the last finalizer of a deleted object removes the object."""
    world, _ = attach()
    path = paths.VOLUMES.path("pv1")
    world.api.change(paths.VOLUMES, "pv1", {"metadata": {"finalizers": ["x", "y"]}})

    def patch():
        world.lease(KEY)
        world.context.kube.client.patch(path, {"metadata": metadata}, MERGE_PATCH)

    expected = foresee(world, patch)
    assert (expected[path].wanted is None) is is_gone


@pytest.mark.parametrize("is_held", [True, False])
@pytest.mark.parametrize("is_another", [True, False])
def test_only_the_object_that_was_meant_is_foreseen_to_go(is_another, is_held):
    """As at the API server, a deletion checks the uid and is immediate without finalizers."""
    world, _ = attach()
    change = {"metadata": {"finalizers": ["x"] if is_held else []}}
    world.api.change(paths.VOLUMES, "pv1", change)
    uid = world.api.of(paths.VOLUMES, "pv1")["metadata"]["uid"]

    def delete():
        world.lease(KEY)
        world.context.kube.delete_volume("pv1", uid="another" if is_another else uid)

    if is_another:
        with pytest.raises(ConflictError):
            foresee(world, delete)
        return
    wanted = foresee(world, delete)[paths.VOLUMES.path("pv1")].wanted
    assert (wanted is None) is not is_held
    assert wanted is None or wanted["metadata"]["deletionTimestamp"]


def test_what_no_sidecar_writes_is_dropped_and_not_foreseen():
    """Writes to csi-fleet's own Leases, and writes outside a reconcile, predict nothing."""
    world, _ = attach()
    ours = {"metadata": {"name": "lease", "namespace": "fleet"}, "spec": {}}
    volume = {"metadata": {"name": "pv2"}, "spec": {}}

    def write():
        assert world.context.kube.create(paths.VOLUMES, volume) == volume
        world.lease(KEY)
        assert world.context.kube.create(paths.LEASES, ours) == ours

    assert foresee(world, write) == {}

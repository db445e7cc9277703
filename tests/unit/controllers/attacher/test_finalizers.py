"""When csi-fleet's finalizer is removed from a PV: section 11.4."""

from __future__ import annotations

import pytest

from tests.support.attach_world import FIN, AttachWorld
from workers.controllers.attacher import names
from workers.controllers.attacher.controller import CONTROLLER
from workers.kube import paths
from workers.kube.errors import ForbiddenError
from workers.queue.locks import Lock

PV = "persistentvolumes/pv1"
MIGRATED_TO = "pv.kubernetes.io/migrated-to"
GCE = "pd.csi.storage.gke.io"
GCE_FIN = "external-attacher/pd-csi-storage-gke-io"


@pytest.fixture
def world():
    return AttachWorld()


def deleted_volume(world, finalizers=(FIN,)):
    world.add_volume(finalizers=finalizers)
    world.api.mark_deleted(paths.VOLUMES, "pv1")


def test_ta070_last_finalizer_of_a_deleted_volume(world):
    """A-067: The last finalizer is removed, so the PV is deleted."""
    deleted_volume(world)
    assert world.release().action.value == "done"
    assert world.api.of(paths.VOLUMES, "pv1") is None


def test_ta071_finalizers_of_others_stay(world):
    deleted_volume(world, ["a", FIN, "b"])
    world.release()
    assert world.volume_finalizers() == ["a", "b"]


def test_what_was_written_before_ours_asks_for_no_second_pass(world):
    """COR-15: The provisioner's write to the same PV causes an event during the reconcile."""
    deleted_volume(world, ["a", FIN])
    outcome = world.release()
    left = world.api.of(paths.VOLUMES, "pv1")
    assert outcome.known == left["metadata"]["resourceVersion"] != ""


def test_ta072_list_changed_meanwhile(world):
    deleted_volume(world, ["a", FIN])
    change = {"metadata": {"finalizers": ["b", FIN]}}
    world.api.before("patch", PV, lambda: world.api.change(paths.VOLUMES, "pv1", change))
    assert world.release().action.value == "done"
    assert world.volume_finalizers() == ["b"]


def test_ta073_volume_with_an_attachment(world):
    deleted_volume(world)
    world.add_attachment(is_marked=True)
    world.release()
    assert world.volume_finalizers() == [FIN]
    world.api.drop(paths.ATTACHMENTS, "pv1-node1")
    world.release()
    assert world.api.of(paths.VOLUMES, "pv1") is None


def test_ta074_attachment_of_another_driver(world):
    deleted_volume(world)
    world.add_attachment(attacher="other")
    world.release()
    assert world.volume_finalizers() == [FIN]


def test_ta075_volume_that_stays(world):
    """A-068: A PV that is not being deleted keeps the finalizer."""
    world.add_volume()
    world.release()
    assert world.volume_finalizers() == [FIN]
    assert world.written == []


def test_ta076_volume_without_our_finalizer(world):
    deleted_volume(world, ["a"])
    world.release()
    assert world.written == []


def test_ta077_finalizer_that_is_there_twice(world):
    """DA-015: csi-attacher leaves some of them; here one reconcile removes all."""
    deleted_volume(world, [FIN, "a", FIN])
    world.release()
    assert world.volume_finalizers() == ["a"]


@pytest.mark.parametrize(
    ("annotations", "is_kept"),
    [
        pytest.param({MIGRATED_TO: GCE}, True, id="TA-078 migrated to us"),
        pytest.param({}, False, id="TA-079 nowhere"),
        pytest.param({MIGRATED_TO: "other"}, False, id="TA-079 elsewhere"),
    ],
)
def test_in_tree_volume_that_is_not_deleted(annotations, is_kept):
    """A-067: If a migration was reverted, the finalizer is not needed."""
    world = AttachWorld(driver=GCE)
    metadata = {"name": "pv1", "finalizers": [GCE_FIN, "x"], "annotations": annotations}
    spec = {"gcePersistentDisk": {"pdName": "d"}}
    world.api.add(paths.VOLUMES, {"metadata": metadata, "spec": spec})
    world.release()
    assert (GCE_FIN in world.volume_finalizers()) is is_kept


def test_ta080_new_attachment_of_a_volume_that_is_going(world):
    """MA-021, DA-016: The attach reads the PV live, under the lock that the removal holds."""
    deleted_volume(world, [FIN, "pv-protection"])
    key = names.finalizer_key("csi/test", "pv1")
    assert CONTROLLER.locks(key, world.driver) == (Lock("pv1"),)
    world.release()
    world.run(world.add_attachment())
    assert world.calls == []
    assert "is marked for deletion" in world.message()


def test_volume_is_gone(world):
    assert world.release().action.value == "done"


def test_refused_removal_backs_off(world):
    deleted_volume(world)
    world.api.fail("patch", PV, ForbiddenError(403, "Forbidden", "no"))
    assert world.release().action.value == "retry"
    assert world.volume_finalizers() == [FIN]

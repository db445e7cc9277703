"""A driver that cannot attach: section 11.5."""

from __future__ import annotations

import pytest

from tests.support.attach_world import FIN, PUBLISHES, AttachWorld
from workers.kube import paths
from workers.kube.errors import ForbiddenError

STATUS = "volumeattachments/pv1-node1/status"


@pytest.fixture(
    params=[
        pytest.param(({"plugin": ()}), id="TA-085 no controller"),
        pytest.param(({"capabilities": ()}), id="TA-086 no publish"),
    ]
)
def world(request):
    return AttachWorld(**{"capabilities": PUBLISHES} | request.param)


def test_ta085_marked_attached_without_a_call(world):
    """A-004, A-075: No finalizer, no node ID and no volume is needed."""
    world.run(world.add_attachment())
    assert world.status() == {"attached": True}
    assert (world.finalizers(), world.node_id(), world.calls) == ([], None, [])
    assert world.written == [STATUS]


def test_ta086_attached_false_written_later(world):
    """TA-085 and TA-086 run with both kinds of drivers that cannot attach."""
    key = world.add_attachment()
    world.run(key)
    world.api.change(paths.ATTACHMENTS, "pv1-node1", {"status": {"attached": False}})
    world.run(key)
    assert world.status() == {"attached": True}


def test_errors_and_metadata_of_better_times_go(world):
    """A-075: csi-attacher too writes the full result of an attach without a call."""
    error = {"time": "2026-01-01T00:00:00Z", "message": "boom"}
    world.run(world.add_attachment(attachError=error, attachmentMetadata={"a": "b"}))
    assert world.status() == {"attached": True}


def test_ta087_attachment_of_another_driver(world):
    world.run(world.add_attachment(attacher="other"))
    assert world.written == []


def test_ta088_status_cannot_be_written(world):
    world.api.fail("patch", STATUS, ForbiddenError(403, "Forbidden", "no"))
    key = world.add_attachment()
    with pytest.raises(ForbiddenError):
        world.run(key)
    world.run(key)
    assert world.status() == {"attached": True}


def test_ta089_finalizer_of_better_times(world):
    """DA-008, A-076: csi-attacher leaves an attachment and a volume that cannot be deleted."""
    world.add_volume(claimRef={"name": "data", "namespace": "default", "uid": "c1"})
    world.api.mark_deleted(paths.VOLUMES, "pv1")
    world.run(world.add_attachment(is_marked=True, attached=True, is_deleting=True))
    assert world.is_gone()
    assert world.calls == []
    assert world.volume_finalizers() == [FIN]
    assert world.events.seen == [
        (
            "Warning",
            "DetachFailed",
            "node node1: the driver no longer supports detaching volumes, so it was not called",
        )
    ]
    world.release()
    assert world.api.of(paths.VOLUMES, "pv1") is None


def test_finalizer_stays_while_the_attachment_does(world):
    """The driver may be able to attach again after its next start."""
    world.run(world.add_attachment(is_marked=True, attached=True))
    assert world.finalizers() == [FIN]


def test_a_finalizer_whose_volume_is_gone_goes_untold():
    """DA-008: There is no claim for an event, and nothing to wait for."""
    world = AttachWorld(capabilities=())
    world.run(world.add_attachment(is_marked=True, attached=True, is_deleting=True))
    assert world.is_gone()
    assert world.events.seen == []

"""A status write that is refused is repeated if the attachment still exists (TA-029)."""

from __future__ import annotations

import pytest

from tests.support.attach_world import AttachWorld
from workers.controllers.attacher import names
from workers.engine.live import WRITE_TRIES
from workers.kube import paths
from workers.kube.errors import ConflictError

STATUS = "volumeattachments/pv1-node1/status"
# A patch without resourceVersion gets this from the API server after five tries of its own, or from
# a webhook.
BUSY = ConflictError(409, "Conflict", "please apply your changes to the latest version")


def test_ta029_a_conflict_of_the_status_is_not_an_attachment_that_went():
    world = AttachWorld()
    world.add_volume()
    key = world.add_attachment()
    world.api.fail("patch", STATUS, *[BUSY] * WRITE_TRIES)
    with pytest.raises(ConflictError):  # so it is retried after a back-off
        world.run(key)
    assert world.client.published == {"handle1": {"nodeID1"}}
    world.run(key)
    assert world.attachment()["status"]["attached"] is True


def test_a062_a_conflict_of_the_last_status_is_not_an_attachment_that_was_made_again():
    """Another finalizer keeps the object, so the status must not stay "attached"."""
    world = AttachWorld()
    world.add_volume()
    world.client.published = {"handle1": {"nodeID1"}}
    world.add_attachment(is_marked=True, attached=True, is_deleting=True, finalizers=["x"])
    uid = world.attachment()["metadata"]["uid"]
    key = names.attachment_key("csi/test", "node1", "pv1-node1", uid, kind=names.DETACHMENTS)
    world.api.fail("patch", STATUS, *[BUSY] * WRITE_TRIES)
    outcome = world.run(key)
    assert world.api.of(paths.ATTACHMENTS, "pv1-node1") is not None
    assert world.attachment()["status"]["attached"] is False or outcome.action.value != "done"

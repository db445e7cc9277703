"""Rare events in the watcher and in a reconcile: a name that is used again, endless conflicts."""

from __future__ import annotations

from contextlib import suppress

import msgspec

from tests.support.attach_world import FIN, AttachWorld
from workers.controllers.attacher.rules import AttacherRules
from workers.kube import paths
from workers.kube.errors import ApiError, ConflictError
from workers.kube.objects import Attachment
from workers.spec import Forget

BUSY = ConflictError(409, "Conflict", "a webhook says: not now")


RECORD = {
    "name": "csi/test",
    "queue_name": "csi/test",
    "plugin_capabilities": ["CONTROLLER_SERVICE"],
    "controller_capabilities": ["PUBLISH_UNPUBLISH_VOLUME"],
}


def attachment(uid: str, *, attached: bool) -> Attachment:
    return msgspec.convert(
        {
            "metadata": {"name": "va", "uid": uid, "finalizers": [FIN], "resourceVersion": "1"},
            "spec": {
                "attacher": "csi/test",
                "nodeName": "n",
                "source": {"persistentVolumeName": "pv"},
            },
            "status": {"attached": attached},
        },
        Attachment,
    )


def test_a_list_forgets_the_attachment_that_was_made_again_meanwhile():
    """DA-004: Names are hashes of volume, driver and node, so they are used again."""
    rules = AttacherRules()
    rules.set_drivers([RECORD])
    list(rules.seen(paths.ATTACHMENTS, attachment("u1", attached=False), is_listed=False))
    rules.begin_list(paths.ATTACHMENTS)
    told = [*rules.seen(paths.ATTACHMENTS, attachment("u2", attached=False), is_listed=True)]
    told += rules.end_list(paths.ATTACHMENTS)
    forgotten = {one.key.uid for one in told if isinstance(one, Forget)}
    assert forgotten == {"u1"}, "marks and counters of u1 stay forever"


def test_a_webhook_that_answers_conflict_for_ever_makes_no_hot_loop():
    world = AttachWorld()
    world.add_volume()
    key = world.add_attachment(attached=True)
    patch = world.api.patch

    def refusing(path, body, content_type):
        if "finalizers" in (body.get("metadata") or {}) and "attachments" in path:
            raise BUSY
        return patch(path, body, content_type)

    world.api.patch = refusing
    at_once = 0
    for _ in range(10):
        with suppress(ApiError):
            outcome = world.run(key)
            at_once += outcome.action.value == "wait" and outcome.delay_seconds == 0
    assert at_once <= 3

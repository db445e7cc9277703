"""If the annotation cannot be removed, the event says so and does not blame the status."""

from __future__ import annotations

from tests.support.snapshot_world import CONTENT, CUT, SnapshotWorld
from workers.kube.errors import ForbiddenError


def test_sns020_an_annotation_that_stays_is_told_as_such():
    """SNS-020 row 9: The status is already written, so row 8 does not apply."""
    world = SnapshotWorld()
    world.add_content()
    world.client.respond({"CreateSnapshot": [CUT]})
    denied, patch = ForbiddenError(403, "Forbidden", "denied"), world.api.patch

    def refusing(path, body, content_type):
        ends = None in (body.get("metadata", {}).get("annotations") or {}).values()
        if ends and not path.endswith("/status"):
            raise denied
        return patch(path, body, content_type)

    world.api.patch = refusing
    assert world.run_content().action.value == "retry"
    assert world.content()["status"]["snapshotHandle"] == "sh", "row 8 was done"
    words = "failed to remove VolumeSnapshotBeingCreated annotation on the content"
    assert world.messages == [f'Failed to create snapshot: {words} {CONTENT}: "denied"']

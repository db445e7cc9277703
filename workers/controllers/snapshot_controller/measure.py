"""How long snapshots take, under upstream's names (SNC-090).

Durations count from the object's own times, so that no restart and no other worker loses one; the
reference counts from the first pass of its process (SND-027).
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from workers.explain.words import stamp
from workers.translate import snapshot_objects as objects
from workers.translate.fields import text

if TYPE_CHECKING:
    from workers.controllers.snapshot_controller.work import ObjectPass
    from workers.translate.fields import Json

CREATE: Final = "CreateSnapshot"
CREATE_AND_READY: Final = "CreateSnapshotAndReady"
DELETE: Final = "DeleteSnapshot"
_UNKNOWN: Final = "unknown"
_SUCCESS: Final = "success"


def ended(work: ObjectPass, operation: str, content: Json | None) -> None:
    """An operation of a snapshot came to its good end."""
    member = "deletionTimestamp" if operation == DELETE else "creationTimestamp"
    since = stamp(text(work.item, "metadata", member))
    driver = text(content, "spec", "driver") if content is not None else ""
    kind = "dynamic" if objects.source_content(work.item) is None else "pre-provisioned"
    seconds = max(0.0, time.time() - since) if since else 0.0
    labels = (driver or _UNKNOWN, operation, kind, _SUCCESS)
    work.context.metrics.snapshot_seconds.labels(*labels).observe(seconds)

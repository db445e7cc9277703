"""Measures how long snapshots take, with snapshot-controller's metric names (SNC-090).

A duration starts at the object's own timestamp, so it does not depend on which worker does the work
or when it started. snapshot-controller counts from the first reconcile in its process (SND-027).
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
    """Records how long a successful operation on a snapshot took."""
    member = "deletionTimestamp" if operation == DELETE else "creationTimestamp"
    since = stamp(text(work.item, "metadata", member))
    driver = text(content, "spec", "driver") if content is not None else ""
    kind = "dynamic" if objects.source_content(work.item) is None else "pre-provisioned"
    seconds = max(0.0, time.time() - since) if since else 0.0
    labels = (driver or _UNKNOWN, operation, kind, _SUCCESS)
    work.context.metrics.snapshot_seconds.labels(*labels).observe(seconds)

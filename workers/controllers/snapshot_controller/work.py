"""One reconcile of a snapshot, a group snapshot or one of their contents, based on `LivePass`.

A write patches single fields and is conditional on the resourceVersion that was read. So it never
overwrites another program's write and never writes back a stale object (SND-003, SND-015).
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from workers.engine.live import LivePass
from workers.kube import paths
from workers.kube.errors import RefusedError
from workers.observability import trail
from workers.observability.logging import get_logger
from workers.translate import snapshot_objects as objects
from workers.translate.fields import text_list
from workers.translate.snapshot_status import error_of

if TYPE_CHECKING:
    from workers.controllers.snapshot_controller.decide import Refusal
    from workers.controllers.snapshot_controller.settings import SnapshotControllerSettings
    from workers.kube.objects import JsonObject

_log = get_logger(__name__)

COMPONENT: Final = "snapshot-controller"


class ObjectPass(LivePass):
    """An object during one reconcile; `item` is the object as it was last read or written."""

    component = COMPONENT

    @property
    def settings(self) -> SnapshotControllerSettings:
        """The controller's own settings."""
        found: SnapshotControllerSettings = self.context.settings.controllers["snapshot-controller"]
        return found

    def find_content(self, name: str) -> JsonObject | None:
        """Reads a VolumeSnapshotContent; returns None if none has that name."""
        return self.find(paths.SNAPSHOT_CONTENTS, name)

    def add_finalizers(self, step: str, missing: list[str]) -> None:
        """Adds the finalizers that the object does not have yet."""

        def patch(item: JsonObject) -> JsonObject | None:
            known = text_list(item, "metadata", "finalizers")
            new = [name for name in missing if name not in known]
            return {"metadata": {"finalizers": [*known, *new]}} if new else None

        if missing:
            self.write(step, patch)

    def blame(self, refusal: Refusal) -> None:
        """Writes the error to the status and records it as an event (SNC-031).

        If the status already has the message, only readyToUse is unset and no event is recorded. As
        in snapshot-controller, the event is recorded even if the status cannot be written; `item`
        then still has the old status.
        """
        message = refusal.message
        if not refusal.reason:
            return
        is_known = objects.error_message(self.item) == message
        error = error_of(message, time.time())

        def change(item: JsonObject) -> JsonObject | None:
            old = item.get("status") or {}
            new: JsonObject = {}
            if objects.error_message(item) != message:
                new["error"] = error
            if refusal.unsets_ready and (new or objects.is_ready(item)):
                new["readyToUse"] = False
            return {**old, **new} if new else None

        try:
            self.write_status("write-error", change)
        except RefusedError as problem:
            _log.warning("could not write the error to the object's status", err=problem)
        finally:
            if is_known:
                trail.note("error", message)
            else:
                self.event("Warning", refusal.reason, message)

"""One reconcile of a snapshot content: its class, annotations, finalizer and errors.

Snapshot contents and group snapshot contents differ only in `Names`. Only single fields are
patched, so that other programs' writes are kept (SND-003).
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from workers import constants as k
from workers.engine.live import DriverPass
from workers.kube import paths
from workers.kube.errors import RefusedError
from workers.observability import trail
from workers.observability.logging import get_logger
from workers.translate import snapshot_objects as objects
from workers.translate.fields import annotations_of, is_deleting, text_list
from workers.translate.snapshot_status import error_of

if TYPE_CHECKING:
    from workers.controllers.snapshotter.settings import SnapshotterSettings
    from workers.kube.objects import JsonObject
    from workers.kube.paths import Resource

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Names:
    """The names that differ between snapshot contents and group snapshot contents."""

    resource: Resource
    class_resource: Resource
    class_words: str
    being_created: str
    being_deleted: str
    finalizer: str
    secret_name: str
    secret_namespace: str
    words: str


CONTENTS: Final = Names(
    resource=paths.SNAPSHOT_CONTENTS,
    class_resource=paths.SNAPSHOT_CLASSES,
    class_words="volumesnapshotclass.snapshot.storage.k8s.io",
    being_created=k.ANN_BEING_CREATED,
    being_deleted=k.ANN_BEING_DELETED,
    finalizer=k.FINALIZER_CONTENT,
    secret_name=k.ANN_SNAPSHOT_SECRET_NAME,
    secret_namespace=k.ANN_SNAPSHOT_SECRET_NAMESPACE,
    words="snapshot content",
)
GROUP_CONTENTS: Final = Names(
    resource=paths.GROUP_SNAPSHOT_CONTENTS,
    class_resource=paths.GROUP_SNAPSHOT_CLASSES,
    class_words="volumegroupsnapshotclass.groupsnapshot.storage.k8s.io",
    being_created=k.ANN_GROUP_BEING_CREATED,
    being_deleted=k.ANN_GROUP_BEING_DELETED,
    finalizer=k.FINALIZER_GROUP_CONTENT,
    secret_name=k.ANN_GROUP_SECRET_NAME,
    secret_namespace=k.ANN_GROUP_SECRET_NAMESPACE,
    words="group snapshot content",
)


def has_result(content: JsonObject) -> bool:
    """True if the object's status names its snapshot or its group."""
    status = content.get("status") or {}
    return bool(status.get("snapshotHandle") or status.get("volumeGroupSnapshotHandle"))


@dataclass
class LiveContent(DriverPass):
    """A snapshot content during one reconcile; `item` is the content as last read or written."""

    names: Names = field(kw_only=True)

    @property
    def settings(self) -> SnapshotterSettings:
        """The controller's own settings for this driver."""
        found: SnapshotterSettings = self.driver.settings.controllers["snapshotter"]
        return found

    @property
    def own_namespace(self) -> str:
        """csi-fleet's own namespace, which contains the copies of intents."""
        return self.driver.settings.kube.namespace

    @property
    def component(self) -> str:
        """The driver's name; events name it as their source."""
        return f"csi-snapshotter {self.driver.name}"

    def is_announced(self) -> bool:
        """True if the object's annotation says that a call may be in flight."""
        return self.names.being_created in annotations_of(self.item)

    def is_wanted_gone(self) -> bool:
        """True if the object is being deleted and has the annotation that allows the deletion."""
        return is_deleting(self.item) and self.names.being_deleted in annotations_of(self.item)

    def read_class(self, name: str | None) -> JsonObject | None:
        """Reads the class with that name; returns None if it does not exist."""
        return self.find(self.names.class_resource, name or "")

    def annotate(self) -> None:
        """Adds the annotation that says that a call is about to be made (SNQ-011 b)."""
        self.write(
            "mark-created",
            lambda item: (
                None
                if self.names.being_created in annotations_of(item)
                else {"metadata": {"annotations": {self.names.being_created: "yes"}}}
            ),
        )

    def clear_annotation(self) -> None:
        """Removes the annotation that `annotate` added, once no call is in flight."""
        self.write(
            "unmark-created",
            lambda item: (
                {"metadata": {"annotations": {self.names.being_created: None}}}
                if self.names.being_created in annotations_of(item)
                else None
            ),
        )

    def drop_finalizer(self) -> None:
        """Removes the finalizer; this is the last write to the object (SNQ-011 d).

        Raises:
            Gone: the object no longer exists.
            ConflictError: the object has changed, so the whole reconcile must be repeated.
        """

        def patch(item: JsonObject) -> JsonObject | None:
            finalizers = text_list(item, "metadata", "finalizers")
            if self.names.finalizer not in finalizers:
                return None
            kept = [name for name in finalizers if name != self.names.finalizer]
            return {"metadata": {"finalizers": kept}}

        self.write("remove-finalizer", patch, tries=1)

    def blame(self, reason: str, message: str) -> None:
        """Writes the error to the status and an event, unless the status already has it (SNS-026).

        As in csi-snapshotter, the status is written first, so that a user who sees the event finds
        the error there. The event is recorded even if the status cannot be written.
        """
        if objects.error_message(self.item) == message:
            trail.note("error", message)
            return
        error = error_of(message, time.time())
        try:
            self.write_status(
                "write-error",
                lambda item: {**(item.get("status") or {}), "error": error, "readyToUse": False},
            )
        except RefusedError as problem:
            _log.warning("could not write the error to the content's status", err=problem)
        finally:
            self.event("Warning", reason, message)

"""Reads a content live and patches single fields of it.

Snapshots and group snapshots both use it; they differ only in `Names` (annotations, finalizer,
resources). A step is reported before every effect.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from workers import constants as k
from workers.kube import paths
from workers.kube.errors import ConflictError, NotFoundError, RefusedError
from workers.kube.merging import difference
from workers.observability import trail
from workers.observability.logging import get_logger
from workers.translate import secrets
from workers.translate import snapshot_objects as objects
from workers.translate.fields import annotations_of, is_deleting, text_list
from workers.translate.snapshot_status import error_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from workers.controllers.snapshotter.settings import SnapshotterSettings
    from workers.drivers.driver import Driver
    from workers.engine.context import Context
    from workers.kube.objects import JsonObject
    from workers.kube.paths import Resource
    from workers.queue.keys import Key
    from workers.queue.leases import Lease
    from workers.translate.secrets import SecretRef

_log = get_logger(__name__)

_MAX_ATTEMPTS: Final = 3


@dataclass(frozen=True, slots=True)
class Names:
    """The names in which contents of snapshots and of group snapshots differ."""

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
    """True if the object's status names its snapshot or group."""
    status = content.get("status") or {}
    return bool(status.get("snapshotHandle") or status.get("volumeGroupSnapshotHandle"))


class Gone(Exception):  # noqa: N818 - an end of the reconcile, not a failure
    """The object no longer exists: it was removed in spite of its finalizer."""


@dataclass
class LiveContent:
    """A content during one reconcile; `content` is always as last read or written."""

    context: Context
    driver: Driver
    key: Key
    lease: Lease
    names: Names
    content: JsonObject = field(default_factory=dict)

    @property
    def settings(self) -> SnapshotterSettings:
        """The controller's own settings for this driver."""
        found: SnapshotterSettings = self.driver.settings.controllers["snapshotter"]
        return found

    @property
    def namespace(self) -> str:
        """csi-fleet's own namespace, for intent copies."""
        return self.driver.settings.kube.namespace

    @property
    def name(self) -> str:
        """The content's name."""
        return self.key.object

    def reach(self, step: str) -> None:
        """Reports the step before an effect; raises LeaseLost if another worker has the lease."""
        self.context.effects.reach(step, self.lease)

    def is_announced(self) -> bool:
        """True if the object's annotation says that a call may be in flight."""
        return self.names.being_created in annotations_of(self.content)

    def is_wanted_gone(self) -> bool:
        """True if the object is being deleted and has the annotation that allows the deletion."""
        return is_deleting(self.content) and self.names.being_deleted in annotations_of(
            self.content
        )

    # Reading.

    def read(self) -> bool:
        """Reads the content live; False if it is gone.

        Raises:
            ApiError: the content cannot be read, or its kind is not served.
        """
        try:
            self.content = self.context.kube.get(self.names.resource, self.name)
        except NotFoundError as error:
            if not error.is_about(self.name):
                raise
            return False
        return True

    def read_class(self, name: str | None) -> JsonObject | None:
        """Reads the class of that name; None if there is none."""
        if name is None:
            return None
        try:
            return self.context.kube.get(self.names.class_resource, name)
        except NotFoundError:
            return None

    def read_secret(self, ref: SecretRef | None) -> dict[str, str]:
        """Reads a secret's data; empty without a reference.

        Raises:
            ApiError: the secret cannot be read.
            AttemptError: its data is not text.
        """
        if ref is None:
            return {}
        return secrets.decode(self.context.kube.get_secret(ref.namespace, ref.name), ref)

    # Writing. Only single fields are patched, so that the writes of others stay (SND-003).

    def _write(
        self,
        step: str,
        change: Callable[[JsonObject], JsonObject | None],
        *,
        status: bool = False,
        attempts: int = _MAX_ATTEMPTS,
    ) -> None:
        """Patches the object; after a conflict reads it and calls `change` again (SNQ-006).

        Raises:
            Gone: the object no longer exists.
            ApiError: the API server refused.
        """
        for attempts_left in range(attempts - 1, -1, -1):
            patch = change(self.content)
            if patch is None:
                return
            self.reach(step)
            try:
                self.content = self.context.effects.kube.merge(
                    self.names.resource, self.content, patch, status=status, is_exact=True
                )
            except NotFoundError as error:
                if error.is_about(self.name):
                    raise Gone from None
                raise
            except ConflictError:
                if not attempts_left:
                    raise
                self._read_again()
            else:
                return

    def _read_again(self) -> None:
        known = self.content
        if not self.read() or objects.uid_of(self.content) != objects.uid_of(known):
            self.content = known  # another object of that name does not concern this reconcile
            raise Gone

    def annotate(self) -> None:
        """Adds the annotation that a call is about to be made (SNQ-011 b)."""
        self._write(
            "mark-created",
            lambda item: (
                None
                if self.names.being_created in annotations_of(item)
                else {"metadata": {"annotations": {self.names.being_created: "yes"}}}
            ),
        )

    def clear_annotation(self) -> None:
        """Removes the annotation once no call is in flight (part of `forget`)."""
        self._write(
            "unmark-created",
            lambda item: (
                {"metadata": {"annotations": {self.names.being_created: None}}}
                if self.names.being_created in annotations_of(item)
                else None
            ),
        )

    def write_status(self, step: str, change: Callable[[JsonObject], JsonObject | None]) -> None:
        """Writes a new status; `change` gets the object and returns the whole status, or None."""

        def patch(item: JsonObject) -> JsonObject | None:
            new = change(item)
            return None if new is None else {"status": difference(item.get("status") or {}, new)}

        self._write(step, patch, status=True)

    def remove_finalizer(self) -> None:
        """Removes the finalizer; this is the last write to the object (SNQ-011 d).

        Raises:
            Gone: the object no longer exists.
            ConflictError: the object changed, so the whole reconcile must decide again.
        """

        def patch(item: JsonObject) -> JsonObject | None:
            finalizers = text_list(item, "metadata", "finalizers")
            if self.names.finalizer not in finalizers:
                return None
            kept = [name for name in finalizers if name != self.names.finalizer]
            return {"metadata": {"finalizers": kept}}

        self._write("remove-finalizer", patch, attempts=1)

    # Events.

    def event(self, kind: Any, reason: str, message: str) -> None:
        """Records an event on the content, with the driver in its source."""
        if kind == "Warning":
            trail.note("error", message)
            _log.warning("attempt failed", reason=reason, err=message)
        self.context.effects.event(
            {"apiVersion": self.names.resource.api_version, "kind": self.names.resource.kind}
            | self.content,
            kind,
            reason,
            message,
            component=f"csi-snapshotter {self.driver.name}",
        )

    def blame(self, reason: str, message: str) -> None:
        """Writes the error to the status and an event, unless the status has it (SNS-026).

        As in csi-snapshotter the status is written first, so that a user who sees the event finds
        it there. The event is recorded even if the status cannot be written.
        """
        if objects.error_message(self.content) == message:
            trail.note("error", message)
            return
        error = error_of(message, time.time())
        try:
            self.write_status(
                "write-error",
                lambda item: {**(item.get("status") or {}), "error": error, "readyToUse": False},
            )
        except RefusedError as problem:
            _log.warning("error not stored", err=problem)
        finally:
            self.event("Warning", reason, message)

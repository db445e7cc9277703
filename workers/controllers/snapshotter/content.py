"""One content as a pass sees it: read live, and changed member by member.

Used by snapshots and group snapshots alike; they differ in `Names` (annotations, finalizer,
resources), not in what is done when. Every effect is announced by a step.
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
    """What contents of snapshots and of group snapshots are called."""

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
    """Whether the object tells which snapshot, or group, is its own."""
    status = content.get("status") or {}
    return bool(status.get("snapshotHandle") or status.get("volumeGroupSnapshotHandle"))


class Gone(Exception):  # noqa: N818 - an end of the pass, not a failure
    """The object is not there any more; somebody removed it by force."""


@dataclass
class LiveContent:
    """A content of ours while one pass lasts; `content` is always as last read or written."""

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
        """Our own namespace, for copies of attempts."""
        return self.driver.settings.kube.namespace

    @property
    def name(self) -> str:
        """The content's name."""
        return self.key.object

    def reach(self, step: str) -> None:
        """Announce an effect; raises LeaseLost if the content has another owner by now."""
        self.context.effects.reach(step, self.lease)

    def is_announced(self) -> bool:
        """Whether the object says that a call may be under way."""
        return self.names.being_created in annotations_of(self.content)

    def is_wanted_gone(self) -> bool:
        """Whether the object is being deleted, and its snapshot's side wants that."""
        return is_deleting(self.content) and self.names.being_deleted in annotations_of(
            self.content
        )

    # Reading.

    def read(self) -> bool:
        """Read the content live; False if it is gone.

        Raises:
            ApiError: it cannot be read; also while its kind is not served.
        """
        try:
            self.content = self.context.kube.get(self.names.resource, self.name)
        except NotFoundError as error:
            if not error.is_about(self.name):
                raise
            return False
        return True

    def read_class(self, name: str | None) -> JsonObject | None:
        """The class of that name, None if there is none."""
        if name is None:
            return None
        try:
            return self.context.kube.get(self.names.class_resource, name)
        except NotFoundError:
            return None

    def read_secret(self, ref: SecretRef | None) -> dict[str, str]:
        """What a secret says; nothing without a reference.

        Raises:
            ApiError: it cannot be read.
            AttemptError: it is no text.
        """
        if ref is None:
            return {}
        return secrets.decode(self.context.kube.get_secret(ref.namespace, ref.name), ref)

    # Writing. Single members are merged in, so that what others write meanwhile stays (SND-003).

    def _write(
        self,
        step: str,
        change: Callable[[JsonObject], JsonObject | None],
        *,
        status: bool = False,
        attempts: int = _MAX_ATTEMPTS,
    ) -> None:
        """Change the object as it is now; on a conflict read and decide again (SNQ-006).

        Raises:
            Gone: it is not there any more.
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
            self.content = known  # another one of its name is none of this pass
            raise Gone

    def annotate(self) -> None:
        """Tell everybody that a call is about to be made (SNQ-011 b)."""
        self._write(
            "mark-created",
            lambda item: (
                None
                if self.names.being_created in annotations_of(item)
                else {"metadata": {"annotations": {self.names.being_created: "yes"}}}
            ),
        )

    def clear_annotation(self) -> None:
        """No call is under way any more (part of `forget`)."""
        self._write(
            "unmark-created",
            lambda item: (
                {"metadata": {"annotations": {self.names.being_created: None}}}
                if self.names.being_created in annotations_of(item)
                else None
            ),
        )

    def write_status(self, step: str, change: Callable[[JsonObject], JsonObject | None]) -> None:
        """Write a new status; `change` gets the object and returns all of the status, or None."""

        def patch(item: JsonObject) -> JsonObject | None:
            new = change(item)
            return None if new is None else {"status": difference(item.get("status") or {}, new)}

        self._write(step, patch, status=True)

    def remove_finalizer(self) -> None:
        """Let the object go; the last write of its life (SNQ-011 d).

        Raises:
            Gone: it is not there any more.
            ConflictError: it changed, and all of the pass must be decided again.
        """

        def patch(item: JsonObject) -> JsonObject | None:
            finalizers = text_list(item, "metadata", "finalizers")
            if self.names.finalizer not in finalizers:
                return None
            kept = [name for name in finalizers if name != self.names.finalizer]
            return {"metadata": {"finalizers": kept}}

        self._write("remove-finalizer", patch, attempts=1)

    # Telling.

    def event(self, kind: Any, reason: str, message: str) -> None:
        """An event on the content, in the driver's name."""
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
        """Error status and event; silent when the same text is stored already (SNS-026).

        In upstream's order, whatever becomes of the status: who sees the event finds the status.
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

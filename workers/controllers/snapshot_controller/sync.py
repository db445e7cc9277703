"""Reconciles one snapshot: the steps of the frame that only snapshots have (sections 2.3 to 2.5).

Later steps wait for the content's status; a change to the status adds the snapshot's key.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from workers.constants import ANN_BEING_DELETED, ANN_DEFAULT_SNAPSHOT_CLASS
from workers.controllers.snapshot_controller import (
    claims,
    creating,
    groupnames,
    measure,
    vanishing,
)
from workers.controllers.snapshot_controller import decide as rules
from workers.controllers.snapshot_controller.decide import Refusal
from workers.controllers.snapshot_controller.deletion import delete
from workers.controllers.snapshot_controller.frame import BindingPass, Words
from workers.engine.outcome import Outcome, done
from workers.kube import paths
from workers.kube.errors import RefusedError
from workers.observability import trail
from workers.observability.logging import get_logger
from workers.translate import snapshot_objects as objects

if TYPE_CHECKING:
    from workers.engine.context import Context
    from workers.kube.objects import JsonObject
    from workers.queue.keys import Key
    from workers.queue.leases import Lease
    from workers.translate.fields import Json

_log = get_logger(__name__)

WORDS: Final = Words(
    subject="Snapshot",
    noun="snapshot",
    contents=paths.SNAPSHOT_CONTENTS,
    classes=paths.SNAPSHOT_CLASSES,
    class_words="volumesnapshotclass.snapshot.storage.k8s.io",
    bound_field="boundVolumeSnapshotContentName",
    class_field="volumeSnapshotClassName",
    ref_field="volumeSnapshotRef",
    default_annotation=ANN_DEFAULT_SNAPSHOT_CLASS,
    being_deleted=ANN_BEING_DELETED,
    no_class="Failed to get snapshot class",
    one_source="Exactly one of PersistentVolumeClaimName and VolumeSnapshotContentName should be "
    "specified",
)
_OPERATIONS: Final = {"created": measure.CREATE, "ready": measure.CREATE_AND_READY}


def sync_snapshot(context: Context, key: Key, lease: Lease) -> Outcome:
    """Reconciles one snapshot (SNC-002, SNC-020)."""
    return vanishing.run(SnapshotPass(context, key, lease, paths.SNAPSHOTS))


class SnapshotPass(BindingPass):
    """One reconcile of a snapshot."""

    words = WORDS

    @property
    def named_content(self) -> str | None:
        """The name of the content in the snapshot's spec."""
        return objects.source_content(self.item)

    @property
    def has_one_source(self) -> bool:
        """True if the spec names exactly one of a claim and a snapshot content."""
        return rules.has_one_source(self.item)

    @property
    def needs_class(self) -> bool:
        """True unless the snapshot is pre-provisioned or a member of a group (SNC-011)."""
        return self.named_content is None and not objects.is_group_member(self.item)

    @property
    def computed_content(self) -> str:
        """The name of the content that is created for the snapshot (SNA-007)."""
        return objects.content_name(self.item)

    def source_driver(self) -> str:
        """Return the driver of the claim's volume."""
        return creating.source_driver(self)

    def is_given(self, content: Json) -> bool:
        """True if the content names a snapshot that exists in the storage system."""
        return objects.source_handle(content) is not None

    def is_made(self, content: Json) -> bool:
        """True if the content names a source volume."""
        return objects.volume_handle(content) is not None

    def begin(self) -> None:
        """Releases the source claim if the snapshot is ready (SNC-020 row 1)."""
        if objects.is_ready(self.item):
            self.release_claim()

    def complete_finalizers(self, content: JsonObject | None) -> None:
        """Checks the content and adds the finalizers that the snapshot already needs."""
        if content is not None:
            self.check_content(content)
        self.add_finalizers("add-finalizers", rules.missing_finalizers(self.item, content))

    def finish_binding(self, content: JsonObject) -> None:
        """Adds the finalizers and releases the claim of a ready snapshot.

        No finalizers are added to a member of a group, because its content does not have the
        computed name.
        """
        if not objects.is_group_member(self.item):
            self.complete_finalizers(content)
        self.begin()

    def find_or_make(self, content: JsonObject | None) -> JsonObject:
        """Return a member's content, else the existing content, else a new one."""
        if objects.is_group_member(self.item):
            found = self.find_content(objects.bound_content(self.item))
            if found is None:
                # The group's reconcile will create the content; the user needs no event (SNC-041).
                raise Refusal("", f"group snapshot member {self.key.object} has no content yet")
            return found
        if content is None:
            return creating.create_content(self)
        if objects.source_handle(content) is not None:
            message = f"Snapshot handle should not be set in content {self.key.object}"
            raise Refusal("SnapshotHandleSet", f"{message} for dynamic provisioning")
        return content

    def end(self) -> Outcome:
        """Makes the group the owner of a ready member."""
        if objects.is_ready(self.item) and groupnames.own(self):
            return done("owned by its group")
        return super().end()

    def owner_of(self, content: Json) -> str:
        """Return the name of the group that has the content's group handle."""
        return groupnames.owner_of(self, content)

    def told(self, operation: str, content: Json) -> None:
        """Records the duration of an operation that has succeeded."""
        measure.ended(self, _OPERATIONS[operation], content)

    def delete(self) -> Outcome:
        """Deletes the snapshot (section 2.6)."""
        return delete(self)

    def release_claim(self) -> None:
        """Releases the source claim; reports a failure and lets the reconcile continue."""
        try:
            claims.unprotect(self, objects.source_claim(self.item) or "")
        except RefusedError as error:
            self.event(
                "Warning",
                "ErrorPVCFinalizer",
                "Error check and remove PVC Finalizer for VolumeSnapshot",
            )
            trail.tell_refused(_log, error)

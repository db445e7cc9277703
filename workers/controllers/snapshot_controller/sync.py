"""One pass over one snapshot: class, finalizers, content, status (section 2.3 to 2.5).

Everything is read live; what a step writes is seen by the next one, so one pass takes a new
snapshot from nothing to bound. Later steps wait for the content's status, whose change wakes it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from workers.controllers.snapshot_controller import claims, creating, groupnames, measure
from workers.controllers.snapshot_controller import decide as rules
from workers.controllers.snapshot_controller.decide import Refusal
from workers.controllers.snapshot_controller.deletion import delete
from workers.controllers.snapshot_controller.work import AWAY, Busy, Gone, ObjectPass
from workers.engine.outcome import Outcome, done, wait
from workers.errors import ApiError, AttemptError
from workers.kube import paths
from workers.kube.errors import ConflictError
from workers.translate import snapshot_objects as objects
from workers.translate.fields import is_deleting
from workers.translate.snapshot_status import newly_created, newly_ready, snapshot_status

if TYPE_CHECKING:
    from workers.engine.context import Context
    from workers.kube.objects import JsonObject
    from workers.queue.keys import Key
    from workers.queue.leases import Lease

BOUND_FIELD = "boundVolumeSnapshotContentName"
CLASS_WORDS = "volumesnapshotclass.snapshot.storage.k8s.io"


def sync_snapshot(context: Context, key: Key, lease: Lease) -> Outcome:
    """One pass; SNC-002, SNC-020."""
    work = SnapshotPass(context, key, lease, paths.SNAPSHOTS)
    if not work.read():
        return done("gone")
    try:
        return delete(work) if is_deleting(work.item) else work.run()
    except Refusal as refusal:
        work.blame(refusal)
        return work.failed(refusal.reason)
    except Busy as busy:
        return busy.outcome()
    except Gone:
        return wait(0, "gone meanwhile")


class SnapshotPass(ObjectPass):
    """A live snapshot."""

    snapshot_class: JsonObject | None = None

    def run(self) -> Outcome:
        """Rows 1 and 3 to 6 of SNC-020, after the class (SNC-010, SNC-011)."""
        self.choose_class()
        if objects.is_ready(self.item):
            self.release_claim()
        if not rules.has_one_source(self.item):
            raise Refusal(
                "SnapshotValidationError",
                "Exactly one of PersistentVolumeClaimName and VolumeSnapshotContentName should be "
                "specified",
            )
        expected = rules.expected_content(self.item)
        content = self.find_content(expected)
        try:
            self.complete_finalizers(content)
        except Refusal as refusal:
            self.blame(refusal)
            words = f"Failed to check and update snapshot: {refusal.cause}"
            self.event("Warning", "SnapshotFinalizerError", words)
            return self.failed(refusal.reason)
        if rules.is_settled(self.item):
            bound = objects.bound_content(self.item)
            return self.check_binding(content if bound == expected else self.find_content(bound))
        content = self.bind(content)
        if not objects.is_group_member(self.item):  # a member's content has no computed name
            self.complete_finalizers(content)
        if objects.is_ready(self.item):
            self.release_claim()
            groupnames.own(self)
            return done("ready")
        return done("waits for its content")

    # Class.

    def choose_class(self) -> None:
        """Find the class, or write the default one's name into the snapshot; once (SNC-012)."""
        name = objects.class_name(self.item)
        if name is not None:
            self.snapshot_class = self.find(paths.SNAPSHOT_CLASSES, name)
            if self.snapshot_class is None:
                missing = objects.not_listed(CLASS_WORDS, name)
                message = f"Failed to get snapshot class with error {missing}"
                raise Refusal("GetSnapshotClassFailed", message, unsets_ready=False)
            return
        if not rules.needs_class(self.item):
            return
        try:
            driver = creating.source_driver(self)
        except AttemptError as error:
            raise rules.no_default(error.message) from error
        classes = self.context.kube.list(paths.SNAPSHOT_CLASSES)
        self.snapshot_class = dict(rules.default_class(classes, driver))
        chosen = objects.name_of(self.snapshot_class)
        try:
            self.write("choose-class", lambda _: {"spec": {"volumeSnapshotClassName": chosen}})
        except (*AWAY, ConflictError):
            raise
        except ApiError as error:  # the reference goes on without a class (SND-011)
            raise rules.no_default(error) from error

    # Finalizers.

    def complete_finalizers(self, content: JsonObject | None) -> None:
        """SNC-030; with the checks of the content that belong to it.

        Raises:
            Refusal: the content is not fit for this snapshot.
        """
        if content is not None:
            rules.check_content(self.item, content)
        self.add_finalizers("add-finalizers", rules.missing_finalizers(self.item, content))

    def release_claim(self) -> None:
        """SNC-020 row 1: a claim that could not be released does not stop the snapshot."""
        try:
            claims.unprotect(self)
        except AWAY:
            raise
        except ApiError:
            self.event(
                "Warning",
                "ErrorPVCFinalizer",
                "Error check and remove PVC Finalizer for VolumeSnapshot",
            )

    # A snapshot that is not ready.

    def bind(self, content: JsonObject | None) -> JsonObject:
        """Find, bind or create the content and copy its status (section 2.4); returns it."""
        if objects.source_content(self.item) is not None:
            if content is None:
                raise missing_content()
            content = self.bind_to(content)
        elif objects.is_group_member(self.item):
            content = self.find_content(objects.bound_content(self.item))
            if content is None:
                # Its group makes it; nothing to tell the user (SNC-041).
                raise Refusal("", f"group snapshot member {self.key.object} has no content yet")
        elif content is None:
            content = creating.create_content(self, self.snapshot_class)
        elif objects.source_handle(content) is not None:
            words = f"Snapshot handle should not be set in content {self.key.object}"
            raise Refusal("SnapshotHandleSet", f"{words} for dynamic provisioning")
        self.copy_status(content)
        return content

    def bind_to(self, content: JsonObject) -> JsonObject:
        """Make a pre-provisioned content ours; only while nobody else has it (SND-019)."""

        def patch(item: JsonObject) -> JsonObject | None:
            rules.check_content(self.item, item)
            if not rules.needs_binding(self.item, item):
                return None
            spec: JsonObject = {"volumeSnapshotRef": {"uid": objects.uid_of(self.item)}}
            name = objects.class_name(self.item)
            if name is not None:
                spec["volumeSnapshotClassName"] = name
            return {"spec": spec}

        try:
            bound, _ = self.write_to(paths.SNAPSHOT_CONTENTS, content, "bind-content", patch)
        except Gone:
            raise missing_content() from None
        except AWAY:
            raise
        except ApiError as error:
            words = f"Snapshot failed to bind VolumeSnapshotContent, {error}"
            raise Refusal("SnapshotBindFailed", words) from error
        return bound

    def copy_status(self, content: JsonObject) -> None:
        """Bring the content's status over, and tell of what is new (SNC-070, SNC-071)."""
        try:
            group = groupnames.owner_of(self, content)
            written = self.write_status(
                "write-status",
                lambda item: snapshot_status(
                    item, content, bound_field=BOUND_FIELD, group_name=group
                ),
            )
        except AWAY:
            raise
        except (ApiError, AttemptError) as error:
            words = f"Snapshot status update failed, {error}"
            raise Refusal("SnapshotStatusUpdateFailed", words, unsets_ready=False) from error
        if written is None:
            return
        key = self.key.object
        if newly_created(*written):
            words = f"Snapshot {key} was successfully created by the CSI driver."
            self.event("Normal", "SnapshotCreated", words)
            measure.ended(self, measure.CREATE, content)
        if newly_ready(*written):
            self.event("Normal", "SnapshotReady", f"Snapshot {key} is ready to use.")
            measure.ended(self, measure.CREATE_AND_READY, content)

    # A snapshot that is ready.

    def check_binding(self, content: JsonObject | None) -> Outcome:
        """SNC-055: a ready snapshot whose content is not its own starts anew."""
        if content is None:
            self.blame(missing_content())
            return wait(0, "content is missing")
        if not objects.refers_to(content, self.item):
            words = "VolumeSnapshotContent is not bound to the VolumeSnapshot correctly"
            self.blame(Refusal("SnapshotMisbound", words))
            return wait(0, "misbound")
        if groupnames.own(self):
            return done("owned by its group")
        return done("ready")


def missing_content() -> Refusal:
    """The named or bound content does not exist."""
    return Refusal("SnapshotContentMissing", "VolumeSnapshotContent is missing")

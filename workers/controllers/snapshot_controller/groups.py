"""One pass over one group snapshot: class, content, members, status (SNG-002)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from workers import constants as k
from workers.controllers.snapshot_controller import groupinput as inputs
from workers.controllers.snapshot_controller.claims import update_failed
from workers.controllers.snapshot_controller.decide import Refusal
from workers.controllers.snapshot_controller.groupdeletion import delete_group
from workers.controllers.snapshot_controller.members import create_members
from workers.controllers.snapshot_controller.work import AWAY, Busy, Gone, ObjectPass
from workers.engine.outcome import Outcome, done, wait
from workers.errors import ApiError, AttemptError, State
from workers.kube import paths
from workers.kube.errors import AlreadyExistsError, ConflictError
from workers.queue.locks import Lock, Mode
from workers.translate import snapshot_objects as objects
from workers.translate import snapshot_secrets
from workers.translate.fields import (
    is_deleting,
    optional_mapping,
    text,
    text_map,
    value_at,
)
from workers.translate.go_text import quote
from workers.translate.snapshot_secrets import SecretUse
from workers.translate.snapshot_status import newly_created, newly_ready, snapshot_status

if TYPE_CHECKING:
    from workers.engine.context import Context
    from workers.kube.objects import JsonObject
    from workers.queue.keys import Key
    from workers.queue.leases import Lease

BOUND_FIELD: Final = "boundVolumeGroupSnapshotContentName"
CLASS_WORDS: Final = "volumegroupsnapshotclass.groupsnapshot.storage.k8s.io"


def sync_group(context: Context, key: Key, lease: Lease) -> Outcome:
    """One pass."""
    work = GroupPass(context, key, lease, paths.GROUP_SNAPSHOTS)
    if not work.settings.groups:
        return done("group snapshots are switched off")
    if not work.read():
        return done("gone")
    try:
        return delete_group(work) if is_deleting(work.item) else work.run()
    except Refusal as refusal:
        work.blame(refusal)
        return work.failed(refusal.reason)
    except Busy as busy:
        return busy.outcome()
    except Gone:
        return wait(0, "gone meanwhile")


class GroupPass(ObjectPass):
    """A live group snapshot."""

    group_class: JsonObject | None = None

    def run(self) -> Outcome:
        """The steps of SNC-020 for a group."""
        self.choose_class()
        named = inputs.named_content(self.item)
        if (named is None) == (inputs.selector_of(self.item) is None):
            raise Refusal(
                "GroupSnapshotValidationError",
                "Exactly one of Selector and VolumeGroupSnapshotContentName should be specified",
            )
        expected = inputs.content_name(self.item) if named is None else named
        content = self.find(paths.GROUP_SNAPSHOT_CONTENTS, expected)
        try:
            self.complete_finalizers(content)
        except Refusal as refusal:
            self.blame(refusal)
            words = f"Failed to check and update group snapshot: {refusal.cause}"
            self.event("Warning", "GroupSnapshotFinalizerError", words)
            return self.failed(refusal.reason)
        bound = text(self.item, "status", BOUND_FIELD)
        if objects.is_ready(self.item) and bound:
            if bound != expected:
                content = self.find(paths.GROUP_SNAPSHOT_CONTENTS, bound)
            return self.check_binding(content)
        content = self.bind(content)
        self.complete_finalizers(content)
        return done("ready" if objects.is_ready(self.item) else "waits for its content")

    def choose_class(self) -> None:
        """Find the class, or write the default one's name into the group snapshot."""
        name = inputs.class_name(self.item)
        if name is not None:
            self.group_class = self.find(paths.GROUP_SNAPSHOT_CLASSES, name)
            if self.group_class is None:
                missing = objects.not_listed(CLASS_WORDS, name)
                message = f"failed to get group snapshot class with error {missing}"
                raise Refusal("GetGroupSnapshotClassFailed", message, unsets_ready=False)
            return
        if inputs.named_content(self.item) is not None:
            return
        try:
            driver = inputs.source_driver(self)
        except AttemptError as error:
            raise inputs.no_default(error.message) from error
        classes = self.context.kube.list(paths.GROUP_SNAPSHOT_CLASSES)
        self.group_class = dict(inputs.default_class(classes, driver))
        chosen = objects.name_of(self.group_class)
        try:
            self.write("choose-class", lambda _: {"spec": {"volumeGroupSnapshotClassName": chosen}})
        except (*AWAY, ConflictError):
            raise
        except ApiError as error:
            raise inputs.no_default(error) from error

    def complete_finalizers(self, content: JsonObject | None) -> None:
        """The bound finalizer, once the content is known.

        Raises:
            Refusal: the content is not fit for this group snapshot.
        """
        if content is None:
            return
        self.check_content(content)
        if text(self.item, "status", BOUND_FIELD):
            self.add_finalizers("add-finalizers", [k.FINALIZER_GROUP_BOUND])

    def check_content(self, content: JsonObject) -> None:
        """As for single snapshots.

        Raises:
            Refusal: `GroupSnapshotContentMismatch` or `GroupSnapshotContentMisbound`.
        """
        name, key = objects.name_of(content), self.key.object
        is_named = inputs.named_content(self.item) is not None
        handles = optional_mapping(content, "spec", "source", "groupSnapshotHandles")
        is_given = handles is not None
        if is_named and not is_given:
            raise Refusal(
                "GroupSnapshotContentMismatch",
                "VolumeGroupSnapshotContent is dynamically provisioned while expecting a "
                "pre-provisioned one",
                cause=f"group snapshot {key} expects a pre-provisioned VolumeGroupSnapshotContent "
                f"{name} but gets a dynamically provisioned one",
            )
        if not is_named and is_given:
            raise Refusal(
                "GroupSnapshotContentMismatch",
                f"VolumeGroupSnapshotContent {name} is pre-provisioned while expecting a "
                "dynamically provisioned one",
                cause=f"group snapshot {key} expects a dynamically provisioned "
                f"VolumeGroupSnapshotContent {name} but gets a pre-provisioned one",
            )
        if not inputs.refers_to(content, self.item, unbound_is_fine=is_named):
            raise Refusal(
                "GroupSnapshotContentMisbound",
                f"VolumeGroupSnapshotContent [{name}] is bound to a different group snapshot",
            )

    def bind(self, content: JsonObject | None) -> JsonObject:
        """Find, bind or create the content, make the members, copy the status."""
        if inputs.named_content(self.item) is not None:
            if content is None:
                raise missing_content()
            content = self.bind_to(content)
        elif content is None:
            content = self.create_content()
        else:
            create_members(self, content, self.group_class)
        self.copy_status(content)
        return content

    def bind_to(self, content: JsonObject) -> JsonObject:
        """Make a pre-provisioned group content ours."""

        def patch(item: JsonObject) -> JsonObject | None:
            self.check_content(item)
            name = inputs.class_name(self.item)
            is_bound = bool(text(item, "spec", "volumeGroupSnapshotRef", "uid"))
            if is_bound and (inputs.class_name(item) is not None or name is None):
                return None
            spec: JsonObject = {"volumeGroupSnapshotRef": {"uid": objects.uid_of(self.item)}}
            if name is not None:
                spec["volumeGroupSnapshotClassName"] = name
            return {"spec": spec}

        try:
            return self.write_to(paths.GROUP_SNAPSHOT_CONTENTS, content, "bind-content", patch)[0]
        except Gone:
            raise missing_content() from None
        except AWAY:
            raise
        except ApiError as error:
            words = f"GroupSnapshot failed to bind VolumeGroupSnapshotContent, {error}"
            raise Refusal("GroupSnapshotBindFailed", words) from error

    def copy_status(self, content: JsonObject) -> None:
        """Bring the content's status over, and tell of what is new."""
        try:
            written = self.write_status(
                "write-status",
                lambda item: snapshot_status(item, content, bound_field=BOUND_FIELD),
            )
        except AWAY:
            raise
        except ApiError as error:
            words = f"GroupSnapshot status update failed, {error}"
            raise Refusal("GroupSnapshotStatusUpdateFailed", words, unsets_ready=False) from error
        if written is None:
            return
        key = self.key.object
        if newly_created(*written):
            words = f"GroupSnapshot {key} was successfully created by the CSI driver."
            self.event("Normal", "GroupSnapshotCreated", words)
        if newly_ready(*written):
            self.event("Normal", "GroupSnapshotReady", f"GroupSnapshot {key} is ready to use.")

    def check_binding(self, content: JsonObject | None) -> Outcome:
        """A ready group snapshot whose content is not its own is ready no longer."""
        if content is None:
            self.blame(missing_content())
            return wait(0, "content is missing")
        if not inputs.refers_to(content, self.item):
            words = "VolumeGroupSnapshotContent is not bound to the VolumeGroupSnapshot correctly"
            self.blame(Refusal("GroupSnapshotMisbound", words))
            return wait(0, "misbound")
        return done("ready")

    def create_content(self) -> JsonObject:
        """POST the content of a dynamic group snapshot.

        Raises:
            Refusal: `GroupSnapshotContentCreationFailed`.
        """
        try:
            body = self.content_body()
            content = self.post(body)
        except AttemptError as error:
            words = f"failed to create group snapshot content with error {error.message}"
            raise Refusal("GroupSnapshotContentCreationFailed", words) from error
        words = f"Waiting for a group snapshot {self.key.object} to be created by the CSI driver."
        self.event("Normal", "CreatingGroupSnapshot", words)
        return content

    def content_body(self) -> JsonObject:
        """The content as it is created, with its finalizer from the start (SND-002).

        Raises:
            AttemptError: the claims, volumes or the class do not fit.
        """
        name = inputs.content_name(self.item)
        words = f"failed to get input parameters to create group snapshot {self.name}"
        if self.group_class is None:
            cause = f"failed to take group snapshot {self.name} without a group snapshot class"
            raise AttemptError(f"{words}: {quote(cause)}", State.NO_CHANGE)
        try:
            volumes = inputs.volumes_of(self)
            secret = snapshot_secrets.resolve(
                SecretUse.GROUP,
                text_map(self.group_class, "parameters"),
                name,
                name=objects.name_of(self.item),
                namespace=objects.namespace_of(self.item),
            )
        except AttemptError as error:
            raise AttemptError(f"{words}: {quote(error.message)}", State.NO_CHANGE) from error
        self.check_volumes(volumes, text(self.group_class, "driver"))
        self.acquire(*(Lock(objects.name_of(one), Mode.SHARED) for one in volumes))
        metadata: JsonObject = {"name": name, "finalizers": [k.FINALIZER_GROUP_CONTENT]}
        if secret is not None:
            metadata["annotations"] = {
                k.ANN_GROUP_SECRET_NAME: secret.name,
                k.ANN_GROUP_SECRET_NAMESPACE: secret.namespace,
            }
        return {
            "apiVersion": paths.GROUP_SNAPSHOT_CONTENTS.api_version,
            "kind": paths.GROUP_SNAPSHOT_CONTENTS.kind,
            "metadata": metadata,
            "spec": {
                "volumeGroupSnapshotRef": {
                    "apiVersion": self.resource.api_version,
                    "kind": self.resource.kind,
                    "namespace": objects.namespace_of(self.item),
                    "name": objects.name_of(self.item),
                    "uid": objects.uid_of(self.item),
                    "resourceVersion": text(self.item, "metadata", "resourceVersion"),
                },
                "source": {
                    "volumeHandles": [text(one, "spec", "csi", "volumeHandle") for one in volumes]
                },
                "volumeGroupSnapshotClassName": objects.name_of(self.group_class),
                "deletionPolicy": text(self.group_class, "deletionPolicy"),
                "driver": text(self.group_class, "driver"),
            },
        }

    def check_volumes(self, volumes: list[JsonObject], driver: str) -> None:
        """All of them are of the class' CSI driver.

        Raises:
            AttemptError: one is not; the event is sent.
        """
        key = self.key.object
        for volume in volumes:
            name = objects.name_of(volume)
            if value_at(volume, "spec", "csi") is None:
                words = f"Cannot snapshot a non-CSI volume: {name}"
                self.event("Warning", "CreateGroupSnapshotContentFailed", words)
                cause = f"cannot snapshot a non-CSI volume for group snapshot {key}: {name}"
                raise AttemptError(cause, State.NO_CHANGE)
            found = text(volume, "spec", "csi", "driver")
            if found != driver:
                words = (
                    f"Volume CSI driver ({found}) mismatch with VolumeGroupSnapshotClass "
                    f"({driver}) {key}: {name}"
                )
                self.event("Warning", "CreateGroupSnapshotContentFailed", words)
                raise update_failed(key, words)

    def post(self, body: JsonObject) -> JsonObject:
        """POST; a content that exists already must be ours."""
        self.reach("create-content")
        try:
            return self.context.effects.kube.create(paths.GROUP_SNAPSHOT_CONTENTS, body)
        except AlreadyExistsError:
            found = self.find(paths.GROUP_SNAPSHOT_CONTENTS, body["metadata"]["name"])
            if found is None:
                raise update_failed(self.key.object, "the content vanished") from None
            self.check_content(found)
            return found
        except AWAY:
            raise
        except ApiError as error:
            key = self.key.object
            words = "Error creating volume group snapshot content object for group snapshot"
            self.event("Warning", "CreateGroupSnapshotContentFailed", f"{words} {key}: {error}.")
            raise update_failed(key, error) from error


def missing_content() -> Refusal:
    """The named or bound content does not exist."""
    return Refusal("GroupSnapshotContentMissing", "VolumeGroupSnapshotContent is missing")

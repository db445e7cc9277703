"""Reconciles one group snapshot: the steps of the frame that only groups have (SNG-002)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from workers import constants as k
from workers.controllers.snapshot_controller import groupinput as inputs
from workers.controllers.snapshot_controller import vanishing
from workers.controllers.snapshot_controller.claims import update_failed
from workers.controllers.snapshot_controller.decide import Refusal
from workers.controllers.snapshot_controller.frame import BindingPass, Words
from workers.controllers.snapshot_controller.groupdeletion import delete_group
from workers.controllers.snapshot_controller.members import create_members
from workers.engine.outcome import Outcome, done
from workers.errors import AttemptError, State
from workers.kube import paths
from workers.kube.errors import AlreadyExistsError, RefusedError
from workers.queue.locks import Lock, Mode
from workers.translate import snapshot_objects as objects
from workers.translate import snapshot_secrets
from workers.translate.fields import (
    Json,
    optional_mapping,
    text,
    text_map,
    value_at,
)
from workers.translate.go_text import quote
from workers.translate.snapshot_secrets import SecretUse

if TYPE_CHECKING:
    from workers.engine.context import Context
    from workers.kube.objects import JsonObject
    from workers.queue.keys import Key
    from workers.queue.leases import Lease

WORDS: Final = Words(
    subject="GroupSnapshot",
    noun="group snapshot",
    contents=paths.GROUP_SNAPSHOT_CONTENTS,
    classes=paths.GROUP_SNAPSHOT_CLASSES,
    class_words="volumegroupsnapshotclass.groupsnapshot.storage.k8s.io",
    bound_field="boundVolumeGroupSnapshotContentName",
    class_field="volumeGroupSnapshotClassName",
    ref_field="volumeGroupSnapshotRef",
    default_annotation=k.ANN_DEFAULT_GROUP_CLASS,
    being_deleted=k.ANN_GROUP_BEING_DELETED,
    no_class="failed to get group snapshot class",
    one_source="Exactly one of Selector and VolumeGroupSnapshotContentName should be specified",
)


def sync_group(context: Context, key: Key, lease: Lease) -> Outcome:
    """Reconciles one group snapshot."""
    work = GroupPass(context, key, lease, paths.GROUP_SNAPSHOTS)
    if not work.settings.groups:
        return done("group snapshots are switched off")
    return vanishing.run(work)


class GroupPass(BindingPass):
    """One reconcile of a group snapshot."""

    words = WORDS

    @property
    def named_content(self) -> str | None:
        """The name of the content in the group's spec."""
        return inputs.named_content(self.item)

    @property
    def has_one_source(self) -> bool:
        """True if the spec has exactly one of a selector for claims and a snapshot content."""
        return (self.named_content is None) != (inputs.selector_of(self.item) is None)

    @property
    def needs_class(self) -> bool:
        """True unless the group is pre-provisioned."""
        return self.named_content is None

    @property
    def computed_content(self) -> str:
        """The name of the content that is created for the group (SNA-007)."""
        return inputs.content_name(self.item)

    def source_driver(self) -> str:
        """Return the driver of the group's first volume."""
        return inputs.source_driver(self)

    def is_given(self, content: Json) -> bool:
        """True if the content names snapshots that exist in the storage system."""
        return optional_mapping(content, "spec", "source", "groupSnapshotHandles") is not None

    def is_made(self, content: Json) -> bool:
        """True if the content does not name snapshots that exist in the storage system."""
        return not self.is_given(content)

    def complete_finalizers(self, content: JsonObject | None) -> None:
        """Checks the content; adds the bound finalizer once the status names the content."""
        if content is None:
            return
        self.check_content(content)
        if text(self.item, "status", self.words.bound_field):
            self.add_finalizers("add-finalizers", [k.FINALIZER_GROUP_BOUND])

    def find_or_make(self, content: JsonObject | None) -> JsonObject:
        """Creates the content or, if the content exists, the members that the content lists."""
        if content is None:
            return self.create_content()
        create_members(self, content, self.chosen_class)
        return content

    def delete(self) -> Outcome:
        """Deletes the group snapshot (SNG-004)."""
        return delete_group(self)

    def create_content(self) -> JsonObject:
        """Creates the content of a dynamic group snapshot.

        Raises:
            Refusal: `GroupSnapshotContentCreationFailed`.
        """
        try:
            body = self.content_body()
            # If the finalizer were added only after the content is created, a group that is deleted
            # in between would leave its content behind (SND-042).
            self.add_finalizers("add-finalizers", [k.FINALIZER_GROUP_BOUND])
            content = self.post(body)
        except AttemptError as error:
            words = f"failed to create group snapshot content with error {error.message}"
            raise Refusal("GroupSnapshotContentCreationFailed", words) from error
        words = f"Waiting for a group snapshot {self.key.object} to be created by the CSI driver."
        self.event("Normal", "CreatingGroupSnapshot", words)
        return content

    def content_body(self) -> JsonObject:
        """Return the content to create; it has its finalizer from the start (SND-002).

        Raises:
            AttemptError: a claim, a volume or the class is missing or does not match.
        """
        name = inputs.content_name(self.item)
        words = f"failed to get input parameters to create group snapshot {self.name}"
        if self.chosen_class is None:
            cause = f"failed to take group snapshot {self.name} without a group snapshot class"
            raise AttemptError(f"{words}: {quote(cause)}", State.NO_CHANGE)
        try:
            volumes = inputs.volumes_of(self)
            secret = snapshot_secrets.resolve(
                SecretUse.GROUP,
                text_map(self.chosen_class, "parameters"),
                name,
                name=objects.name_of(self.item),
                namespace=objects.namespace_of(self.item),
            )
        except AttemptError as error:
            raise AttemptError(f"{words}: {quote(error.message)}", State.NO_CHANGE) from error
        self.check_volumes(volumes, text(self.chosen_class, "driver"))
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
                "volumeGroupSnapshotClassName": objects.name_of(self.chosen_class),
                "deletionPolicy": text(self.chosen_class, "deletionPolicy"),
                "driver": text(self.chosen_class, "driver"),
            },
        }

    def check_volumes(self, volumes: list[JsonObject], driver: str) -> None:
        """Checks that all volumes belong to the class's CSI driver.

        Raises:
            AttemptError: a volume belongs to a different driver; an event has been recorded.
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
        """Creates the content; an existing content must belong to the group."""
        self.reach("create-content")
        try:
            return self.context.effects.kube.create(paths.GROUP_SNAPSHOT_CONTENTS, body)
        except AlreadyExistsError:
            found = self.find(paths.GROUP_SNAPSHOT_CONTENTS, body["metadata"]["name"])
            if found is None:
                raise update_failed(self.key.object, "the content vanished") from None
            self.check_content(found)
            return found
        except RefusedError as error:
            key = self.key.object
            words = "Error creating volume group snapshot content object for group snapshot"
            self.event("Warning", "CreateGroupSnapshotContentFailed", f"{words} {key}: {error}.")
            raise update_failed(key, error) from error

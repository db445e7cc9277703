"""Reads fields of VolumeSnapshots, their contents and their classes.

Objects are JSON as the API server sent it; nothing here changes an object. Both snapshot
controllers use this module, so that every rule of the protocol between them (SNA-005, SNA-006) is
written only once.
Source: external-snapshotter v8.6, pkg/utils/util.go.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Final

from workers.constants import (
    ANN_BEING_CREATED,
    ANN_BEING_DELETED,
    FINALIZER_SNAPSHOT_AS_SOURCE,
    FINALIZER_SNAPSHOT_BOUND,
    FINALIZER_SNAPSHOT_IN_GROUP,
    GROUP_GROUP_SNAPSHOT,
    LABEL_SNAPSHOT_NODE,
)
from workers.translate.fields import (
    Json,
    annotations_of,
    flag,
    has_finalizer,
    is_deleting,
    object_list,
    optional_mapping,
    optional_text,
    selector_at,
    text,
    text_list,
    text_map,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

POLICY_DELETE: Final = "Delete"
CAPABILITY_TOPOLOGY: Final = "SNAPSHOT_ACCESSIBILITY_CONSTRAINTS"
NODE_AFFINITY_DROPPED: Final = "the API server dropped the field nodeAffinity of the content"
"""The note in a content's history if its CRD does not have the field (SNS-125)."""

_DELETION_FINALIZERS: Final = (
    FINALIZER_SNAPSHOT_AS_SOURCE,
    FINALIZER_SNAPSHOT_BOUND,
    FINALIZER_SNAPSHOT_IN_GROUP,
)


def full_name(obj: Json) -> str:
    """Return `namespace/name`, the form used in messages."""
    return f"{text(obj, 'metadata', 'namespace')}/{text(obj, 'metadata', 'name')}"


def uid_of(obj: Json) -> str:
    """Return the object's UID."""
    return text(obj, "metadata", "uid")


def name_of(obj: Json) -> str:
    """Return the object's name."""
    return text(obj, "metadata", "name")


def namespace_of(obj: Json) -> str:
    """Return the object's namespace; "" for a cluster-scoped object."""
    return text(obj, "metadata", "namespace")


# Snapshots.


def source_claim(snapshot: Json) -> str | None:
    """Return the claim that a dynamic snapshot is taken from; None for a pre-provisioned one."""
    return optional_text(snapshot, "spec", "source", "persistentVolumeClaimName")


def source_content(snapshot: Json) -> str | None:
    """Return the content that a pre-provisioned snapshot names; None for a dynamic snapshot."""
    return optional_text(snapshot, "spec", "source", "volumeSnapshotContentName")


def class_name(obj: Json) -> str | None:
    """Return the class that a snapshot or a snapshot content names; None if it names none."""
    return optional_text(obj, "spec", "volumeSnapshotClassName")


def default_classes(classes: Iterable[Json], annotation: str, driver: str) -> list[Json]:
    """Return the classes that are marked as default; with a driver, only those of that driver."""
    return [
        one
        for one in classes
        if annotations_of(one).get(annotation) == "true"
        and (not driver or text(one, "driver") == driver)
    ]


def node_of(content: Json) -> str | None:
    """Return the only node whose sidecar may handle this content; None if any may (SNS-001)."""
    return text_map(content, "metadata", "labels").get(LABEL_SNAPSHOT_NODE)


def node_affinity(content: Json) -> list[Json]:
    """Return the topology of a snapshot content; [] if it has none."""
    return selector_at(content, "spec", "nodeAffinity")


def bound_content(snapshot: Json) -> str:
    """Return the content that the status names, or "" if it names none."""
    return text(snapshot, "status", "boundVolumeSnapshotContentName")


def is_ready(obj: Json) -> bool:
    """Return True if the status of a snapshot or a content reports that it is ready to use."""
    return flag(obj, "status", "readyToUse")


def is_created(snapshot: Json) -> bool:
    """Return True if the snapshot has been taken, that is, if its status has a creation time."""
    return optional_text(snapshot, "status", "creationTime") is not None


def content_name(snapshot: Json) -> str:
    """Return the name of the content that is created for a dynamic snapshot (SNA-007)."""
    return f"snapcontent-{uid_of(snapshot)}"


def owning_groups(snapshot: Json) -> list[Json]:
    """Return the owner references to VolumeGroupSnapshots."""
    return [
        owner
        for owner in object_list(snapshot, "metadata", "ownerReferences")
        if text(owner, "kind") == "VolumeGroupSnapshot"
        and text(owner, "apiVersion").partition("/")[0] == GROUP_GROUP_SNAPSHOT
    ]


def is_group_member(snapshot: Json) -> bool:
    """Return True if a VolumeGroupSnapshot owns the snapshot (SNC-011)."""
    return bool(owning_groups(snapshot))


def group_name(snapshot: Json) -> str | None:
    """Return the name of the group snapshot in the snapshot's status; None if there is none."""
    return optional_text(snapshot, "status", "volumeGroupSnapshotName")


def holding_group(snapshot: Json) -> str:
    """Return the name of the group that a member belongs to; "" if it belongs to none.

    The name is taken from the status, or from the owner if the member has no status yet (SND-022).
    """
    names = (text(owner, "name") for owner in owning_groups(snapshot))
    return group_name(snapshot) or next(names, "")


def is_member_of(snapshot: Json, group: Json) -> bool:
    """Return True if a snapshot that names the group belongs to it, not to an older group.

    A member that no group owns yet (SNC-055) is identified by the group's name alone.
    """
    owners = owning_groups(snapshot)
    return not owners or any(text(owner, "uid") == uid_of(group) for owner in owners)


def is_deletion_candidate(snapshot: Json) -> bool:
    """Return True if a snapshot is being deleted and has one of our finalizers.

    The in-group finalizer alone is enough. The Go controller never removes it in that case
    (SND-022).
    """
    return is_deleting(snapshot) and any(
        has_finalizer(snapshot, name) for name in _DELETION_FINALIZERS
    )


def error_message(obj: Json) -> str:
    """Return the message of the stored error, or "" if there is none (SND-017)."""
    return text(obj, "status", "error", "message")


# Contents.


def volume_handle(content: Json) -> str | None:
    """Return the handle of the volume that a content was taken from; None if there is none."""
    return optional_text(content, "spec", "source", "volumeHandle")


def source_handle(content: Json) -> str | None:
    """Return the snapshot handle that a pre-provisioned content names; None if it names none."""
    return optional_text(content, "spec", "source", "snapshotHandle")


def status_handle(content: Json) -> str | None:
    """Return the snapshot handle in the status; None if it is absent or empty.

    Earlier releases and csi-snapshotter wrote an empty handle for a response without an id.
    """
    return optional_text(content, "status", "snapshotHandle") or None


def named_handles(content: Json) -> set[str]:
    """Return the handles of all snapshots and groups named in a content or a group content."""
    given = optional_mapping(content, "spec", "source", "groupSnapshotHandles") or {}
    members = object_list(content, "status", "volumeSnapshotInfoList")
    named = {
        text(content, "spec", "source", "snapshotHandle"),
        text(content, "status", "snapshotHandle"),
        text(content, "status", "volumeGroupSnapshotHandle"),
        text(given, "volumeGroupSnapshotHandle"),
        *text_list(given, "volumeSnapshotHandles"),
        *(text(one, "snapshotHandle") for one in members),
    }
    return named - {""}


def group_handle(content: Json) -> str | None:
    """Return the group handle in the status of a member's content; None if there is none."""
    return optional_text(content, "status", "volumeGroupSnapshotHandle")


def has_status(content: Json) -> bool:
    """Return True if the object has a status, even an empty one."""
    return optional_mapping(content, "status") is not None


def ref_uid(content: Json) -> str:
    """Return the UID of the snapshot that the content is bound to; "" while it is unbound."""
    return text(content, "spec", "volumeSnapshotRef", "uid")


def is_deleted_with_snapshot(content: Json) -> bool:
    """Return True if the deletion policy is `Delete`."""
    return text(content, "spec", "deletionPolicy") == POLICY_DELETE


def is_being_created(content: Json) -> bool:
    """Return True if the annotation for a running CreateSnapshot is set, to any value (SNA-006)."""
    return ANN_BEING_CREATED in annotations_of(content)


def is_being_deleted(content: Json) -> bool:
    """Return True if the annotation for a requested deletion is set, to any value (SNA-006)."""
    return ANN_BEING_DELETED in annotations_of(content)


# Functions for the names of group members.


def member_digest(group_uid: str, handle: str) -> str:
    """Return the last part of the names of a member's snapshot and content (SNA-007)."""
    return hashlib.sha256(f"{group_uid}{handle}".encode()).hexdigest()


def member_content_name(digest: str) -> str:
    """Return the name of a member's content (SNA-007)."""
    return f"snapcontent-{digest}"


def not_listed(resource: str, name: str) -> str:
    """Return the message of client-go's lister for a missing object; `resource` is singular."""
    return f'{resource} "{name}" not found'

"""What do snapshot objects say about themselves and each other?

Questions over VolumeSnapshots (VS), their contents (VSC) and classes as the API server sent them;
nothing here changes an object. Both snapshot controllers ask them, so that a rule of the public
protocol between the two halves (SNA-005, SNA-006) stands once.
Source: external-snapshotter v8.6, pkg/utils/util.go.
"""

from __future__ import annotations

import hashlib
from typing import Final

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
    text,
    text_list,
    text_map,
)

POLICY_DELETE: Final = "Delete"

_DELETION_FINALIZERS: Final = (
    FINALIZER_SNAPSHOT_AS_SOURCE,
    FINALIZER_SNAPSHOT_BOUND,
    FINALIZER_SNAPSHOT_IN_GROUP,
)


def full_name(obj: Json) -> str:
    """Return `namespace/name`, as messages write it."""
    return f"{text(obj, 'metadata', 'namespace')}/{text(obj, 'metadata', 'name')}"


def uid_of(obj: Json) -> str:
    """Return the UID."""
    return text(obj, "metadata", "uid")


def name_of(obj: Json) -> str:
    """Return the name."""
    return text(obj, "metadata", "name")


def namespace_of(obj: Json) -> str:
    """Return the namespace, empty for cluster-scoped objects."""
    return text(obj, "metadata", "namespace")


# Snapshots.


def source_claim(snapshot: Json) -> str | None:
    """Return the claim a dynamic snapshot is taken from, None for a pre-provisioned one."""
    return optional_text(snapshot, "spec", "source", "persistentVolumeClaimName")


def source_content(snapshot: Json) -> str | None:
    """Return the content a pre-provisioned snapshot names, None for a dynamic one."""
    return optional_text(snapshot, "spec", "source", "volumeSnapshotContentName")


def class_name(obj: Json) -> str | None:
    """Return the class that a snapshot or a content names."""
    return optional_text(obj, "spec", "volumeSnapshotClassName")


def node_of(content: Json) -> str | None:
    """Return the node whose sidecar alone may take a content, None for none (SNS-001)."""
    return text_map(content, "metadata", "labels").get(LABEL_SNAPSHOT_NODE)


def bound_content(snapshot: Json) -> str:
    """Return the content the status names, empty when it names none."""
    return text(snapshot, "status", "boundVolumeSnapshotContentName")


def is_ready(obj: Json) -> bool:
    """Tell whether the status of a snapshot or content says ready."""
    return flag(obj, "status", "readyToUse")


def is_created(snapshot: Json) -> bool:
    """Tell whether the snapshot was cut: its status has a creation time."""
    return optional_text(snapshot, "status", "creationTime") is not None


def content_name(snapshot: Json) -> str:
    """Return the name of the content that is made for a dynamic snapshot (SNA-007)."""
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
    """Tell whether a VolumeGroupSnapshot owns the snapshot (SNC-011)."""
    return bool(owning_groups(snapshot))


def group_name(snapshot: Json) -> str | None:
    """Return the group snapshot the status names."""
    return optional_text(snapshot, "status", "volumeGroupSnapshotName")


def holding_group(snapshot: Json) -> str:
    """Return the group that a member goes with, empty for none.

    By the status, and by the owner for a member that has no status yet (SND-022).
    """
    names = (text(owner, "name") for owner in owning_groups(snapshot))
    return group_name(snapshot) or next(names, "")


def is_member_of(snapshot: Json, group: Json) -> bool:
    """Tell whether a member that names the group is of that one, not of an earlier one.

    A member that no group owns yet (SNC-055) has nothing but the name.
    """
    owners = owning_groups(snapshot)
    return not owners or any(text(owner, "uid") == uid_of(group) for owner in owners)


def is_deletion_candidate(snapshot: Json) -> bool:
    """Tell whether there is something to do for a snapshot under deletion.

    The in-group finalizer alone counts too: the reference leaves such a member for ever (SND-022).
    """
    return is_deleting(snapshot) and any(
        has_finalizer(snapshot, name) for name in _DELETION_FINALIZERS
    )


def error_message(obj: Json) -> str:
    """Return the stored error, empty without one; an error without a message is fine (SND-017)."""
    return text(obj, "status", "error", "message")


# Contents.


def volume_handle(content: Json) -> str | None:
    """Return the source volume of a dynamic content."""
    return optional_text(content, "spec", "source", "volumeHandle")


def source_handle(content: Json) -> str | None:
    """Return the snapshot handle an administrator gave a pre-provisioned content."""
    return optional_text(content, "spec", "source", "snapshotHandle")


def status_handle(content: Json) -> str | None:
    """Return the snapshot handle in the status, None for an empty one.

    Earlier releases and the sidecar wrote an empty one for an answer without an id.
    """
    return optional_text(content, "status", "snapshotHandle") or None


def named_handles(content: Json) -> set[str]:
    """The handles of all snapshots and groups that a content of either kind names."""
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
    """Return the group handle in the status of a member's content."""
    return optional_text(content, "status", "volumeGroupSnapshotHandle")


def has_status(content: Json) -> bool:
    """Tell whether the object has a status at all; an empty one counts."""
    return optional_mapping(content, "status") is not None


def ref_uid(content: Json) -> str:
    """Return the UID of the snapshot the content is bound to, empty while unbound."""
    return text(content, "spec", "volumeSnapshotRef", "uid")


def is_deleted_with_snapshot(content: Json) -> bool:
    """Tell whether the deletion policy is `Delete`."""
    return text(content, "spec", "deletionPolicy") == POLICY_DELETE


def is_being_created(content: Json) -> bool:
    """Tell whether a CreateSnapshot may be in flight; presence counts, not the value (SNA-006)."""
    return ANN_BEING_CREATED in annotations_of(content)


def is_being_deleted(content: Json) -> bool:
    """Tell whether the snapshot's side asked for the deletion; presence counts (SNA-006)."""
    return ANN_BEING_DELETED in annotations_of(content)


# Names of group members.


def member_digest(group_uid: str, handle: str) -> str:
    """Return what the names of a member's snapshot and content end with (SNA-007)."""
    return hashlib.sha256(f"{group_uid}{handle}".encode()).hexdigest()


def member_content_name(digest: str) -> str:
    """Return the name of a member's content (SNA-007)."""
    return f"snapcontent-{digest}"


def not_listed(resource: str, name: str) -> str:
    """Return client-go's words for an object its lister lacks; `resource` is in the singular."""
    return f'{resource} "{name}" not found'

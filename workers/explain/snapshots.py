"""Why does a snapshot or its content wait? From the objects alone, the first cause that holds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from workers.constants import FINALIZER_CONTENT
from workers.explain.facts import Cause
from workers.translate import snapshot_objects as objects
from workers.translate.fields import has_finalizer, is_deleting, text
from workers.translate.references import is_being_restored

if TYPE_CHECKING:
    from workers.translate.fields import Json


def snapshot_cause(snapshot: Json, content: Json | None, group: Json | None = None) -> Cause:
    """What a VolumeSnapshot waits for.

    Args:
        snapshot: read live.
        content: the content it is bound to, or will be; None if there is none.
        group: the group snapshot of the name that a member has; None if there is none.
    """
    error = objects.error_message(snapshot)
    if is_deleting(snapshot):
        return _deletion_cause(snapshot, content, group)
    if objects.is_ready(snapshot):
        return Cause("ready", "It is ready to use.", is_problem=False)
    if error:
        return Cause("failed", f"It could not be taken: {error}.")
    if content is None:
        return Cause("no-content", "The snapshot controller has not made its content yet.")
    found = content_cause(content)
    name = objects.name_of(content)
    return Cause(found.code, f"It waits for its content {name}: {found.text}", found.advice)


def _deletion_cause(snapshot: Json, content: Json | None, group: Json | None) -> Cause:
    if is_being_restored(snapshot):
        return Cause(
            "being-restored",
            "A volume is being made from it; it goes afterwards.",
            "Look at the claims that restore from it: csi-fleet explain pvc NAMESPACE/NAME.",
        )
    if group is not None and objects.is_member_of(snapshot, group):
        name = objects.name_of(group)
        return Cause(
            "in-group",
            f"It belongs to the group snapshot {name} and goes with it.",
            f"kubectl delete volumegroupsnapshot {name}",
        )
    if content is not None and objects.is_deleted_with_snapshot(content):
        found = content_cause(content)
        name = objects.name_of(content)
        return Cause(
            "waits-for-content",
            f"Its content {name} has to go first: {found.text}",
            f"csi-fleet explain content {name}",
        )
    return Cause("deleting", "It is being deleted.", is_problem=False)


def content_cause(content: Json) -> Cause:
    """What a VolumeSnapshotContent waits for."""
    driver, error = text(content, "spec", "driver"), objects.error_message(content)
    if is_deleting(content):
        if objects.is_being_created(content):
            return Cause(
                "being-created",
                f"Driver {driver} may still be making the snapshot; it is deleted when that ends.",
            )
        if not objects.is_being_deleted(content) and objects.ref_uid(content):
            key = "/".join(text(content, "spec", "volumeSnapshotRef", p) for p in _REF)
            return Cause(
                "deleted-by-hand",
                "It was deleted, but its VolumeSnapshot was not.",
                f"Delete VolumeSnapshot {key}, or leave both.",
            )
        if error:
            return Cause("delete-failed", f"Driver {driver} does not delete it: {error}.")
        return Cause("deleting", f"Driver {driver} is asked to delete it.", is_problem=False)
    if objects.is_ready(content):
        return Cause("ready", "It is ready to use.", is_problem=False)
    if error:
        return Cause("failed", f"Driver {driver} has not made it: {error}.")
    if not has_finalizer(content, FINALIZER_CONTENT):
        return Cause("no-finalizer", "The snapshot controller has not taken it in yet.")
    if objects.status_handle(content) is not None:
        return Cause("uploading", f"Driver {driver} made it, but it is not ready yet.")
    return Cause("not-made", f"Driver {driver} has not made it yet.")


_REF = ("namespace", "name")

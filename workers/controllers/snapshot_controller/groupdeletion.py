"""A group snapshot that is to go: its content, its members, then itself (SNG-004)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from workers import constants as k
from workers.controllers.snapshot_controller import groupinput as inputs
from workers.controllers.snapshot_controller.work import AWAY, Gone, ObjectPass
from workers.engine.outcome import Outcome, done
from workers.errors import ApiError
from workers.kube import paths
from workers.kube.errors import ConflictError, NotFoundError
from workers.translate import snapshot_objects as objects
from workers.translate.fields import annotations_of, has_finalizer, object_list, text, text_list
from workers.translate.references import is_being_restored, restores_from

if TYPE_CHECKING:
    from workers.kube.objects import JsonObject

_BOUND_FIELD = "boundVolumeGroupSnapshotContentName"


def delete_group(work: ObjectPass) -> Outcome:
    """One pass over a group snapshot with a deletionTimestamp."""
    if not has_finalizer(work.item, k.FINALIZER_GROUP_BOUND):
        return done("nothing to do")
    content = _own_content(work)
    members = _members(work)
    if (pending := _restored_member(work, members)) is not None:
        words = (
            f"Snapshot {work.namespace}/{pending} belonging to VolumeGroupSnapshot "
            f"{work.key.object} is being used to restore a PVC"
        )
        work.event("Warning", "SnapshotDeletePending", words)
        return work.failed("is being restored")
    waits = False
    if content is not None:
        _mark_deleted(work, content)
        waits = objects.is_deleted_with_snapshot(content)
        if waits and not _delete_content(work, content):
            return work.failed("content not deleted")
    if not _delete_members(work, members):
        return work.failed("members not deleted")
    if waits:
        return done("waits for its content")

    def patch(item: JsonObject) -> JsonObject | None:
        known = text_list(item, "metadata", "finalizers")
        kept = [name for name in known if name != k.FINALIZER_GROUP_BOUND]
        return None if kept == known else {"metadata": {"finalizers": kept}}

    try:
        work.write("remove-finalizers", patch)
    except Gone:
        return done("gone")
    return done("released")


def _own_content(work: ObjectPass) -> JsonObject | None:
    """The content that points back, found by its computed name too (SND-023)."""
    name = text(work.item, "status", _BOUND_FIELD)
    if not name and inputs.named_content(work.item) is None:
        name = inputs.content_name(work.item)
    content = work.find(paths.GROUP_SNAPSHOT_CONTENTS, name)
    return content if content is not None and inputs.refers_to(content, work.item) else None


def _members(work: ObjectPass) -> list[JsonObject]:
    uid = objects.uid_of(work.item)
    return [
        one
        for one in work.context.kube.list_snapshots(work.namespace)
        if any(
            text(owner, "uid") == uid for owner in object_list(one, "metadata", "ownerReferences")
        )
    ]


def _restored_member(work: ObjectPass, members: list[JsonObject]) -> str | None:
    """The first member that a volume is made from."""
    if not members:
        return None
    claims = list(work.context.kube.list_claims(work.namespace))
    for member in members:
        name = objects.name_of(member)
        if is_being_restored(member) or any(
            restores_from(claim, work.namespace, name) for claim in claims
        ):
            return name
    return None


def _mark_deleted(work: ObjectPass, content: JsonObject) -> None:
    def patch(item: JsonObject) -> JsonObject | None:
        if k.ANN_GROUP_BEING_DELETED in annotations_of(item):
            return None
        return {"metadata": {"annotations": {k.ANN_GROUP_BEING_DELETED: "yes"}}}

    try:
        work.write_to(paths.GROUP_SNAPSHOT_CONTENTS, content, "mark-deleted", patch)
    except Gone:
        return


def _delete_content(work: ObjectPass, content: JsonObject) -> bool:
    if text(content, "metadata", "deletionTimestamp"):
        return True
    work.reach("delete-content")
    try:
        work.context.effects.kube.delete(
            paths.GROUP_SNAPSHOT_CONTENTS, objects.name_of(content), uid=objects.uid_of(content)
        )
    except (NotFoundError, ConflictError):
        return True
    except AWAY:
        raise
    except ApiError:
        words = "Failed to delete group snapshot content API object"
        work.event("Warning", "GroupSnapshotContentObjectDeleteError", words)
        return False
    return True


def _delete_members(work: ObjectPass, members: list[JsonObject]) -> bool:
    for member in members:
        if text(member, "metadata", "deletionTimestamp"):
            continue
        name = objects.name_of(member)
        work.reach("delete-member")
        try:
            work.context.effects.kube.delete(
                paths.SNAPSHOTS, name, namespace=work.namespace, uid=objects.uid_of(member)
            )
        except (NotFoundError, ConflictError):
            continue
        except AWAY:
            raise
        except ApiError as error:
            words = (
                f"failed to delete snapshot API object {work.namespace}/{name} part of group "
                f"snapshot {work.key.object}: {error}"
            )
            work.event("Warning", "SnapshotDeleteError", words)
            return False
    return True

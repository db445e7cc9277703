"""Deletes a group snapshot's content and members, then removes its finalizer (SNG-004)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from workers import constants as k
from workers.controllers.snapshot_controller.deletion import (
    delete_content,
    hold,
    mark_deleted,
    own_content,
    restored_of,
    was_gone,
)
from workers.controllers.snapshot_controller.sync import WORDS as MEMBER_WORDS
from workers.engine.live import Gone
from workers.engine.outcome import Outcome, done, retry
from workers.kube import paths
from workers.kube.errors import RefusedError
from workers.translate import snapshot_objects as objects
from workers.translate.fields import (
    Json,
    annotations_of,
    has_finalizer,
    object_list,
    text,
    text_list,
)

if TYPE_CHECKING:
    from workers.controllers.snapshot_controller.frame import BindingPass
    from workers.controllers.snapshot_controller.work import ObjectPass
    from workers.kube.objects import JsonObject


def delete_group(work: BindingPass) -> Outcome:
    """Reconciles a group snapshot with a deletionTimestamp."""
    if not has_finalizer(work.item, k.FINALIZER_GROUP_BOUND):
        return done("nothing to do")
    content = own_content(work)
    members = _members(work)
    if (pending := restored_of(work, members)) is not None:
        words = (
            f"Snapshot {work.namespace}/{pending.name} belonging to VolumeGroupSnapshot "
            f"{work.key.object} is being used to restore a PVC"
        )
        return hold(work, words, pending.refusal)
    waits = False
    if content is not None:
        # This must happen before the group's content is deleted, because that content holds the
        # list of members.
        if not _delete_loose_contents(work, content, members):
            return retry("content of a member not deleted")
        mark_deleted(work, work.words.contents, content, work.words.being_deleted)
        waits = objects.is_deleted_with_snapshot(content)
        if waits and not delete_content(work, content):
            return retry("content not deleted")
    if not _delete_members(work, members):
        return retry("members not deleted")
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


def _members(work: ObjectPass) -> list[JsonObject]:
    uid = objects.uid_of(work.item)
    return [
        one
        for one in work.context.kube.list_snapshots(work.namespace)
        if any(
            text(owner, "uid") == uid for owner in object_list(one, "metadata", "ownerReferences")
        )
    ]


def _delete_loose_contents(
    work: BindingPass, group_content: JsonObject, members: list[JsonObject]
) -> bool:
    """Deletes members' contents that have no snapshot; returns False if one is kept (SND-043)."""
    linked = {objects.bound_content(one) for one in members}
    for entry in object_list(group_content, "status", "volumeSnapshotInfoList"):
        digest = objects.member_digest(objects.uid_of(work.item), text(entry, "volumeHandle"))
        name = objects.member_content_name(digest)
        content = None if name in linked else work.find_content(name)
        if content is None or not _is_of_member(content, f"snapshot-{digest}", group_content):
            continue
        mark_deleted(work, MEMBER_WORDS.contents, content, MEMBER_WORDS.being_deleted)
        if objects.is_deleted_with_snapshot(content) and not delete_content(
            work, content, MEMBER_WORDS
        ):
            return False
    return True


def _is_of_member(content: Json, snapshot: str, group_content: Json) -> bool:
    handle = text(group_content, "status", "volumeGroupSnapshotHandle")
    namespace = text(group_content, "spec", "volumeGroupSnapshotRef", "namespace")
    ref = ("spec", "volumeSnapshotRef")
    return (
        text(content, "spec", "driver") == text(group_content, "spec", "driver")
        and annotations_of(content).get(k.ANN_GROUP_HANDLE) == handle
        and text(content, *ref, "namespace") == namespace
        and text(content, *ref, "name") == snapshot
    )


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
        except RefusedError as error:
            if was_gone(error, name):
                continue
            words = (
                f"failed to delete snapshot API object {work.namespace}/{name} part of group "
                f"snapshot {work.key.object}: {error}"
            )
            work.event("Warning", "SnapshotDeleteError", words)
            return False
    return True

"""Finds the group that a single snapshot belongs to (SNG-003, SNG-005).

If the group CRDs are missing or the feature is disabled, the group counts as not found;
snapshot-controller fails in that case (SND-039).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from workers.constants import GROUP_GROUP_SNAPSHOT
from workers.errors import AttemptError, State
from workers.kube import paths
from workers.kube.errors import NotFoundError
from workers.translate import snapshot_objects as objects
from workers.translate.fields import Json, text

if TYPE_CHECKING:
    from workers.controllers.snapshot_controller.work import ObjectPass
    from workers.kube.objects import JsonObject

OWNER_KIND = "VolumeGroupSnapshot"


def owner_of(work: ObjectPass, content: Json) -> str:
    """Return the name of the group snapshot that has the content's group handle (SNC-070).

    Returns "" if the content has no group handle.

    Raises:
        AttemptError: no group snapshot content has the handle.
    """
    handle = objects.group_handle(content)
    if handle is None or not work.settings.groups:
        return ""
    try:
        for group in work.context.kube.list(paths.GROUP_SNAPSHOT_CONTENTS):
            if text(group, "status", "volumeGroupSnapshotHandle") == handle:
                return text(group, "spec", "volumeGroupSnapshotRef", "name")
    except NotFoundError:
        return ""
    raise AttemptError(
        f"updateSnapshotStatus: cannot find the group snapshot for VolumeSnapshot "
        f"[{work.key.object}], will not update snapshot status",
        State.NO_CHANGE,
    )


def owner_reference(group: Json) -> JsonObject:
    """Return the owner reference that makes the group the owner of a member."""
    return {
        "apiVersion": f"{GROUP_GROUP_SNAPSHOT}/v1",
        "kind": OWNER_KIND,
        "name": objects.name_of(group),
        "uid": objects.uid_of(group),
    }


def own(work: ObjectPass) -> bool:
    """Makes the group the owner of an unowned member; returns True if this was done (SNC-055)."""
    name = objects.group_name(work.item)
    if not name or not work.settings.groups or objects.is_group_member(work.item):
        return False
    group = _find(work, name)
    if group is None:
        return False
    reference = owner_reference(group)

    def patch(item: JsonObject) -> JsonObject | None:
        known = list((item.get("metadata") or {}).get("ownerReferences") or ())
        if any(one.get("uid") == reference["uid"] for one in known):
            return None
        return {"metadata": {"ownerReferences": [*known, reference]}}

    return work.write("own-snapshot", patch)


def living_group(work: ObjectPass) -> str:
    """Return the name of the live group that prevents a member from being deleted on its own.

    Returns "" if no such group exists. A recreated group of the same name does not count, because
    it never deletes the old group's members.
    """
    name = objects.holding_group(work.item)
    group = _find(work, name)
    return name if group is not None and objects.is_member_of(work.item, group) else ""


def _find(work: ObjectPass, name: str) -> JsonObject | None:
    try:
        return work.find(paths.GROUP_SNAPSHOTS, name, work.namespace)
    except NotFoundError:
        return None

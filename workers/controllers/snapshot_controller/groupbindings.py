"""Reconciles one VolumeGroupSnapshotContent for the snapshot controller: adds its finalizer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from workers.constants import FINALIZER_GROUP_CONTENT
from workers.controllers.snapshot_controller.work import ObjectPass
from workers.engine.live import Gone
from workers.engine.outcome import Outcome, done, retry
from workers.kube import paths
from workers.translate.fields import (
    has_finalizer,
    is_deleting,
    optional_mapping,
    text,
    text_list,
)

if TYPE_CHECKING:
    from workers.engine.context import Context
    from workers.queue.keys import Key
    from workers.queue.leases import Lease


def sync_group_binding(context: Context, key: Key, lease: Lease) -> Outcome:
    """Checks a group snapshot content and adds its finalizer, like `sync_binding` for snapshots."""
    work = ObjectPass(context, key, lease, paths.GROUP_SNAPSHOT_CONTENTS)
    if not work.settings.groups:
        return done("group snapshots are switched off")
    if not work.read():
        return done("gone")
    has_volumes = bool(text_list(work.item, "spec", "source", "volumeHandles"))
    handles = optional_mapping(work.item, "spec", "source", "groupSnapshotHandles")
    if has_volumes == (handles is not None):
        words = "Exactly one of GroupSnapshotHandles and VolumeHandles should be specified"
        work.event("Warning", "GroupContentValidationError", words)
        return retry("not valid")
    if not text(work.item, "spec", "volumeGroupSnapshotRef", "uid"):
        return done("not bound")
    if is_deleting(work.item) or has_finalizer(work.item, FINALIZER_GROUP_CONTENT):
        return done("nothing to do")
    try:
        work.add_finalizers("add-content-finalizer", [FINALIZER_GROUP_CONTENT])
    except Gone:
        return done("gone")
    return done("finalizer added")

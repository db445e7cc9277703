"""Reconciles one VolumeSnapshotContent for the snapshot controller (section 3).

A missing snapshot never causes an action, because its manifest may yet be applied from another
cluster.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from workers.constants import ANN_BEING_DELETED, FINALIZER_CONTENT
from workers.controllers.snapshot_controller import decide as rules
from workers.controllers.snapshot_controller.deletion import mark_deleted
from workers.controllers.snapshot_controller.keys import snapshot_key
from workers.controllers.snapshot_controller.work import ObjectPass
from workers.engine.live import Gone
from workers.engine.outcome import Outcome, done, retry
from workers.kube import paths
from workers.translate import snapshot_objects as objects
from workers.translate.fields import text
from workers.translate.snapshot_status import needs_copy

if TYPE_CHECKING:
    from workers.engine.context import Context
    from workers.queue.keys import Key
    from workers.queue.leases import Lease


def sync_binding(context: Context, key: Key, lease: Lease) -> Outcome:
    """Reconciles one VolumeSnapshotContent (SNC-072, SNC-073)."""
    work = ObjectPass(context, key, lease, paths.SNAPSHOT_CONTENTS)
    if not work.read():
        return done("gone")
    if not rules.has_one_handle(work.item):
        words = "Exactly one of VolumeHandle and SnapshotHandle should be specified"
        work.event("Warning", "ContentValidationError", words)
        return retry("not valid")
    if not objects.ref_uid(work.item):
        return done("not bound")
    try:
        if rules.needs_content_finalizer(work.item):
            work.add_finalizers("add-content-finalizer", [FINALIZER_CONTENT])
            return done("finalizer added")
    except Gone:
        return done("gone")
    namespace = text(work.item, "spec", "volumeSnapshotRef", "namespace")
    name = text(work.item, "spec", "volumeSnapshotRef", "name")
    snapshot = work.find(paths.SNAPSHOTS, name, namespace)
    if snapshot is None or objects.uid_of(snapshot) != objects.ref_uid(work.item):
        return done("its snapshot is not here")
    is_candidate = objects.is_deletion_candidate(snapshot)
    if is_candidate:
        mark_deleted(work, work.resource, work.item, ANN_BEING_DELETED)
    if not rules.is_settled(snapshot) and needs_copy(
        snapshot, work.item, bound_field="boundVolumeSnapshotContentName"
    ):
        context.queue.add([snapshot_key(namespace, name)])
    return done("marked as deleted" if is_candidate else "nothing to do")

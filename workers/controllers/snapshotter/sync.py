"""Reconciles one snapshot content: CreateSnapshot, polling and DeleteSnapshot.

`decide` chooses the action from the state table; the other modules of this package carry it out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from workers.controllers.snapshotter import orphans
from workers.controllers.snapshotter.content import CONTENTS
from workers.controllers.snapshotter.creating import CREATES, Creation
from workers.controllers.snapshotter.decide import (
    ENDS,
    Action,
    decide,
    handle_to_delete,
    is_ours,
)
from workers.controllers.snapshotter.deleting import delete, release
from workers.controllers.snapshotter.querying import query
from workers.controllers.snapshotter.work import ContentPass, held_back, poll, tidied
from workers.engine.live import Gone
from workers.engine.outcome import Outcome, done
from workers.translate import snapshot_objects as objects
from workers.translate.fields import is_deleting

if TYPE_CHECKING:
    from workers.drivers.driver import Driver
    from workers.engine.context import Context
    from workers.kube.objects import JsonObject
    from workers.queue.keys import Key
    from workers.queue.leases import Lease


def sync_content(context: Context, driver: Driver, key: Key, lease: Lease) -> Outcome:
    """Reconciles one VolumeSnapshotContent (SNS-010)."""
    work = ContentPass(context, key, lease, CONTENTS.resource, driver=driver, names=CONTENTS)
    return work.run(_sync)


def _sync(work: ContentPass) -> Outcome:
    if not work.read():
        return orphans.finish(work, orphans.SNAPSHOTS)
    snapshot_class = work.read_class(objects.class_name(work.item))
    # The content's class is ignored for a deletion (SND-004) and for an attempt that this driver
    # began, because no other driver will finish them.
    judged = None if is_deleting(work.item) or work.has_begun() else snapshot_class
    if not is_ours(work.item, judged, work.driver.name) or not work.is_of_our_node():
        return done("not ours")
    action = decide(
        work.item,
        takes_source_handle=work.settings.deletes_unread,
        has_open_call=work.intent is not None and work.intent.is_open,
        has_failed_call=work.intent is not None and work.intent.is_failed,
    )
    try:
        return _act(work, action, snapshot_class)
    except Gone:
        return orphans.finish(work, orphans.SNAPSHOTS)


def _act(work: ContentPass, action: Action, snapshot_class: JsonObject | None) -> Outcome:
    if action in ENDS and (held := held_back(work)) is not None:
        return held
    if action is Action.DELETE:
        takes = work.settings.deletes_unread
        return delete(work, handle_to_delete(work.item, takes_source_handle=takes))
    is_cut = objects.volume_handle(work.item) is not None
    if action is Action.RELEASE:
        return release(work, has_strays=is_cut)
    if action is Action.TIDY:
        return tidied(work, has_strays=is_cut)
    if action is Action.QUERY:
        return query(work, snapshot_class)
    if action is Action.NOTHING:
        return poll(work)
    if action in CREATES:
        return work.settle(Creation(work, action).run(snapshot_class))
    return done(action.value)

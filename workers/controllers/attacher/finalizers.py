"""Removes our finalizer from a PV that is deleted or no longer migrated (A-067).

No other code removes it from a PV (A-068); it stays if the driver was uninstalled (DA-030).

The key holds the lock on the PV's name, so no attach can be between reading the PV and publishing
it (MA-021, DA-016). The catalog names the attachments to check; each is then read live.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from workers.constants import ANN_MIGRATED_TO
from workers.controllers.attacher import writes
from workers.controllers.attacher.names import finalizer
from workers.engine.outcome import Action, Outcome, done
from workers.kube import paths
from workers.kube.client import MERGE_PATCH
from workers.kube.errors import NotFoundError, RefusedError
from workers.migration.plugins import in_tree_source
from workers.translate.fields import version_of

if TYPE_CHECKING:
    from workers.controllers.attacher.settings import AttacherSettings
    from workers.drivers.driver import Driver
    from workers.engine.context import Context
    from workers.kube.objects import JsonObject
    from workers.queue.keys import Key
    from workers.queue.leases import Lease


def release_volume(
    context: Context, driver: Driver, key: Key, lease: Lease, settings: AttacherSettings
) -> Outcome:
    """Remove the finalizer unless an attachment names the PV."""
    try:
        volume = context.kube.get_volume(key.object)
    except NotFoundError:
        return done("volume is gone")
    body = writes.without_finalizer_patch(volume, finalizer(driver.name))
    if body is None or not may_go(volume, driver.name):
        return done("nothing to do")
    if is_attached(context, key.object):
        # The key is queued again when the PV's last attachment is gone.
        return done("an attachment names it")
    context.effects.reach("release-volume", lease)
    try:
        left = context.effects.kube.patch_volume(key.object, body, MERGE_PATCH)
    except NotFoundError:
        return done("volume is gone")
    except RefusedError as error:
        return Outcome(
            Action.RETRY,
            base_seconds=settings.retry_interval_start_seconds,
            cap_seconds=settings.retry_interval_max_seconds,
            reason=f"finalizer not removed: {error}",
        )
    # Changes that others made earlier caused events of their own; this write needs no event.
    return done("released", known=version_of(left))


def may_go(volume: JsonObject, driver: str) -> bool:
    """Return True if the PV is deleted, or is in-tree and not migrated to this driver."""
    metadata = volume["metadata"]
    if metadata.get("deletionTimestamp"):
        return True
    migrated_to = (metadata.get("annotations") or {}).get(ANN_MIGRATED_TO)
    return in_tree_source(volume) is not None and migrated_to != driver


def is_attached(context: Context, name: str) -> bool:
    """Return True if any driver's attachment names the PV, even one that is being deleted.

    The watcher writes an attachment to the catalog before it queues its key, so the catalog
    contains every attachment that may have been published.
    """
    for attachment in context.catalog.attachment(name) or {}:
        try:
            found = context.kube.get(paths.ATTACHMENTS, attachment)
        except NotFoundError:
            continue
        source = found["spec"].get("source") or {}
        if source.get("persistentVolumeName") == name:
            return True
    return False

"""One PV that may lose our finalizer: it is deleted, or its migration was taken back (A-067).

Nowhere else does it leave a PV (A-068); it stays where the driver was uninstalled (DA-030).

The key's lease holds the lock on the PV's name, so that no attach is between its look at the PV
and its publish (MA-021, DA-016). The catalog says which attachments to look at; each is read live.
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
    """Take the finalizer off unless an attachment names the PV."""
    try:
        volume = context.kube.get_volume(key.object)
    except NotFoundError:
        return done("volume is gone")
    body = writes.without_finalizer_patch(volume, finalizer(driver.name))
    if body is None or not may_go(volume, driver.name):
        return done("nothing to do")
    if is_attached(context, key.object):
        # The end of its last attachment brings the key back.
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
    # What others wrote before us came back as events; it asks for no second pass (COR-15).
    return done("released", known=version_of(left))


def may_go(volume: JsonObject, driver: str) -> bool:
    """Deleted, or an in-tree volume that is not migrated to this driver (any more)."""
    metadata = volume["metadata"]
    if metadata.get("deletionTimestamp"):
        return True
    migrated_to = (metadata.get("annotations") or {}).get(ANN_MIGRATED_TO)
    return in_tree_source(volume) is not None and migrated_to != driver


def is_attached(context: Context, name: str) -> bool:
    """Whether an attachment of any driver names the PV, also one on its way out.

    The catalog learns of an attachment before its key is added; so whatever was published is there.
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

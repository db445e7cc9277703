"""Detaches a volume: unpublish, remove the finalizer, update the status (A-060 to A-069).

Because of this order, no step is repeated after a crash between the last two steps. The handle and
the secret are read from the PV or, if the PV is gone, from the record that the publish left.
csi-fleet's finalizer keeps the PV for as long as an attachment may need it; `release_volume`
removes the finalizer.
"""

from __future__ import annotations

import time
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final

from csi_client import messages as csi
from workers.constants import ANN_MIGRATED_TO
from workers.controllers.attacher import volume as volumes
from workers.controllers.attacher.names import Reason, finalizer
from workers.controllers.attacher.volume import AttachError, Record, ReplacedVolumeError
from workers.engine.belief import user_of
from workers.engine.outcome import Ended, done, retry, wait
from workers.errors import ApiError, LeaseLost, QueueUnavailable, TransientError
from workers.kube import paths
from workers.kube.errors import RefusedError
from workers.kube.finalizers import removed
from workers.migration.plugins import in_tree_source
from workers.observability.logging import get_logger
from workers.translate.fields import annotations_of, is_deleting, version_of

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from workers.controllers.attacher.attach import AttachmentPass
    from workers.controllers.attacher.volume import Memory
    from workers.engine.live import DriverPass
    from workers.engine.outcome import Outcome
    from workers.kube.objects import JsonObject
    from workers.translate.secrets import SecretRef

_log = get_logger(__name__)

ABANDON_TRIES: Final = 5
MOST_PAUSE_SECONDS: Final = 1.0
"""The longest pause before the second try; each later pause is about twice as long as the one
before, which makes 26 s in total.
"""
ABANDON_SECONDS: Final = 120.0
"""No try starts later than this after the first try, so that timeouts cannot extend a reconcile
beyond `longest_pass`.
"""


def detach(work: AttachmentPass) -> Outcome:
    """Unpublish the volume (A-060).

    Without csi-fleet's finalizer, the volume is unpublished only for a forced key (`names.FORCED`).
    """
    if not work.has_finalizer and not work.is_forced:
        return done("detached already")
    try:
        unpublish(work)
        finish(work)
    except AttachError as error:
        return work.failed("detach", error)
    return done("detached")


def unpublish(work: AttachmentPass) -> None:
    """Unpublish the volume from every node id that a publish may have used.

    Raises:
        Ended: a lock is busy, or a dead worker's publish may still be in progress.
    """
    known = work.remembered()
    target = find_published(work, known)
    secrets = find_secrets(work, target.secret)
    node_ids = find_node_ids(work, known)
    work.lock_calls("detach", target.handle, node_ids[0], multi_node=target.is_multi_node)
    seconds = known.calls.seconds_left(work.lease.session)
    if seconds:
        # If an unpublish raced with a dead worker's publish, the volume could end up in either
        # state.
        raise Ended(wait(seconds, "an earlier worker's publish may still be running"))
    for node_id in node_ids:
        send_unpublish(work, target.handle, node_id, secrets)


def send_unpublish(
    work: AttachmentPass, handle: str, node_id: str, secrets: Mapping[str, str]
) -> None:
    """Unpublish the volume from one node id."""
    request = volumes.unpublish_request(handle, node_id, secrets)
    work.reach("unpublish")
    work.ask("detach", request, csi.ControllerUnpublishVolumeResponse)


def find_published(work: AttachmentPass, known: Memory) -> Record:
    """Find the volume in its PV, in the attachment, or in the record of its publish."""
    try:
        source = volumes.attached_source_of(work.item, work.read_volume)
    except AttachError as error:
        is_replaced = isinstance(error, ReplacedVolumeError)
        if not is_replaced and error.reason is not Reason.VOLUME_MISSING:
            raise
        return recorded(work, known, error, is_replaced=is_replaced)
    return Record.of(source, work.driver.name)


def recorded(
    work: AttachmentPass, known: Memory, problem: AttachError, *, is_replaced: bool
) -> Record:
    """Return the volume that the record of the publish names, because the volume's PV is gone.

    If a PV with a different handle has replaced the original PV, a record counts only if the
    attachment's name confirms it, because the other volume may be in use on the same node. This
    also holds for a record from Redis.

    Raises:
        AttachError: no usable record names the volume; the error is `problem`.
    """
    annotated = volumes.annotated_record(work.item, work.settings.record_annotation)
    if is_replaced:
        annotated = volumes.proven(work.item, annotated)
    found = annotated or volumes.proven(work.item, known.record)
    if found is None or found.driver != work.driver.name:
        raise problem
    _log.warning(
        "the PersistentVolume now names a different volume, so the volume of the recorded "
        "publish is detached",
        volume=volumes.volume_name(work.item),
    )
    return found


def find_secrets(work: AttachmentPass, reference: SecretRef | None) -> dict[str, str]:
    """Read the publish secret; if the secret is gone, a flag allows a detach without it."""
    try:
        return work.publish_secret(reference)
    except AttachError as error:
        is_missing = error.reason is Reason.SECRET_MISSING
        if not (is_missing and work.settings.detaches_without_missing_secret):
            raise
        _log.warning("detaching without secrets because they could not be read", err=error.message)
        return {}


def find_node_ids(work: AttachmentPass, remembered: Memory) -> list[str]:
    """Return the node ids that publishes used, or the node's current id if none is known."""
    known = [volumes.annotated_id(work.item), *volumes.earlier_ids(work.item), *remembered.nodes]
    node_ids = [one for one in dict.fromkeys(known) if one]
    return node_ids or [work.registered_id()]


def finish(work: AttachmentPass) -> None:
    """Remove the finalizer; update the status if other finalizers keep the attachment (A-062).

    Raises:
        AttachError: one of the writes was refused; the unpublish is repeated.
    """
    try:
        release(work)
        metadata, status = work.item["metadata"], work.item.get("status") or {}
        is_gone = metadata.get("deletionTimestamp") and not metadata.get("finalizers")
        is_shown = any(map(status.get, ("attached", "attachmentMetadata", "detachError")))
        if is_shown and not is_gone:
            detached = {"attached": False, "attachmentMetadata": None, "detachError": None}
            work.save_status("save-detached", detached)
    except RefusedError as error:
        raise AttachError(f"could not mark as detached: {error}") from error


def release(work: AttachmentPass) -> None:
    """Remove csi-fleet's finalizer from the attachment and keep all other finalizers."""
    step = "release-attachment"
    work.item = work.remove_finalizer(work.resource, work.item, step, work.finalizer)


# Attachments that disappear without a detach, and drivers that cannot attach.


def abandon(work: AttachmentPass) -> Outcome:
    """Unpublish a volume whose attachment disappeared without a detach (DA-033).

    If the API server began a deletion before it stored csi-fleet's finalizer, the deletion still
    removes the attachment (kubernetes/kubernetes#77988). No other reconcile will have a record of
    the publish. Without an attachment to confirm the publish, the state in Redis cannot be trusted,
    and the watcher drops it. A publish whose outcome is unknown is first given time to end.
    """
    memory = work.memory
    if not work.is_unheard:
        memory = memory.succeeded()
        _note(work, "end-call", memory.mark())
    time.sleep(memory.calls.seconds_left(work.lease.session))
    problem, first = "", min(work.settings.retry_interval_start_seconds, MOST_PAUSE_SECONDS)
    begun = time.monotonic()
    for number in range(ABANDON_TRIES):
        time.sleep(first * (2**number - 1))
        if time.monotonic() - begun > ABANDON_SECONDS:
            break
        try:
            _note(work, "end-call", work.memory.succeeded().mark())
            unpublish(work)
        except LeaseLost:
            raise
        except (Ended, AttachError, ApiError, TransientError) as error:
            problem = str(error)
        else:
            _note(work, "forget", {})
            return done("attachment went meanwhile")
    message = f"the attachment is gone, but the volume may still be attached to its node: {problem}"
    _log.error("could not detach the volume of a deleted attachment", err=message)
    work.warn("DetachFailed", message)
    # The state is deleted again, because this reconcile may have written it after the watcher had
    # deleted it.
    _note(work, "forget", {})
    return done("attachment went meanwhile, and the volume may still be on its node")


def take_back(work: AttachmentPass) -> Outcome:
    """Unpublish a volume that may have been published after its attachment was deleted.

    If a worker freezes just before the call, it still makes the call when it resumes, whatever
    has happened in the meantime. The queue then restores the worker's record, and the next
    reconcile calls this function. Any Redis user could also write an old record back, so a live
    attachment of the same volume and node has priority.
    """
    memory, found = work.memory, work.memory.record
    if not memory.calls.newest or not (found and found.node) or found.driver != work.driver.name:
        return done("attachment is gone")
    # The rest of the attachment is unknown; no PV has the name "-".
    spec = {"attacher": work.driver.name, "nodeName": "", "source": {"persistentVolumeName": "-"}}
    work.item = {"metadata": {"name": work.name}, "spec": spec}
    work.lock_calls("detach", found.handle, found.node, multi_node=False)
    if seconds := memory.calls.seconds_left(work.lease.session):
        return wait(seconds, "the late publish may still be running")
    user = user_of(work.context.kube, paths.ATTACHMENTS, lambda item: _is_of(work, item, found))
    if user:
        work.keep("forget", {})
        return done(f"{user} is of the same volume and node")
    try:
        send_unpublish(work, found.handle, found.node, find_secrets(work, found.secret))
    except AttachError as error:
        work.failure(error.message, operation="detach")
        return work.again(error, "detach failed")
    _log.warning(
        "undoing a publish that ended after its attachment was gone",
        volume_id=found.handle,
        node=found.node,
    )
    work.keep("forget", {})
    return done("late publish undone")


def _is_of(work: AttachmentPass, item: JsonObject, wanted: Record) -> bool:
    """Return True if an attachment may belong to the recorded volume and node."""
    ids = {volumes.annotated_id(item), *volumes.earlier_ids(item)} - {""}
    node = work.key.object.partition("/")[0]
    is_there = wanted.node in ids if ids else item["spec"]["nodeName"] == node
    if item["spec"]["attacher"] != work.driver.name or not is_there:
        return False
    try:
        source = volumes.source_of(item, partial(work.find, paths.VOLUMES))
    except AttachError:
        return True
    return source.handle == wanted.handle


def _note(work: AttachmentPass, step: str, mark: Mapping[str, Any]) -> None:
    """Update the reconcile state if Redis is available; the state is no longer needed."""
    with suppress(QueueUnavailable):
        work.keep(step, mark)


def pretend(work: AttachmentPass) -> Outcome:
    """Mark the attachment as attached without a call, because the driver cannot attach.

    If the attachment is being deleted, remove an old finalizer.
    """
    if not work.is_attached:
        # This also clears errors and metadata from the time when the driver could attach.
        work.save_attached({})
    if is_deleting(work.item) and work.has_finalizer:
        with suppress(AttachError):
            if name := volumes.volume_name(work.item):
                work.read_volume(name)
        work.warn(
            "DetachFailed", "the driver no longer supports detaching volumes, so it was not called"
        )
        release(work)
    return done("attached without a call")


# The finalizer of a PV.


def release_volume(work: DriverPass) -> Outcome:
    """Remove csi-fleet's finalizer from a PV that is being deleted or no longer migrated (A-067).

    The key holds the lock on the PV's name, so no attach can be in progress that has read the PV
    and not yet published its volume. No other code removes the finalizer; it is kept if the driver
    has been uninstalled.
    """
    ours = finalizer(work.driver.name)

    def without_ours(volume: JsonObject) -> JsonObject | None:
        left, is_changed = removed(volume["metadata"].get("finalizers"), ours)
        if not is_changed or not may_go(volume, work.driver.name):
            return None
        return {"metadata": {"finalizers": left or None}}

    if not work.read():
        return done("volume is gone")
    if without_ours(work.item) is None:
        return done("nothing to do")
    if is_attached(work):
        # The key is queued again when the PV's last attachment is gone.
        return done("an attachment names it")
    try:
        work.write("release-volume", without_ours)
    except RefusedError as error:
        return retry(f"finalizer not removed: {error}")
    # Earlier changes by other programs have their own events; the event of this write is ignored.
    return done("released", known=version_of(work.item))


def may_go(volume: JsonObject, driver: str) -> bool:
    """Return True if the PV is being deleted, or is in-tree and not migrated to this driver."""
    is_migrated = annotations_of(volume).get(ANN_MIGRATED_TO) == driver
    return is_deleting(volume) or (in_tree_source(volume) is not None and not is_migrated)


def is_attached(work: DriverPass) -> bool:
    """Return True if any driver's attachment names the PV, even if it is being deleted.

    The watcher writes an attachment to the catalog before it queues the attachment's key, so the
    catalog contains every attachment that may have been published. Each of these attachments is
    read live.
    """
    for name in work.context.catalog.attachment(work.name) or {}:
        found = work.find(paths.ATTACHMENTS, name)
        source = (found["spec"].get("source") or {}) if found else {}
        if source.get("persistentVolumeName") == work.name:
            return True
    return False

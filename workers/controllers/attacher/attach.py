"""Attaches a volume: from a VolumeAttachment to a published volume (A-040 to A-058).

All checks run before the finalizer and the node id are written, so that an attachment that fails
early can be deleted without an unpublish. Nothing is undone here. The finalizer guarantees that
the attachment is detached later, and the detach cleans up (A-044). If the attachment disappears
without a detach, `abandon` cleans up.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from csi_client import messages as csi
from workers.controllers.attacher import records, texts, writes
from workers.controllers.attacher.nodes import annotated_id, registered_id, with_earlier
from workers.controllers.attacher.request import capability, is_multi_node, publish_request
from workers.controllers.attacher.source import (
    AttachError,
    foreign_driver,
    inline_source,
    volume_name,
    volume_source,
)
from workers.engine.outcome import blocked, done, wait
from workers.kube import paths
from workers.kube.client import MERGE_PATCH
from workers.kube.errors import ConflictError, NotFoundError, RefusedError

if TYPE_CHECKING:
    from workers.controllers.attacher.source import Source
    from workers.controllers.attacher.work import Work
    from workers.engine.outcome import Outcome
    from workers.kube.objects import JsonObject

CONFLICT_TRIES: Final = 10
"""Write conflicts on one object before the attempt is postponed (DA-015)."""

OTHER_NODE_SECONDS: Final = 1.0
OTHER_NODE_SILENCE_SECONDS: Final = 10.0
"""How often to check whether the other node has detached, and when to report it (MA-012)."""


class Busy(Exception):  # noqa: N818 - no error: the pass ends with this outcome
    """Ends the reconcile with `outcome`, because something else must happen first."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__(outcome.reason)
        self.outcome = outcome


def attach(work: Work) -> Outcome:
    """Publish the volume unless the status says that it is attached (A-040)."""
    if work.is_attached and not work.is_forced:
        return keep_finalizer(work)
    try:
        context = publish(work)
    except Busy as busy:
        return busy.outcome
    except AttachError as error:
        return work.failed("attachError", error)
    # A failed write is not recorded in the status (TA-029): the publish is repeated.
    try:
        work.patch("save-attached", writes.attached_patch(work.attachment, context), status=True)
    except (NotFoundError, ConflictError):
        if not work.has_gone_for_sure():  # refused by a webhook or a busy API server
            raise
        return done("attachment is gone")
    mark = work.lease.mark
    # A status "attached" already implies that the call ended (`Work.remembered`), so an ordinary
    # reconcile needs no write to Redis here.
    if work.is_forced or records.counts_failures(mark):
        work.set_mark("end-call", records.succeeded(mark))
    return done("attached")


def keep_finalizer(work: Work) -> Outcome:
    """Restore our finalizer on an attached attachment: without it no detach would run (DA-025)."""
    if not work.has_finalizer:
        work.patch("keep-finalizer", writes.mark_patch(work.attachment, work.finalizer, "", {}))
    return done("attached already")


def publish(work: Work) -> dict[str, str]:
    """Check, lock, record and publish (steps 1 to 11 of A-041); returns the publish context."""
    source = checked_source(work)
    how = capability(
        source,
        default_fstype=work.settings.default_fstype,
        multi_writer=work.driver.supports("SINGLE_NODE_MULTI_WRITER"),
    )
    secrets = work.secrets(source.secret)
    node_id = registered_id(work.node, work.read_node(), work.driver.name)
    is_multi = is_multi_node(source)
    busy = work.lock_calls("attach", source.handle, node_id, multi_node=is_multi)
    if busy is not None:
        raise Busy(blocked(busy))
    if not is_multi and work.settings.is_strict_single_node:
        wait_for_other_node(work)
    mark(work, source, node_id)
    request = publish_request(
        source,
        how,
        node_id,
        secrets,
        has_readonly=work.driver.supports("PUBLISH_READONLY"),
    )
    work.context.effects.reach("publish", work.lease)
    work.is_unsaved = work.is_unheard = True
    try:
        answer = work.call("attach", request, csi.ControllerPublishVolumeResponse)
    except AttachError as error:
        if error.is_heard:  # the driver answered, or its deadline passed
            work.is_unheard = False
            work.set_mark("end-call", records.ended(work.lease.mark))
        raise
    work.is_unheard = False
    return checked_context(dict(answer.publish_context))


def checked_source(work: Work) -> Source:
    """Read the volume and add our finalizer to its PV (steps 1 to 6)."""
    name = volume_name(work.attachment)
    if not name:
        return inline_source(work.attachment)
    busy = work.lock_volume(name)
    if busy is not None:
        raise Busy(blocked(busy))
    volume = work.read_volume(name)
    if volume is None:
        raise AttachError(texts.volume_missing(name))
    if volume["metadata"].get("deletionTimestamp"):
        raise AttachError(texts.volume_deleting(name))
    other = foreign_driver(volume, work.driver.name)
    if other:
        raise AttachError(
            f'PersistentVolume "{name}" belongs to driver {other}, '
            f"the attachment names {work.driver.name}"
        )
    protect_volume(work, name)
    return volume_source(volume)


def protect_volume(work: Work, name: str) -> None:
    """Add our finalizer to the PV once, even if several attachments do so at a time (DA-015).

    The lock on the PV's name prevents its removal until this reconcile ends (MA-021).
    """
    for _ in range(CONFLICT_TRIES):
        volume = work.volume
        if volume is None:
            raise AttachError(texts.volume_missing(name))
        if volume["metadata"].get("deletionTimestamp"):
            raise AttachError(texts.volume_deleting(name))
        body = writes.with_finalizer_patch(volume, work.finalizer)
        if body is None:
            return
        work.context.effects.reach("protect-volume", work.lease)
        try:
            work.volume = work.context.effects.kube.patch_volume(name, body, MERGE_PATCH)
        except (ConflictError, NotFoundError):
            work.read_volume(name)
        except RefusedError as error:
            raise AttachError(f"could not add PersistentVolume finalizer: {error}") from error
    raise Busy(wait(OTHER_NODE_SECONDS, "others write the volume all the time"))


def wait_for_other_node(work: Work) -> None:
    """Wait until a single-node volume is detached from its previous node (MA-012).

    Raises:
        Busy: another attachment of the volume is deleted and not yet detached.
    """
    name = volume_name(work.attachment)
    known = work.context.catalog.attachment(name) if name else None
    for other, node in sorted((known or {}).items()):
        if node == work.node or not is_detach_due(work, other):
            continue
        created = datetime.fromisoformat(work.attachment["metadata"]["creationTimestamp"])
        if (datetime.now(UTC) - created).total_seconds() > OTHER_NODE_SILENCE_SECONDS:
            message = f'volume "{name}" is still to be detached from node {node}'
            work.failed("attachError", AttachError(message))
        raise Busy(wait(OTHER_NODE_SECONDS, f"waits for the detach from node {node}"))


def is_detach_due(work: Work, name: str) -> bool:
    """Return True if attachment `name` is being deleted and its volume may still be published."""
    try:
        other = work.context.kube.get(paths.ATTACHMENTS, name)
    except NotFoundError:
        return False
    metadata = other["metadata"]
    is_ours = work.finalizer in (metadata.get("finalizers") or ())
    return bool(metadata.get("deletionTimestamp")) and is_ours


def mark(work: Work, source: Source, node_id: str) -> None:
    """Step 10: record what a detach needs before the call (A-041, MA-016, MA-030, MA-032)."""
    earlier = annotated_id(work.attachment) if work.has_finalizer else ""
    if earlier and earlier != node_id:
        # Record the earlier id before the annotation is overwritten: that node may have the volume.
        work.set_mark("note-node", records.with_node(work.lease.mark, earlier))
    record = records.record(source, work.driver.name, node_id)
    annotation = work.settings.record_annotation
    save_mark(work, node_id, {annotation: records.to_text(record)} if annotation else {})
    session, known = work.lease.session, work.lease.mark
    until = session.deadline(work.timeout("attach"))
    overtaken = session.latest(*records.deadlines(known))
    work.set_mark("record-call", records.begun(known, record, until=until, overtaken=overtaken))


def save_mark(work: Work, node_id: str, extra: dict[str, str]) -> None:
    """Write finalizer and node ids to the attachment, unless it is deleted meanwhile."""
    for _ in range(CONFLICT_TRIES):
        # Without our finalizer, no publish was sent with the id in the annotation.
        earlier = with_earlier(work.attachment, node_id) if work.has_finalizer else {}
        body = writes.mark_patch(work.attachment, work.finalizer, node_id, extra | earlier)
        try:
            return work.patch("mark-attachment", body)
        except NotFoundError:
            raise Busy(done("attachment is gone")) from None
        except ConflictError:
            check_same(work, reread(work))
        except RefusedError as error:
            raise AttachError(f"could not save VolumeAttachment: {error}") from error
    raise Busy(wait(OTHER_NODE_SECONDS, "others write the attachment all the time"))


def reread(work: Work) -> JsonObject:
    """Read the attachment again; returns its previous content."""
    before: dict[str, Any] = work.attachment
    try:
        work.reread()
    except NotFoundError:
        raise Busy(done("attachment is gone")) from None
    return before


def check_same(work: Work, before: JsonObject) -> None:
    """Stop if the attachment was deleted or is being deleted: publish nothing for it (MA-020)."""
    if work.attachment["metadata"]["uid"] != before["metadata"]["uid"]:
        raise Busy(done("attachment is gone"))
    if work.is_deleting:
        raise Busy(wait(0, "attachment is deleted"))


def checked_context(context: dict[str, str]) -> dict[str, str]:
    """Return the publish context if the API server will accept it (DA-017).

    Raises:
        AttachError: the context is larger than an attachment can hold.
    """
    size = writes.metadata_bytes(context)
    if size > writes.MAX_METADATA_BYTES:
        raise AttachError(
            f"the driver's publish context has {size} bytes, "
            f"an attachment holds {writes.MAX_METADATA_BYTES}"
        )
    return context

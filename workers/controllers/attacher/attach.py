"""Reconciles an attachment, and attaches: from a VolumeAttachment to a published volume.

All checks run before the finalizer and the node id are written, so that an attachment that fails
early can be deleted without an unpublish. This module undoes nothing. The finalizer guarantees that
the attachment is detached later, and the detach cleans up. If the attachment disappears without a
detach, `detach.abandon` cleans up.
"""

from __future__ import annotations

import random
import time
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Final
from zlib import crc32

import msgspec

from csi_client import errors
from csi_client import messages as csi
from csi_client.errors import CsiError
from workers.controllers.attacher import volume as volumes
from workers.controllers.attacher.names import (
    ATTACHMENTS,
    NODE_ID,
    Reason,
    finalizer,
    keys_of,
)
from workers.controllers.attacher.volume import AttachError, Memory, Record, ReplacedVolumeError
from workers.engine.live import DriverPass, Gone, OpenCalls
from workers.engine.outcome import ABORTED_TRIES, Ended, done, retry, wait
from workers.errors import AttemptError
from workers.kube import paths
from workers.kube.errors import AwayError, NotFoundError, RefusedError
from workers.kube.finalizers import added, has_finalizer
from workers.migration.plugins import in_tree_source
from workers.observability.logging import get_logger
from workers.queue.locks import Lock, Mode
from workers.translate.fields import is_deleting
from workers.translate.published import volume_capability

if TYPE_CHECKING:
    from collections.abc import Mapping

    from google.protobuf.message import Message

    from workers.controllers.attacher.spec import AttacherSettings
    from workers.controllers.attacher.volume import Source
    from workers.drivers.driver import Driver
    from workers.engine.outcome import Outcome
    from workers.kube.objects import JsonObject
    from workers.translate.secrets import SecretRef

_log = get_logger(__name__)

GONE_PAUSES_SECONDS: Final = (1.0, 2.0, 4.0)

TIMEOUTS: Final = 3
"""After this many consecutive timeouts, an attachment shares one lock with all other attachments of
its node that keep timing out.
"""

OTHER_NODE_SECONDS: Final = 1.0
OTHER_NODE_SILENCE_SECONDS: Final = 10.0
"""How often to check whether the other node has detached the volume, and how long to wait before
reporting that it has not.
"""

MAX_MESSAGE_BYTES: Final = 1024
MAX_METADATA_BYTES: Final = 256 * 1024
"""The API server refuses a longer VolumeError message and a larger attachmentMetadata (keys and
values together): kubernetes, pkg/apis/storage/validation.
"""

REWRITE_SECONDS: Final = 60.0
"""An unchanged error is rewritten after this time, to renew its timestamp (DA-020)."""

_METHODS: Final = {
    "attach": "Controller/ControllerPublishVolume",
    "detach": "Controller/ControllerUnpublishVolume",
}


def settings_of(driver: Driver) -> AttacherSettings:
    """Return the attacher's settings for one driver."""
    found: AttacherSettings = driver.settings.controllers["attacher"]
    return found


@dataclass
class AttachmentPass(DriverPass):
    """One reconcile of an attachment, for both attach and detach.

    The state that must outlive this process is stored on the attachment (finalizer, node ids) and,
    for convenience, in the key's mark (`Memory`).

    Attributes:
        is_forced: whether the call is made even though the status says that it was already made.
        is_unsaved: whether a publish was sent but its outcome is not yet in the status.
        is_unheard: whether the outcome of that publish is unknown, so that the publish may be
            in flight.
        volume: the PV as it was last read or written.
    """

    is_forced: bool = False
    is_unsaved: bool = False
    is_unheard: bool = False
    volume: JsonObject | None = None

    @property
    def settings(self) -> AttacherSettings:
        """The attacher's settings for this driver."""
        return settings_of(self.driver)

    @property
    def memory(self) -> Memory:
        """The reconcile state that earlier reconciles stored with this key."""
        return Memory.read(self.lease.mark)

    @property
    def finalizer(self) -> str:
        """The attacher's finalizer for this driver."""
        return finalizer(self.driver.name)

    @property
    def node(self) -> str:
        """The name of the attachment's node."""
        return str(self.item["spec"]["nodeName"])

    @property
    def is_attached(self) -> bool:
        """True if the status says that the volume is attached."""
        return bool((self.item.get("status") or {}).get("attached"))

    @property
    def has_finalizer(self) -> bool:
        """True if csi-fleet's finalizer is present, so that a publish may exist."""
        return has_finalizer(self.item, self.finalizer)

    def is_gone(self) -> bool:
        """Return True if the attachment with this uid is gone; retry during a short outage.

        No other reconcile has a record of the publish, so this one must detect that no detach will
        follow.
        """
        for seconds in GONE_PAUSES_SECONDS:
            try:
                return self.context.kube.is_gone(self.resource, self.name, self.key.uid)
            except AwayError:
                time.sleep(seconds)
        return self.context.kube.is_gone(self.resource, self.name, self.key.uid)

    def read_volume(self, name: str) -> JsonObject | None:
        """Read the PV under a lock that excludes the PV's creation, deletion and expansion."""
        self.acquire(Lock(name, Mode.SHARED))
        self.volume = self.find(paths.VOLUMES, name)
        return self.volume

    def registered_id(self) -> str:
        """Read the driver's registered node id live, because the node may have been recreated."""
        csi_node = self.find(paths.CSI_NODES, self.node)
        return volumes.registered_id(self.node, csi_node, self.driver.name)

    def publish_secret(self, reference: SecretRef | None) -> dict[str, str]:
        """Read the publish secret.

        Raises:
            AttachError: the secret cannot be read; the message contains no values.
        """
        try:
            return self.secret(reference)
        except (RefusedError, AttemptError) as error:
            assert reference is not None
            message = f'failed to load secret "{reference.namespace}/{reference.name}": {error}'
            is_missing = isinstance(error, NotFoundError)
            reason = Reason.SECRET_MISSING if is_missing else Reason.SECRET
            raise AttachError(message, reason=reason) from None

    def lock_calls(self, operation: str, handle: str, node_id: str, *, multi_node: bool) -> None:
        """Allow one call at a time per volume, or per volume and node for a multi-node volume.

        Static PVs may share a handle, so the lock is on the handle. With a limit of n calls per
        node (`limits: {attach: {per: node}}`), the calls for one node share n locks. The
        attachments of a node share a single lock once they keep timing out, so that a dead node
        takes up only one call at a time.
        """
        volume = f"{self.driver.name}#{handle}"
        locks = [Lock(volume, Mode.SHARED if multi_node else Mode.EXCLUSIVE)]
        if multi_node:  # a new attachment may exist while the old one is being deleted
            locks.append(Lock(f"{volume}@{node_id}"))
        places = self.driver.per_node(operation) or self.settings.max_ops_per_node
        if places:
            place = crc32(self.key.uid.encode()) % places
            locks.append(Lock(f"{self.driver.name}@{node_id}#{place}"))
        if self.memory.timeouts >= TIMEOUTS:
            locks.append(Lock(f"{self.driver.name}@{node_id}#slow"))
        self.acquire(*locks)

    def timeout(self, operation: str) -> float:
        """Return the timeout of a call in seconds."""
        spec = (self.volume or {}).get("spec") or {}
        own = self.driver.timeout_seconds(operation, spec.get("storageClassName") or "")
        return own or self.settings.timeout_seconds

    def ask(self, operation: str, request: Message, answer: type[Any]) -> Any:
        """Publish or unpublish the volume; metrics count in-tree and inline volumes as migrated.

        Raises:
            AttachError: the driver refused the call or did not answer in time.
        """
        is_migrated = not volumes.volume_name(self.item) or (
            self.volume is not None and in_tree_source(self.volume) is not None
        )
        method, seconds = _METHODS[operation], self.timeout(operation)
        try:
            found = self.call(
                method, request, answer, timeout_seconds=seconds, is_migrated=is_migrated
            )
        except CsiError as error:
            # The call is over if the driver answered or the deadline passed. Otherwise it may be in
            # flight.
            if not error.from_transport or error.code == errors.DEADLINE_EXCEEDED:
                self.is_unheard = False
            raise AttachError(str(error), reason=Reason.DRIVER_ERROR, code=error.code) from None
        self.is_unheard = False
        return found

    def remembered(self) -> Memory:
        """Merge the reconcile state of all keys of the attachment.

        The status "attached" is written only after its publish has ended, so that call is over;
        earlier calls and a forced publish may still be in flight. Without the finalizer no call is
        in flight, because the finalizer is added before the first call and removed by a detach
        after the last call.
        """
        found, session = Memory(), self.lease.session
        keys = keys_of(self.key.driver, self.node, self.name, self.key.uid)
        for key, mark in zip(keys, self.context.queue.marks_of(keys), strict=True):
            known = Memory.read(mark)
            calls = known.calls if self.has_finalizer else OpenCalls()
            if self.is_attached and key.kind == ATTACHMENTS:
                calls = calls.answered()
            found = Memory(
                record=known.record or found.record,
                nodes=(*found.nodes, *known.nodes),
                calls=OpenCalls(
                    earlier=session.latest(found.calls.earlier, calls.newest, calls.earlier)
                ),
            )
        return found

    # Results.

    def save_status(self, step: str, status: Mapping[str, Any]) -> None:
        """Patch the status.

        Raises:
            Gone: the attachment is gone; a late worker never changes a newer attachment of the
                same name.
        """
        self.write(step, lambda _: {"status": status}, status=True, is_exact=False)
        self.is_unsaved = False

    def save_attached(self, context: Mapping[str, str]) -> None:
        """Write the status of a published volume.

        A merge patch must name the metadata keys that it removes.
        """
        known = (self.item.get("status") or {}).get("attachmentMetadata") or {}
        gone = dict.fromkeys(known.keys() - context.keys())
        metadata = {**context, **gone} if context else None
        status = {"attached": True, "attachmentMetadata": metadata, "attachError": None}
        self.save_status("save-attached", status)

    def failed(self, word: str, error: AttemptError) -> Outcome:
        """Report the error in status, event, history and log; return the outcome of `again`."""
        self.failure(error.message, operation=word)
        field, with_code = f"{word}Error", self.settings.writes_error_code
        content = error_content(self.item, field, error, with_code=with_code, now=datetime.now(UTC))
        if content is not None:
            self.warn(f"{word.capitalize()}Failed", error.message)
            try:
                self.save_status(f"save-{word}-error", {field: content})
            except RefusedError as refused:  # as in csi-attacher, it is only logged
                _log.warning(
                    "could not save the error to the VolumeAttachment", operation=word, err=refused
                )
        return self.again(error, f"{word} failed")

    def again(self, error: AttemptError, reason: str) -> Outcome:
        """Count the failure and return the outcome that schedules the retry.

        After each of the first few ABORTED responses, the call is retried after the first retry
        interval, and the queue counts no failure.
        """
        memory = self.memory
        aborted = memory.aborted + 1 if error.code == errors.ABORTED else 0
        timeouts = memory.timeouts + 1 if error.code == errors.DEADLINE_EXCEEDED else 0
        self.keep("note-failure", replace(memory, aborted=aborted, timeouts=timeouts).mark())
        if 0 < aborted <= ABORTED_TRIES:
            spread = random.uniform(1, 1.5)  # noqa: S311 - no secret
            seconds = self.settings.retry_interval_start_seconds * spread
            return wait(seconds, f"{reason}: another operation is pending")
        waits_for = error.reason if isinstance(error, AttachError) else Reason.OTHER
        memo = msgspec.json.encode({"reason": waits_for}).decode() if waits_for else ""
        return retry(reason, memo=memo)

    def warn(self, reason: str, message: str) -> None:
        """Record an event on the volume's claim, because the claim's owner can solve the problem.

        csi-attacher writes no event.
        """
        claim = ((self.volume or {}).get("spec") or {}).get("claimRef")
        if not claim:
            return
        metadata = {part: claim.get(part) for part in ("name", "namespace", "uid")}
        involved = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata}
        text = f"node {self.node}: {message}"
        self.context.effects.event(involved, "Warning", reason, text, component=self.component)


def error_content(
    attachment: JsonObject, field: str, error: AttemptError, *, with_code: bool, now: datetime
) -> JsonObject | None:
    """Return the new `attachError` or `detachError`; None if the same error was written recently.

    Only a code from the driver's own response is written, because Kubernetes takes 8
    (RESOURCE_EXHAUSTED) to mean that the node is full.
    """
    code = error.code if with_code and field == "attachError" else None
    content: JsonObject = {"message": cut(error.message), "errorCode": code}
    known = (attachment.get("status") or {}).get(field)
    if known and all(known.get(name) == value for name, value in content.items()):
        # An error without a time was written by another program and is replaced.
        written = known.get("time")
        if written and (now - datetime.fromisoformat(written)).total_seconds() < REWRITE_SECONDS:
            return None
    content["time"] = now.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    if field == "detachError":
        del content["errorCode"]
    return content


def cut(message: str) -> str:
    """Shorten the message to at most 1024 bytes, at a character boundary."""
    data = message.encode()
    if len(data) <= MAX_MESSAGE_BYTES:
        return message
    return data[: MAX_MESSAGE_BYTES - 3].decode("utf-8", "ignore") + "..."


# Attaching, top-down.


def attach(work: AttachmentPass) -> Outcome:
    """Publish the volume unless the status says that it is attached (A-040)."""
    if work.is_attached and not work.is_forced:
        # If another program removed the finalizer, no detach would run, so it is added again.
        work.item = work.add_finalizer(work.resource, work.item, "keep-finalizer", work.finalizer)
        return done("attached already")
    try:
        context = publish(work)
    except AttemptError as error:
        return work.failed("attach", error)
    work.save_attached(context)  # a failed write is not recorded: the publish is repeated
    # The status implies that the call has ended. Write to Redis only if the key is forced or
    # earlier failures were counted.
    memory = work.memory
    if work.is_forced or memory.aborted or memory.timeouts:
        work.keep("end-call", memory.succeeded().mark())
    return done("attached")


def publish(work: AttachmentPass) -> dict[str, str]:
    """Check, lock, record and publish (steps 1 to 11 of A-041); return the publish context."""
    source = checked_source(work)
    how = volume_capability(
        {"spec": source.spec},
        default_fs_type=work.settings.default_fstype,
        multi_writer=work.driver.supports("SINGLE_NODE_MULTI_WRITER"),
    )
    secrets = work.publish_secret(source.secret)
    node_id = work.registered_id()
    work.lock_calls("attach", source.handle, node_id, multi_node=source.is_multi_node)
    if not source.is_multi_node and work.settings.is_strict_single_node:
        wait_for_other_node(work)
    record_publish(work, source, node_id)
    has_readonly = work.driver.supports("PUBLISH_READONLY")
    request = volumes.publish_request(source, how, node_id, secrets, has_readonly=has_readonly)
    work.reach("publish")
    work.is_unsaved = work.is_unheard = True
    try:
        answer = work.ask("attach", request, csi.ControllerPublishVolumeResponse)
    except AttachError:
        if not work.is_unheard:
            memory = work.memory
            work.keep("end-call", replace(memory, calls=memory.calls.answered()).mark())
        raise
    return checked_context(dict(answer.publish_context))


def checked_source(work: AttachmentPass) -> Source:
    """Return the volume's source, after adding csi-fleet's finalizer to its PV (steps 1 to 6)."""
    try:
        return volumes.attached_source_of(work.item, partial(protected_volume, work))
    except ReplacedVolumeError:
        raise AttachError(
            f'PersistentVolume "{volumes.volume_name(work.item)}" is another volume than the one '
            "that the attachment was made for: delete the attachment"
        ) from None


def protected_volume(work: AttachmentPass, name: str) -> JsonObject | None:
    """Return the PV with csi-fleet's finalizer; None if there is no PV of that name.

    Until this reconcile ends, the lock on the PV's name prevents the removal of the finalizer.
    """
    volume = work.read_volume(name)
    if volume is None:
        return None
    if is_deleting(volume):
        raise AttachError(f'PersistentVolume "{name}" is marked for deletion')
    other = volumes.foreign_driver(volume, work.driver.name)
    if other:
        raise AttachError(
            f'PersistentVolume "{name}" belongs to driver {other}, but the attachment names '
            f"{work.driver.name}"
        )
    try:
        work.volume = work.add_finalizer(paths.VOLUMES, volume, "protect-volume", work.finalizer)
    except Gone:
        return None
    except RefusedError as error:
        raise AttachError(f"could not add PersistentVolume finalizer: {error}") from error
    return work.volume


def wait_for_other_node(work: AttachmentPass) -> None:
    """Wait until a single-node volume is detached from its previous node (MA-012).

    Raises:
        Ended: another attachment of the volume is being deleted and is not yet detached.
    """
    name = volumes.volume_name(work.item)
    known = work.context.catalog.attachment(name) if name else None
    for other, node in sorted((known or {}).items()):
        if node == work.node or not is_detach_due(work, other):
            continue
        created = datetime.fromisoformat(work.item["metadata"]["creationTimestamp"])
        if (datetime.now(UTC) - created).total_seconds() > OTHER_NODE_SILENCE_SECONDS:
            message = f'volume "{name}" has not been detached from node {node} yet'
            work.failed("attach", AttachError(message))
        raise Ended(wait(OTHER_NODE_SECONDS, f"is waiting for the detach from node {node}"))


def is_detach_due(work: AttachmentPass, name: str) -> bool:
    """Return True if attachment `name` is being deleted and its volume may still be published."""
    found = work.find(paths.ATTACHMENTS, name)
    return found is not None and is_deleting(found) and has_finalizer(found, work.finalizer)


def record_publish(work: AttachmentPass, source: Source, node_id: str) -> None:
    """Before the call, record what a detach needs on the attachment and in the key's mark."""
    memory, wanted = work.memory, Record.of(source, work.driver.name, node_id)
    earlier = volumes.annotated_id(work.item) if work.has_finalizer else ""
    if earlier and earlier != node_id:
        # The earlier id is recorded before the annotation is overwritten, because the volume may
        # still be published to that node.
        memory = replace(memory, nodes=tuple(dict.fromkeys((*memory.nodes, earlier))))
        work.keep("note-node", memory.mark())
    annotation = work.settings.record_annotation
    extra = {annotation: wanted.text()} if annotation else {}
    try:
        work.write("mark-attachment", lambda item: mark_patch(item, work.finalizer, node_id, extra))
    except RefusedError as error:
        raise AttachError(f"could not save VolumeAttachment: {error}") from error
    calls = memory.calls.with_next(work.lease.session, work.timeout("attach"))
    work.keep("record-call", replace(memory, record=wanted, calls=calls).mark())


def mark_patch(
    attachment: JsonObject, finalizer_name: str, node_id: str, extra: Mapping[str, str]
) -> JsonObject | None:
    """Return the patch that adds the finalizer and the node ids; None if all are present.

    Raises:
        Ended: the attachment is being deleted, so nothing is published for it.
    """
    metadata = attachment["metadata"]
    if is_deleting(attachment):
        raise Ended(wait(0, "attachment is deleted"))
    names, is_new = added(metadata.get("finalizers"), finalizer_name)
    known = metadata.get("annotations") or {}
    wanted = {NODE_ID: node_id, **extra}
    if not is_new:  # without the finalizer, no publish was sent with the id in the annotation
        wanted |= volumes.with_earlier(attachment, node_id)
    body: JsonObject = {"finalizers": names} if is_new else {}
    if changed := {name: value for name, value in wanted.items() if known.get(name) != value}:
        body["annotations"] = changed
    return {"metadata": body} if body else None


def checked_context(context: dict[str, str]) -> dict[str, str]:
    """Return the publish context if the API server would accept it.

    Raises:
        AttachError: the context is larger than an attachment can hold.
    """
    size = sum(len(key.encode()) + len(value.encode()) for key, value in context.items())
    if size > MAX_METADATA_BYTES:
        raise AttachError(
            f"the driver's publish context has {size} bytes, but a VolumeAttachment can store only "
            f"{MAX_METADATA_BYTES}"
        )
    return context

"""The state and helpers of one attachment's reconcile, shared by attach and detach.

Everything is read live; the catalog only says where to look. What must survive this process is
stored on the attachment (finalizer, node ids) and, for convenience, in the key's reconcile state:

    {"record": {...},            what a detach needs once the PV is gone (MA-030)
     "nodes": ["old-id"],        earlier node ids that a publish used (MA-032)
     "call": {"until": 17e8},    a publish that may be in flight until then, Unix time (MA-016)
     "overtaken": 17e8,          the same for earlier publishes with an unknown outcome
     "aborted": 2,               consecutive ABORTED answers (MA-014)
     "timeouts": 3}              consecutive calls without an answer (MA-015)
"""

from __future__ import annotations

import random
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final
from zlib import crc32

from csi_client import errors
from csi_client.errors import CsiError
from workers.controllers.attacher import records, writes
from workers.controllers.attacher.names import (
    ATTACHMENTS,
    attachment_name,
    finalizer,
    keys_of,
)
from workers.controllers.attacher.source import AttachError, volume_name
from workers.engine.outcome import ABORTED_TRIES, Action, Outcome, done, wait
from workers.errors import AttemptError
from workers.kube import paths
from workers.kube.client import MERGE_PATCH
from workers.kube.errors import AwayError, NotFoundError, RefusedError
from workers.migration.plugins import in_tree_source
from workers.observability import trail
from workers.observability.logging import get_logger
from workers.observability.requests import about_volume
from workers.queue.locks import Lock, Mode
from workers.translate import secrets as secret_rules

if TYPE_CHECKING:
    from collections.abc import Mapping

    from google.protobuf.message import Message

    from workers.controllers.attacher.settings import AttacherSettings
    from workers.drivers.driver import Driver
    from workers.engine.context import Context
    from workers.kube.objects import JsonObject
    from workers.queue.keys import Key
    from workers.queue.leases import Lease

_log = get_logger(__name__)


GONE_PAUSES_SECONDS: Final = (1.0, 2.0, 4.0)

TIMEOUTS: Final = 3
"""After this many consecutive timeouts an attachment shares one lock with all others of its node
that keep timing out (MA-015)."""


@dataclass(slots=True)
class Work:
    """One attachment and what its reconcile needs.

    Attributes:
        is_forced: the call is repeated although the status says that it is done.
        is_unsaved: a publish was sent, and its outcome is not yet in the status.
        is_unheard: the outcome of that publish is unknown: it may be in flight.
        has_gone: the attachment is known not to exist any longer.
    """

    context: Context
    driver: Driver
    key: Key
    lease: Lease
    attachment: JsonObject
    settings: AttacherSettings
    is_forced: bool = False
    is_unsaved: bool = False
    is_unheard: bool = False
    has_gone: bool = False
    finalizer: str = ""
    volume: JsonObject | None = None

    def __post_init__(self) -> None:
        self.finalizer = finalizer(self.driver.name)

    # The attachment.

    @property
    def node(self) -> str:
        """Name of the node."""
        return str(self.attachment["spec"]["nodeName"])

    @property
    def is_deleting(self) -> bool:
        """True if the attachment is deleted and must be detached."""
        return bool(self.attachment["metadata"].get("deletionTimestamp"))

    @property
    def is_attached(self) -> bool:
        """True if the status says that the volume is attached."""
        return bool((self.attachment.get("status") or {}).get("attached"))

    @property
    def has_finalizer(self) -> bool:
        """True if our finalizer is present, so that a publish may exist."""
        return self.finalizer in (self.attachment["metadata"].get("finalizers") or ())

    def patch(self, step: str, body: JsonObject | None, *, status: bool = False) -> None:
        """Patch the attachment; `body` None writes nothing. `step` names the crash point."""
        if body is None:
            return
        path = paths.ATTACHMENTS.path(attachment_name(self.key))
        self.context.effects.reach(step, self.lease)
        self.attachment = self.context.effects.kube.client.patch(
            path + "/status" * status, body, MERGE_PATCH
        )
        if status:
            self.is_unsaved = False

    def is_gone(self) -> bool:
        """Return True if the attachment with this uid no longer exists."""
        name = attachment_name(self.key)
        self.has_gone = self.has_gone or self.context.kube.is_gone(
            paths.ATTACHMENTS, name, self.key.uid
        )
        return self.has_gone

    def has_gone_for_sure(self) -> bool:
        """Like `is_gone`, but retry while the API server is unavailable (DA-033)."""
        for seconds in GONE_PAUSES_SECONDS:
            try:
                return self.is_gone()
            except AwayError:
                pause(seconds)
        return self.is_gone()

    def reread(self) -> None:
        """Read the attachment again, after another writer changed it."""
        self.attachment = self.context.kube.get(paths.ATTACHMENTS, attachment_name(self.key))

    # Other objects.

    def read_volume(self, name: str) -> JsonObject | None:
        """Read the PV; None if it does not exist."""
        try:
            self.volume = self.context.kube.get_volume(name)
        except NotFoundError:
            self.volume = None
        return self.volume

    def read_node(self) -> JsonObject | None:
        """Read the CSINode; None if it does not exist.

        It is read live, so that no cache must catch up (A-009, DA-002) and a node that was
        created again is seen (DA-003).
        """
        try:
            return self.context.kube.get_csi_node(self.node)
        except NotFoundError:
            return None

    def secrets(self, reference: tuple[str, str] | None) -> dict[str, str]:
        """Read the data of the publish secret (A-055).

        Raises:
            AttachError: the secret cannot be read; the message contains no values.
        """
        if reference is None:
            return {}
        namespace, name = reference
        try:
            found = self.context.kube.get_secret(namespace, name)
            return secret_rules.decode(found, secret_rules.SecretRef(name, namespace))
        except (RefusedError, AttemptError) as error:
            message = f'failed to load secret "{namespace}/{name}": {error}'
            raise AttachError(message, is_missing=isinstance(error, NotFoundError)) from None

    # Locks (MA-010 to MA-013).

    def lock_volume(self, name: str) -> Lock | None:
        """Prevent creation, deletion and offline expansion of the PV; returns a busy lock."""
        return self.context.queue.acquire(self.lease, Lock(name, Mode.SHARED))

    def lock_calls(
        self, operation: str, handle: str, node_id: str, *, multi_node: bool
    ) -> Lock | None:
        """Allow one call at a time per volume; a multi-node volume, one per volume and node.

        Static PVs may share a handle, so the lock is on the handle. A limit per node lets its
        calls share that number of locks (`limits: {attach: {per: node}}`). Attachments that keep
        timing out share a single lock, so that a dead node occupies one call only (MA-015).
        Returns a busy lock, or None.
        """
        volume = f"{self.driver.name}#{handle}"
        locks = [Lock(volume, Mode.SHARED if multi_node else Mode.EXCLUSIVE)]
        if multi_node:  # a new attachment may exist while the old one is deleted (I-3)
            locks.append(Lock(f"{volume}@{node_id}"))
        places = self.driver.per_node(operation) or self.settings.max_ops_per_node
        if places:
            place = crc32(self.key.uid.encode()) % places
            locks.append(Lock(f"{self.driver.name}@{node_id}#{place}"))
        if self.lease.mark.get("timeouts", 0) >= TIMEOUTS:
            locks.append(Lock(f"{self.driver.name}@{node_id}#slow"))
        return self.context.queue.acquire(self.lease, *locks)

    # The driver.

    def call(self, operation: str, request: Message, answer: type[Any]) -> Any:
        """Publish or unpublish; metrics count in-tree and inline as migrated (A-072, DA-018).

        Raises:
            AttachError: the driver refused the call, or did not answer in time.
        """
        method = {"attach": "ControllerPublishVolume", "detach": "ControllerUnpublishVolume"}
        seconds = self.timeout(operation)
        is_migrated = not volume_name(self.attachment) or (
            self.volume is not None and in_tree_source(self.volume) is not None
        )
        try:
            with about_volume(is_migrated=is_migrated):
                return self.context.effects.client(self.driver).call(
                    f"Controller/{method[operation]}", request, answer, timeout_seconds=seconds
                )
        except CsiError as error:
            is_heard = not error.from_transport or error.code == errors.DEADLINE_EXCEEDED
            raise AttachError(str(error), code=error.code, is_heard=is_heard) from None

    def timeout(self, operation: str) -> float:
        """Timeout of a call in seconds."""
        spec = (self.volume or {}).get("spec") or {}
        own = self.driver.timeout_seconds(operation, spec.get("storageClassName") or "")
        return own or self.settings.timeout_seconds

    def remembered(self) -> dict[str, Any]:
        """Merge the reconcile state that earlier reconciles left under the attachment's keys.

        A status "attached" was written after its publish ended, so that call is over; calls
        before it may still be in flight, and so may a forced publish. Without our finalizer no
        call is in flight: it is added before the first call, and a detach waits for the last
        call before it removes the finalizer.
        """
        found: dict[str, Any] = {}
        parts = (self.key.driver, self.node, attachment_name(self.key), self.key.uid)
        keys = keys_of(*parts)
        for key, kept in zip(keys, self.context.queue.marks_of(keys), strict=True):
            is_over = self.is_attached and key.kind == ATTACHMENTS
            mark = records.ended(kept) if is_over else kept
            mark = mark if self.has_finalizer else records.without_calls(mark)
            until = self.lease.session.latest(*records.deadlines(found), *records.deadlines(mark))
            nodes = [*found.get("nodes", ()), *mark.get("nodes", ())]
            found |= mark
            found["nodes"] = list(dict.fromkeys(nodes))
            if until:
                found["overtaken"] = until.data()
        return found

    def zombie_seconds(self, mark: Mapping[str, Any]) -> float:
        """Seconds that a dead worker's publish may still be in flight; 0 for none (MA-016)."""
        return self.lease.session.seconds_left(*records.deadlines(mark))

    def set_mark(self, step: str, mark: Mapping[str, Any]) -> None:
        """Store the reconcile state if it changed."""
        if dict(self.lease.mark) != dict(mark):
            self.context.effects.reach(step, self.lease)
            self.context.effects.mark(self.lease, mark)

    # Failures.

    def failed(self, field_name: str, error: AttachError) -> Outcome:
        """Report in status, event and log, then back off (A-042, A-057, A-063, MA-014)."""
        word = "attach" if field_name == "attachError" else "detach"
        trail.note("error", error.message)
        _log.warning("attempt failed", operation=word, err=error.message)
        body = writes.error_patch(
            self.attachment,
            field_name,
            error,
            with_code=self.settings.writes_error_code,
            now=datetime.now(UTC),
        )
        if body is not None:
            self.warn(f"{word.capitalize()}Failed", error.message)
            try:
                self.patch(f"save-{word}-error", body, status=True)
            except NotFoundError:
                return done("attachment is gone")
            except RefusedError as refused:
                # Like csi-attacher, only log it.
                _log.warning("error not saved", operation=word, err=refused)
        return self.again(error.code, f"{word} failed")

    def again(self, code: int | None, reason: str) -> Outcome:
        """Back off; the first ABORTED answers wait the first interval and do not count (MA-014)."""
        start = self.settings.retry_interval_start_seconds
        mark = dict(self.lease.mark)
        for name, counted in (("aborted", errors.ABORTED), ("timeouts", errors.DEADLINE_EXCEEDED)):
            count = int(mark.pop(name, 0)) + 1
            if code == counted:
                mark[name] = count
        self.set_mark("note-failure", mark)
        aborted = mark.get("aborted", 0)
        if 0 < aborted <= ABORTED_TRIES:
            spread = random.uniform(1, 1.5)  # noqa: S311 - no secret
            return wait(start * spread, f"{reason}: another operation is pending")
        return Outcome(
            Action.RETRY,
            base_seconds=start,
            cap_seconds=self.settings.retry_interval_max_seconds,
            reason=reason,
        )

    def warn(self, reason: str, message: str) -> None:
        """Send an event to the volume's claim, whose owner can act on it (DA-024).

        csi-attacher writes no event (A-111).
        """
        claim = ((self.volume or {}).get("spec") or {}).get("claimRef")
        if not claim:
            return
        involved = {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {part: claim.get(part) for part in ("name", "namespace", "uid")},
        }
        self.context.effects.event(
            involved,
            "Warning",
            reason,
            f"node {self.node}: {message}",
            component=self.driver.event_source,
        )


def pause(seconds: float) -> None:
    """Sleep within a reconcile."""
    time.sleep(seconds)

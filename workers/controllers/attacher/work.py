"""What attach, detach and their errors have in common: one attachment's pass under its lease.

Everything is read live; the catalog only says where to look. What must outlive this process stands
in the attachment (finalizer, node ids) and, for convenience, in the key's mark:

    {"record": {...},            what a detach needs once the PV is gone (MA-030)
     "nodes": ["old-id"],        earlier node ids that a publish was sent with (MA-032)
     "call": {"until": 17e8},    a publish that may run until then, seconds since 1970 (MA-016)
     "overtaken": 17e8,          the same of those without an end before it
     "aborted": 2,               answers ABORTED in a row (MA-014)
     "timeouts": 3}              calls without an answer in a row (MA-015)
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
from workers.cpuslots import waiting
from workers.engine.outcome import Action, Outcome, done, wait
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

ABORTED_TRIES: Final = 5
"""So often "another operation is pending" is no failure of its own (MA-014)."""

GONE_PAUSES_SECONDS: Final = (1.0, 2.0, 4.0)

TIMEOUTS: Final = 3
"""After so many of them in a row an attachment shares one place of its node (MA-015)."""


@dataclass(slots=True)
class Work:
    """One attachment and what its pass needs.

    Attributes:
        is_forced: the pass repeats what the status says already.
        is_unsaved: a publish was sent, and its end does not stand in the status yet.
        is_unheard: nobody heard its end: it may still run.
        has_gone: the attachment is known not to exist any more.
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
        """Whether it is to be detached."""
        return bool(self.attachment["metadata"].get("deletionTimestamp"))

    @property
    def is_attached(self) -> bool:
        """What its status says."""
        return bool((self.attachment.get("status") or {}).get("attached"))

    @property
    def has_finalizer(self) -> bool:
        """Whether a publish may have been made."""
        return self.finalizer in (self.attachment["metadata"].get("finalizers") or ())

    def patch(self, step: str, body: JsonObject | None, *, status: bool = False) -> None:
        """Write the attachment, if there is something to write."""
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
        """Whether this very attachment does not exist any more."""
        name = attachment_name(self.key)
        self.has_gone = self.has_gone or self.context.kube.is_gone(
            paths.ATTACHMENTS, name, self.key.uid
        )
        return self.has_gone

    def has_gone_for_sure(self) -> bool:
        """The same, after an answer that says so: who is away now is asked again (DA-033)."""
        for seconds in GONE_PAUSES_SECONDS:
            try:
                return self.is_gone()
            except AwayError:
                pause(seconds)
        return self.is_gone()

    def reread(self) -> None:
        """Somebody else wrote the attachment meanwhile."""
        self.attachment = self.context.kube.get(paths.ATTACHMENTS, attachment_name(self.key))

    # What it needs.

    def read_volume(self, name: str) -> JsonObject | None:
        """The PV, None when it does not exist."""
        try:
            self.volume = self.context.kube.get_volume(name)
        except NotFoundError:
            self.volume = None
        return self.volume

    def read_node(self) -> JsonObject | None:
        """The CSINode, None when it does not exist.

        Live: no cache is waited for (A-009, DA-002), and a node may be made anew (DA-003).
        """
        try:
            return self.context.kube.get_csi_node(self.node)
        except NotFoundError:
            return None

    def secrets(self, reference: tuple[str, str] | None) -> dict[str, str]:
        """The data of the publish secret, read now (A-055).

        Raises:
            AttachError: it cannot be read; the values are never shown.
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
        """Keep the PV from being made, deleted or grown offline meanwhile; returns a busy lock."""
        return self.context.queue.acquire(self.lease, Lock(name, Mode.SHARED))

    def lock_calls(
        self, operation: str, handle: str, node_id: str, *, multi_node: bool
    ) -> Lock | None:
        """One call at a time for a volume of one node; several nodes in parallel for the others.

        Static PVs may share a handle, so it is the handle that is locked. With a limit per node
        the calls of one node share so many places (`limits: {attach: {per: node}}`). Those that
        time out again and again share one, so that a dead node holds up a single call (MA-015).
        """
        volume = f"{self.driver.name}#{handle}"
        locks = [Lock(volume, Mode.SHARED if multi_node else Mode.EXCLUSIVE)]
        if multi_node:  # two attachments of one pair, of which one is on its way out (I-3)
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
        """Publish or unpublish; counted as migrated for in-tree and inline volumes (A-072, DA-018).

        Raises:
            AttachError: the driver refused, or did not answer in time.
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
        """Deadline of a call in seconds."""
        spec = (self.volume or {}).get("spec") or {}
        own = self.driver.timeout_seconds(operation, spec.get("storageClassName") or "")
        return own or self.settings.timeout_seconds

    def remembered(self) -> dict[str, Any]:
        """What earlier passes of the attachment left, under whichever of its keys.

        A status that says "attached" was written after its publish ended, not after those that
        one overtook; only a forced publish runs beside such a status. Without our finalizer there
        is no call at all: it is there before the first one, and a detach waits for the last one
        before it takes it off.
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
        """How long a publish of a worker that died may still run; 0 for none (MA-016)."""
        return self.lease.session.seconds_left(*records.deadlines(mark))

    def set_mark(self, step: str, mark: Mapping[str, Any]) -> None:
        """Remember what changed."""
        if dict(self.lease.mark) != dict(mark):
            self.context.effects.reach(step, self.lease)
            self.context.effects.mark(self.lease, mark)

    # Failures.

    def failed(self, field_name: str, error: AttachError) -> Outcome:
        """Tell by status, event and log; then back off (A-042, A-057, A-063, MA-014)."""
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
                # As the reference: told by the log alone.
                _log.warning("error not saved", operation=word, err=refused)
        return self.again(error.code, f"{word} failed")

    def again(self, code: int | None, reason: str) -> Outcome:
        """Back-off; ABORTED waits the first interval a few times, for it is no failure (MA-014)."""
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
        """Tell the owner of the volume's claim; nobody else could act on it (DA-024).

        The reference writes no event (A-111).
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
    """Wait within a pass."""
    with waiting():
        time.sleep(seconds)

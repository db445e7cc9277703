"""DeleteSnapshot, and letting the object go (SNS-040 to SNS-043)."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING

from csi_client import errors
from csi_client import messages as csi
from csi_client.errors import CsiError
from workers.controllers.snapshotter.content import Gone
from workers.controllers.snapshotter.work import ContentPass, busy, snapshot_lock
from workers.engine.outcome import Outcome, done
from workers.errors import ApiError, AttemptError
from workers.kube.errors import ConflictError, NotFoundError, RefusedError
from workers.observability import trail
from workers.observability.logging import get_logger
from workers.queue import locks
from workers.translate import snapshot_objects as objects
from workers.translate import snapshot_secrets
from workers.translate.fields import annotations_of, version_of
from workers.translate.go_text import quote
from workers.translate.snapshot_status import cleared, error_of

if TYPE_CHECKING:
    from workers.kube.objects import JsonObject

_log = get_logger(__name__)
_REASON = "SnapshotDeleteError"


def release(work: ContentPass, *, has_strays: bool = False) -> Outcome:
    """The snapshot stays or never was: only the finalizer goes, after all that we remember.

    For a record of an object that is gone counts for a snapshot that nobody was told of.
    """
    work.forget(has_strays=has_strays)
    try:
        work.remove_finalizer()
    except Gone:
        pass
    except ConflictError:  # its policy, perhaps
        return work.failed("it changed meanwhile")
    # What we wrote comes back as events; one pass for a deletion is enough (COR-15).
    return done("released", known=version_of(work.content))


def delete(work: ContentPass, handle: str) -> Outcome:
    """DeleteSnapshot, status cleared, finalizer gone; every code is retried for ever (SNS-041).

    No restore from this content and no call for another content of the same snapshot runs
    meanwhile.
    """
    wanted = (locks.snapshot_content(work.name), snapshot_lock(work, handle))
    if (taken := work.context.queue.acquire(work.lease, *wanted)) is not None:
        return busy(taken)
    try:
        secrets = secrets_for_deletion(work, _REASON)
    except (ApiError, AttemptError):
        return work.failed("no credentials")
    work.reach("delete-snapshot")
    try:
        request = csi.DeleteSnapshotRequest(snapshot_id=handle, secrets=secrets)
        work.call("Controller/DeleteSnapshot", request, csi.DeleteSnapshotResponse)
    except CsiError as error:
        return refused(work, error, _REASON, "Failed to delete snapshot")
    try:
        work.write_status("clear-status", lambda item: cleared(item.get("status")))
    except Gone:
        work.forget()
        return done("deleted")
    except RefusedError as error:
        work.event("Warning", _REASON, "Failed to clear content status")
        trail.tell_refused(_log, error)
        return work.failed("status not cleared")
    return release(work)


def secrets_for_deletion(work: ContentPass, reason: str) -> dict[str, str]:
    """The secret that the annotations name; one that is gone holds nothing up (SND-012).

    Raises:
        AttemptError, ApiError: it cannot be read; the event is sent.
    """
    names, text = work.names, "Failed to get snapshot credentials"
    what = f"{names.words} {quote(work.name)}"
    try:
        ref = snapshot_secrets.from_annotations(
            annotations_of(work.content), names.secret_name, names.secret_namespace, what
        )
        return work.read_secret(ref)
    except NotFoundError as error:
        work.event("Warning", reason, f"{text}, deleting without them: {error}")
        return {}
    except (RefusedError, AttemptError) as error:
        work.event("Warning", reason, f"{text}: {error}")
        raise


def refused(work: ContentPass, error: CsiError, reason: str, words: str) -> Outcome:
    """The driver did not delete: the cause is in the event and the status too (SND-013)."""
    message = f"{words}: {error}"
    work.event("Warning", reason, message)

    def change(item: JsonObject) -> JsonObject | None:
        if objects.error_message(item) == message:
            return None
        return {**(item.get("status") or {}), "error": error_of(message, time.time())}

    with suppress(Gone):
        work.write_status("write-error", change)
    # CSI: members of a group are deleted with it; repeating the request soon cannot help.
    is_slow = error.code == errors.INVALID_ARGUMENT
    seconds = work.settings.retry_max_seconds if is_slow else 0.0
    return work.failed(error.code_name, not_before_seconds=seconds)

"""Deletes a snapshot and removes the content's finalizer (SNS-040 to SNS-043)."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING

from csi_client import errors
from csi_client import messages as csi
from csi_client.errors import CsiError
from workers.controllers.snapshotter.work import ContentPass, snapshot_lock
from workers.engine.live import Gone
from workers.engine.outcome import Outcome, done, retry
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
    from collections.abc import Callable, Mapping
    from typing import Any

    from workers.kube.objects import JsonObject

_log = get_logger(__name__)
_REASON = "SnapshotDeleteError"


def release(work: ContentPass, *, has_strays: bool = False) -> Outcome:
    """Removes the finalizer without deleting a snapshot, after dropping all reconcile state.

    State that outlives its object would look like a snapshot that no object names.
    """
    work.forget(has_strays=has_strays)
    try:
        work.drop_finalizer()
    except Gone:
        pass
    except ConflictError:  # the deletion policy may have changed
        return retry("it changed meanwhile")
    # Because of `known`, the events from these writes cause no further reconcile.
    return done("released", known=version_of(work.item))


def delete(work: ContentPass, handle: str) -> Outcome:
    """Calls DeleteSnapshot, clears the status and removes the finalizer (SNS-041).

    The call is retried after any error. The locks prevent restores from this content, and calls for
    other contents of the same snapshot.
    """
    wanted = (locks.snapshot_content(work.name), snapshot_lock(work, handle))
    work.acquire(*wanted)
    try:
        secrets = secrets_for_deletion(work, _REASON)
    except (ApiError, AttemptError):
        return retry("no credentials")
    work.reach("delete-snapshot")
    try:
        request = csi.DeleteSnapshotRequest(snapshot_id=handle, secrets=secrets)
        work.ask("Controller/DeleteSnapshot", request, csi.DeleteSnapshotResponse)
    except CsiError as error:
        return refused(work, error, _REASON, "Failed to delete snapshot")
    return deleted(work, cleared, _REASON)


def deleted(
    work: ContentPass,
    clear: Callable[[Mapping[str, Any] | None], JsonObject | None],
    reason: str,
) -> Outcome:
    """Clears the status once the driver has deleted the snapshot, then removes the finalizer."""
    try:
        work.write_status("clear-status", lambda item: clear(item.get("status")))
    except Gone:
        work.forget()
        return done("deleted")
    except RefusedError as error:
        work.event("Warning", reason, "Failed to clear content status")
        trail.tell_refused(_log, error)
        return retry("status not cleared")
    return release(work)


def secrets_for_deletion(work: ContentPass, reason: str) -> dict[str, str]:
    """Reads the secret that the annotations name; returns {} if the secret is gone (SND-012).

    Raises:
        AttemptError, ApiError: the secret cannot be read; an event has been recorded.
    """
    names, text = work.names, "Failed to get snapshot credentials"
    what = f"{names.words} {quote(work.name)}"
    try:
        ref = snapshot_secrets.from_annotations(
            annotations_of(work.item), names.secret_name, names.secret_namespace, what
        )
        return work.secret(ref)
    except NotFoundError as error:
        work.event("Warning", reason, f"{text}, deleting without them: {error}")
        return {}
    except (RefusedError, AttemptError) as error:
        work.event("Warning", reason, f"{text}: {error}")
        raise


def refused(work: ContentPass, error: CsiError, reason: str, words: str) -> Outcome:
    """Records, in an event and the status, why the driver did not delete the snapshot (SND-013)."""
    message = f"{words}: {error}"
    work.event("Warning", reason, message)

    def change(item: JsonObject) -> JsonObject | None:
        if objects.error_message(item) == message:
            return None
        return {**(item.get("status") or {}), "error": error_of(message, time.time())}

    with suppress(Gone):
        work.write_status("write-error", change)
    # According to CSI, a member can be deleted only with its group, so an early retry of this
    # request is useless.
    is_slow = error.code == errors.INVALID_ARGUMENT
    seconds = work.settings.retry_interval_max_seconds if is_slow else 0.0
    return retry(error.code_name, not_before_seconds=seconds)

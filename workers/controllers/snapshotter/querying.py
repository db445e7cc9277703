"""Queries the state of a snapshot that its content did not create (SNS-030, SNS-031)."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from csi_client import errors
from csi_client import messages as csi
from csi_client.errors import CsiError
from workers.controllers.snapshotter import request
from workers.controllers.snapshotter.work import ContentPass, poll, snapshot_lock
from workers.engine.outcome import Outcome, done, retry
from workers.errors import AttemptError, State
from workers.kube.errors import RefusedError
from workers.translate import snapshot_objects as objects
from workers.translate import snapshot_secrets
from workers.translate.fields import annotations_of, text_map
from workers.translate.go_text import quote
from workers.translate.snapshot_secrets import SecretUse
from workers.translate.snapshot_status import content_status

if TYPE_CHECKING:
    from workers.kube.objects import JsonObject
    from workers.translate.secrets import SecretRef

_REASON = "SnapshotContentCheckandUpdateFailed"
_WORDS = "Failed to check and update snapshot content"


def query(work: ContentPass, snapshot_class: JsonObject | None) -> Outcome:
    """Queries a pre-provisioned snapshot or a group member and writes the content's status."""
    content = work.item
    handle = objects.status_handle(content) or objects.source_handle(content) or ""
    try:
        secrets = _secrets(work, snapshot_class)
        lock = snapshot_lock(work, handle)
        work.acquire(lock)
        found = _ask(work, handle, secrets)
    except AttemptError as error:
        work.blame(_REASON, f"{_WORDS}: {error.message}")
        return retry("not known")
    now = time.time()

    def change(item: JsonObject) -> JsonObject | None:
        return content_status(
            item.get("status"),
            handle=objects.source_handle(item) or handle,
            is_ready=found.ready_to_use,
            created_nanoseconds=request.created_nanoseconds(found, now),
            size_bytes=found.size_bytes,
            group_handle=found.group_snapshot_id,
        )

    work.write_status("write-status", change)
    if found.ready_to_use:
        work.forget()
        return done("ready")
    return poll(work)


def _secrets(work: ContentPass, snapshot_class: JsonObject | None) -> dict[str, str]:
    """Reads the class's list secret or, for a group member, the annotated secret (SNS-030)."""
    name, content = work.name, work.item
    what = f"snapshot content {name}"
    ref: SecretRef | None = None
    named = objects.class_name(content)
    if named is not None:
        if snapshot_class is None:
            missing = objects.not_listed(work.names.class_words, named)
            raise _error(f"failed to get snapshot class {named} for {what}: {missing}")
        try:
            ref = snapshot_secrets.resolve(
                SecretUse.LIST, text_map(snapshot_class, "parameters"), name
            )
        except AttemptError as error:
            raise _error(f"failed to get secret reference for {what}: {error.message}") from error
    if objects.group_handle(content) is not None:
        return _annotated(work, f"failed to get credentials from annotation for {what}")
    try:
        return work.secret(ref)
    except (RefusedError, AttemptError) as error:
        place = f"error getting secret {ref.name} in namespace {ref.namespace}" if ref else ""
        raise _error(f"failed to get credentials for {what}: {place}: {error}") from error


def _annotated(work: ContentPass, failed: str) -> dict[str, str]:
    """Reads the secret that the annotations name; the error omits the cause (SNA-024)."""
    names = work.names
    what = f"{names.words} {quote(work.name)}"
    try:
        ref = snapshot_secrets.from_annotations(
            annotations_of(work.item), names.secret_name, names.secret_namespace, what
        )
    except AttemptError as error:
        raise _error(f"{failed}: {error.message}") from error
    try:
        return work.secret(ref)
    except (RefusedError, AttemptError) as error:
        raise _error(f"{failed}: cannot get credentials for {what}") from error


def _ask(work: ContentPass, handle: str, secrets: dict[str, str]) -> csi.Snapshot:
    """Asks the driver for the snapshot.

    If the driver can neither get nor list snapshots, the snapshot counts as ready (SNS-031).
    """
    try:
        if work.driver.supports("GET_SNAPSHOT"):
            return work.ask(
                "Controller/GetSnapshot",
                csi.GetSnapshotRequest(snapshot_id=handle, secrets=secrets),
                csi.GetSnapshotResponse,
            ).snapshot
        if not work.driver.supports("LIST_SNAPSHOTS"):
            return csi.Snapshot(snapshot_id=handle, ready_to_use=True)
        answer = work.ask(
            "Controller/ListSnapshots",
            csi.ListSnapshotsRequest(snapshot_id=handle, secrets=secrets),
            csi.ListSnapshotsResponse,
        )
    except CsiError as error:
        is_missing = error.code == errors.NOT_FOUND and work.driver.supports("GET_SNAPSHOT")
        cause = _not_found(handle) if is_missing else str(error)
        raise _list_failed(work, cause) from error
    found = request.listed(answer.entries, handle)
    if found is None:
        raise _list_failed(work, _not_found(handle))
    return found


def _not_found(handle: str) -> str:
    return f"can not find snapshot for snapshotID {handle}"


def _list_failed(work: ContentPass, cause: str) -> AttemptError:
    return _error(f"failed to list snapshot for content {work.name}: {quote(cause)}")


def _error(message: str) -> AttemptError:
    return AttemptError(message, State.NO_CHANGE)

"""Snapshots whose object was removed by force while the driver worked: nothing is left behind.

The record of the attempt is enough: the same CreateSnapshot asked once more brings to light what
the first one made (it is idempotent by name), and then it is deleted.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from csi_client import messages as csi
from csi_client.errors import CsiError
from workers.controllers.snapshotter import intent as intents
from workers.controllers.snapshotter.decide import is_final, made_nothing
from workers.controllers.snapshotter.work import held_back
from workers.engine.outcome import Outcome, done, wait
from workers.errors import AttemptError
from workers.kube.errors import RefusedError
from workers.observability.logging import get_logger
from workers.translate import snapshot_objects as objects
from workers.translate.go_text import quote

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from workers.controllers.snapshotter.intent import Intent
    from workers.controllers.snapshotter.work import ContentPass

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Calls:
    """How one kind of snapshot is made and deleted.

    Attributes:
        create: asks once more; returns the handle and those of its members.
        delete: deletes by handle and members.
    """

    create: Callable[[ContentPass, Intent, dict[str, str]], tuple[str, tuple[str, ...]]]
    delete: Callable[[ContentPass, str, Sequence[str], dict[str, str]], None]


def finish(work: ContentPass, calls: Calls) -> Outcome:
    """End what is known of an object that is gone."""
    known = work.intent
    if known is None and not work.has_stale_copy:
        known = work.intent = intents.read_copy(
            work.context.kube, work.context.queue, work.namespace, work.key
        )
        if known is not None and known.is_retained:
            # A copy alone does not prove that nobody was told of the snapshot.
            _log.warning("a snapshot of policy Retain may be left in the storage", name=known.name)
            work.forget()
            return held_back(work) or done("retained")
    if known is None:
        work.forget()
        return held_back(work) or done("gone")
    if known.handle:
        return discard(work, calls, known.handle, known.members)
    seconds = work.hold_seconds()
    if seconds > 0:
        return wait(seconds, "the call of another process may still run")
    _log.warning("gone, asking for what its call left")
    secrets = secrets_of(work, known)
    work.remember(replace(known, is_copied=False, deadline=work.deadline()), polls=work.polls)
    work.reach("ask-orphan")
    try:
        handle, members = calls.create(work, known, secrets)
    except CsiError as error:
        if is_final(error) and known.is_open:
            work.close()  # once more: a failed call says nothing of the one before
            return work.failed(error.code_name)
        if is_final(error) or (made_nothing(error) and known.is_full):
            work.forget()
            return done("nothing was left")
        work.copy_intent()
        return work.failed(error.code_name)
    work.record_answer(handle, members)
    return discard(work, calls, handle, members)


def discard(
    work: ContentPass,
    calls: Calls,
    handle: str,
    members: Sequence[str],
    *,
    blame: Callable[[str], None] | None = None,
) -> Outcome:
    """Delete a snapshot that was reported to no object; `blame` tells one why it stays."""
    if (held := held_back(work)) is not None:
        return held
    secrets = secrets_of(work, work.intent)
    work.reach("delete-orphan")
    try:
        calls.delete(work, handle, members, secrets)
    except CsiError as error:
        _log.warning("orphaned snapshot is not deleted yet", snapshot=handle, err=error)
        if blame is not None:
            blame(f"failed to delete snapshot {handle}: {quote(str(error))}")
        return work.failed(error.code_name)
    _log.warning("orphaned snapshot is deleted", snapshot=handle)
    work.forget()
    return done("cleaned up")


def secrets_of(work: ContentPass, known: Intent | None) -> dict[str, str]:
    """The attempt's secrets as far as they can still be read."""
    try:
        return work.read_secret(known.secret if known is not None else None)
    except (RefusedError, AttemptError) as error:
        _log.warning("going on without secrets", err=error)
        return {}


def is_volume_without_snapshots(work: ContentPass) -> bool:
    """True if the driver can list and knows no snapshot of the content's volume (SND-032)."""
    if not work.driver.supports("LIST_SNAPSHOTS"):
        return False
    try:
        answer = work.call(
            "Controller/ListSnapshots",
            csi.ListSnapshotsRequest(source_volume_id=objects.volume_handle(work.content) or ""),
            csi.ListSnapshotsResponse,
        )
    except CsiError:
        return False
    return not answer.entries and not answer.next_token


def ask_for_snapshot(work: ContentPass, wanted: Intent, secrets: Any, **options: Any) -> Any:
    """CreateSnapshot as an intent has it; `options` go to the call."""
    request = csi.CreateSnapshotRequest(
        name=wanted.name,
        source_volume_id=wanted.volumes[0],
        parameters=wanted.parameters or {},
        secrets=secrets,
    )
    method = "Controller/CreateSnapshot"
    return work.call(method, request, csi.CreateSnapshotResponse, **options).snapshot


def _create(work: ContentPass, known: Intent, secrets: Any) -> tuple[str, tuple[str, ...]]:
    return ask_for_snapshot(work, known, secrets).snapshot_id, ()


def _delete(work: ContentPass, handle: str, _members: Sequence[str], secrets: Any) -> None:
    request = csi.DeleteSnapshotRequest(snapshot_id=handle, secrets=secrets)
    work.call("Controller/DeleteSnapshot", request, csi.DeleteSnapshotResponse)


SNAPSHOTS = Calls(_create, _delete)

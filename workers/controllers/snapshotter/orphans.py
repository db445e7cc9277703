"""Deletes snapshots whose object was removed by force during the driver's call.

The intent contains all that is needed. CreateSnapshot is idempotent by name, so the same call
returns the snapshot that the first call created, and that snapshot is then deleted.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from csi_client import messages as csi
from csi_client.errors import CsiError
from workers.controllers.snapshotter import intent as intents
from workers.controllers.snapshotter import topology
from workers.controllers.snapshotter.content import has_result
from workers.controllers.snapshotter.decide import is_final, made_nothing
from workers.controllers.snapshotter.work import held_back
from workers.engine.belief import ENDED, Vanished, doubt_about, user_of
from workers.engine.outcome import Outcome, done, retry, wait
from workers.errors import AttemptError
from workers.kube import paths
from workers.kube.errors import RefusedError
from workers.observability import trail
from workers.observability.logging import get_logger
from workers.translate import snapshot_objects as objects
from workers.translate.fields import text
from workers.translate.go_text import quote

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from workers.controllers.snapshotter.intent import Intent
    from workers.controllers.snapshotter.work import ContentPass
    from workers.kube.objects import JsonObject

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Calls:
    """The calls that create and delete one kind of snapshot.

    Attributes:
        create: repeats the creation; returns the handle and the members' handles.
        delete: deletes the snapshot with this handle and these members' handles.
    """

    create: Callable[[ContentPass, Intent, dict[str, str]], tuple[str, tuple[str, ...]]]
    delete: Callable[[ContentPass, str, Sequence[str], dict[str, str]], None]


def finish(work: ContentPass, calls: Calls) -> Outcome:
    """Finishes the attempt of an object that is gone, if the attempt is still open."""
    # A copy would count as proof that a call is open. The intent is therefore unset during the
    # check, so that no copy is written.
    known, work.intent = work.intent, None
    if known is not None and (doubt := _doubt(work, known)):
        if doubt == ENDED:
            work.forget()
            return done("ended")
        return _set_aside(work, known, doubt)
    work.intent = known
    if known is None and not work.has_stale_copy:
        known = work.intent = intents.read_copy(
            work.context.kube, work.context.queue, work.own_namespace, work.key
        )
        if known is not None and known.is_retained:
            # A copy alone does not prove that the snapshot was never reported to the user.
            _log.warning(
                "a snapshot with deletion policy Retain may be left in the storage backend",
                name=known.name,
            )
            work.forget()
            return held_back(work) or done("retained")
    if known is None:
        work.forget()
        return held_back(work) or done("gone")
    if known.handle:
        return discard(work, calls, known.handle, known.members)
    seconds = work.hold_seconds()
    if seconds > 0:
        return wait(seconds, "the call of another process may still be running")
    _log.warning("the object is gone; repeating its call to find out what the call created")
    secrets = secrets_of(work, known)
    work.remember(replace(known, is_copied=False, deadline=work.deadline()), polls=work.polls)
    work.reach("ask-orphan")
    try:
        handle, members = calls.create(work, known, secrets)
    except CsiError as error:
        if is_final(error) and known.is_open:
            work.close()  # and retry: a failed call says nothing about the earlier one
            return retry(error.code_name)
        if is_final(error) or (made_nothing(error) and known.is_full):
            work.forget()
            return done("nothing was left")
        work.copy_intent()
        return retry(error.code_name)
    work.record_answer(handle, members)
    return discard(work, calls, handle, members)


def _doubt(work: ContentPass, known: Intent) -> str:
    """Return why a vanished object's intent is not trusted; "" if it is trusted."""
    context, key = work.context, work.key
    vanished = Vanished(
        resource=work.names.resource,
        name=work.name,
        namespace="",
        # A worker of another driver can create and delete an object with the same name.
        is_it=lambda content: text(content, "spec", "driver") == work.driver.name,
        has_result=has_result,
    )

    def has_copy() -> bool:
        return intents.read_copy(context.kube, context.queue, work.own_namespace, key) is not None

    since = (known.version, work.lease.seen - 1)
    return doubt_about(context.kube, vanished, has_copy=has_copy, since=since)


def _set_aside(work: ContentPass, known: Intent, problem: str) -> Outcome:
    """Drops the intent, so that `csi-fleet audit` lists the attempt's snapshot, if there is one.

    While an intent is kept, the audit considers its call open, and judges no snapshot.
    """
    _log.warning(
        "the record of an attempt is not trusted",
        name=known.name,
        snapshot=known.handle,
        err=problem,
    )
    trail.note("error", problem)
    work.forget()
    return done("stranded")


def _user_of(work: ContentPass, handle: str, members: Sequence[str]) -> str:
    """Return the name of a live object that contains one of the handles; "" if there is none.

    The object is a snapshot content or a group snapshot content.
    """
    handles, driver, kube = {handle, *members}, work.driver.name, work.context.kube

    def names_it(content: JsonObject) -> bool:
        return text(content, "spec", "driver") == driver and not handles.isdisjoint(
            objects.named_handles(content)
        )

    is_group = work.names.resource == paths.GROUP_SNAPSHOT_CONTENTS
    resources = (work.names.resource, *((paths.SNAPSHOT_CONTENTS,) if is_group else ()))
    return next((user for one in resources if (user := user_of(kube, one, names_it))), "")


def discard(
    work: ContentPass,
    calls: Calls,
    handle: str,
    members: Sequence[str],
    *,
    blame: Callable[[str], None] | None = None,
) -> Outcome:
    """Deletes a snapshot that no object refers to; if it must be kept, `blame` reports why."""
    if (held := held_back(work)) is not None:
        return held
    if user := _user_of(work, handle, members):
        problem = f"{user} names it"
        _log.warning("the orphaned snapshot is kept", snapshot=handle, err=problem)
        if blame is not None:
            blame(f"failed to delete snapshot {handle}: {quote(problem)}")
        return retry("in use") if work.item else done("in use")
    secrets = secrets_of(work, work.intent)
    work.reach("delete-orphan")
    try:
        calls.delete(work, handle, members, secrets)
    except CsiError as error:
        _log.warning("could not delete the orphaned snapshot yet", snapshot=handle, err=error)
        if blame is not None:
            blame(f"failed to delete snapshot {handle}: {quote(str(error))}")
        return retry(error.code_name)
    _log.warning("deleted the orphaned snapshot", snapshot=handle)
    work.forget()
    return done("cleaned up")


def secrets_of(work: ContentPass, known: Intent | None) -> dict[str, str]:
    """Reads the attempt's secret; returns {} if it can no longer be read."""
    try:
        return work.secret(known.secret if known is not None else None)
    except (RefusedError, AttemptError) as error:
        _log.warning("continuing without secrets", err=error)
        return {}


def is_volume_without_snapshots(work: ContentPass) -> bool:
    """True if the driver's list has no snapshots of the content's volume (SND-032).

    If the driver cannot list snapshots, the result is False.
    """
    if not work.driver.supports("LIST_SNAPSHOTS"):
        return False
    try:
        answer = work.ask(
            "Controller/ListSnapshots",
            csi.ListSnapshotsRequest(source_volume_id=objects.volume_handle(work.item) or ""),
            csi.ListSnapshotsResponse,
        )
    except CsiError:
        return False
    return not answer.entries and not answer.next_token


def ask_for_snapshot(work: ContentPass, wanted: Intent, secrets: Any, **options: Any) -> Any:
    """Calls CreateSnapshot with the intent's request; passes `options` to the call."""
    request = csi.CreateSnapshotRequest(
        name=wanted.name,
        source_volume_id=wanted.volumes[0],
        parameters=wanted.parameters or {},
        secrets=secrets,
        accessibility_requirements=topology.requirement(wanted.allowed),
    )
    method = "Controller/CreateSnapshot"
    return work.ask(method, request, csi.CreateSnapshotResponse, **options).snapshot


def _create(work: ContentPass, known: Intent, secrets: Any) -> tuple[str, tuple[str, ...]]:
    return ask_for_snapshot(work, known, secrets).snapshot_id, ()


def _delete(work: ContentPass, handle: str, _members: Sequence[str], secrets: Any) -> None:
    request = csi.DeleteSnapshotRequest(snapshot_id=handle, secrets=secrets)
    work.ask("Controller/DeleteSnapshot", request, csi.DeleteSnapshotResponse)


SNAPSHOTS = Calls(_create, _delete)

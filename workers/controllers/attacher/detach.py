"""Detaches a volume: unpublish, remove the finalizer, update the status (A-060 to A-069).

In this order a crash between the last two steps repeats nothing. Handle and secret are read from
the PV; if the PV is gone, from the record that the publish left (DA-006).
"""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from csi_client import messages as csi
from workers.controllers.attacher import records, texts, writes
from workers.controllers.attacher.attach import CONFLICT_TRIES, Busy, reread
from workers.controllers.attacher.nodes import annotated_id, earlier_ids, registered_id
from workers.controllers.attacher.request import is_multi_node, unpublish_request
from workers.controllers.attacher.source import (
    AttachError,
    inline_source,
    volume_name,
    volume_source,
)
from workers.controllers.attacher.work import Work, pause
from workers.engine.outcome import blocked, done, wait
from workers.errors import ApiError, LeaseLost, QueueUnavailable, TransientError
from workers.kube.errors import ConflictError, NotFoundError, RefusedError
from workers.observability.logging import get_logger

if TYPE_CHECKING:
    from collections.abc import Mapping

    from workers.engine.outcome import Outcome

_log = get_logger(__name__)

ABANDON_TRIES: Final = 5
MOST_PAUSE_SECONDS: Final = 1.0
"""Longest pause before the second try; each further pause is about twice as long: 26 s in all."""
ABANDON_SECONDS: Final = 120.0
"""No try starts later, so that timeouts cannot extend a reconcile beyond `longest_pass`."""


class Target(NamedTuple):
    """The volume to unpublish, as the driver knows it."""

    handle: str
    secret: tuple[str, str] | None
    is_multi_node: bool


def detach(work: Work) -> Outcome:
    """Unpublish the volume; without our finalizer only a forced key does so (A-060)."""
    if not work.has_finalizer and not work.is_forced:
        return done("detached already")
    try:
        unpublish(work)
        return finish(work)
    except Busy as busy:
        return busy.outcome
    except AttachError as error:
        return work.failed("detachError", error)


def abandon(work: Work) -> Outcome:
    """Unpublish a volume whose attachment disappeared without a detach (DA-033).

    A deletion that the API server began before it stored our finalizer still removes the
    attachment (kubernetes/kubernetes#77988). Only this reconcile knows of the publish: without
    an attachment to confirm it, the state in Redis is not trusted, and the watcher drops it.
    A publish with an unknown outcome is first given time to end (MA-016).
    """
    if not work.is_unheard:
        _note(work, "end-call", records.succeeded(work.lease.mark))
    pause(work.zombie_seconds(work.lease.mark))
    problem, first = "", min(work.settings.retry_interval_start_seconds, MOST_PAUSE_SECONDS)
    begun = time.monotonic()
    for number in range(ABANDON_TRIES):
        pause(first * (2**number - 1))
        if time.monotonic() - begun > ABANDON_SECONDS:
            break
        try:
            _note(work, "end-call", records.succeeded(work.lease.mark))
            unpublish(work)
        except LeaseLost:
            raise
        except Busy as busy:
            problem = busy.outcome.reason
        except AttachError as error:
            problem = error.message
        except (ApiError, TransientError) as error:
            problem = str(error)
        else:
            _note(work, "forget", {})
            return done("attachment went meanwhile")
    message = f"the attachment is gone, the volume may still be on its node: {problem}"
    _log.error("not detached", err=message)
    work.warn("DetachFailed", message)
    # Delete the state again: the watcher may have deleted it before this reconcile wrote it.
    _note(work, "forget", {})
    return done("attachment went meanwhile, and the volume may still be on its node")


def _note(work: Work, step: str, mark: Mapping[str, Any]) -> None:
    """Update the reconcile state. It is no longer needed, so an unavailable Redis is ignored."""
    with suppress(QueueUnavailable):
        work.set_mark(step, mark)


def unpublish(work: Work) -> None:
    """Unpublish from every node id that a publish may have used (A-061, DA-003, MA-032)."""
    known = work.remembered()
    target = find_target(work, known)
    secrets = find_secrets(work, target.secret)
    node_ids = find_node_ids(work, known)
    is_multi = target.is_multi_node
    busy = work.lock_calls("detach", target.handle, node_ids[0], multi_node=is_multi)
    if busy is not None:
        raise Busy(blocked(busy))
    seconds = work.zombie_seconds(known)
    if seconds:
        # An unpublish that races with a publish of a dead worker could leave either state.
        raise Busy(wait(seconds, "a publish of an earlier worker may still run"))
    for node_id in node_ids:
        request = unpublish_request(target.handle, node_id, secrets)
        work.context.effects.reach("unpublish", work.lease)
        work.call("detach", request, csi.ControllerUnpublishVolumeResponse)


def find_target(work: Work, known: Mapping[str, Any]) -> Target:
    """Find the volume in its PV, in the attachment, or in the record of its publish."""
    name = volume_name(work.attachment)
    if not name:
        source = inline_source(work.attachment)
    else:
        busy = work.lock_volume(name)
        if busy is not None:
            raise Busy(blocked(busy))
        volume = work.read_volume(name)
        if volume is None:
            return recorded_target(work, name, known)
        source = volume_source(volume)
        if records.is_of_another(work.attachment, source):
            return recorded_target(work, name, known, is_replaced=True)
    return Target(source.handle, source.secret, is_multi_node(source))


def recorded_target(
    work: Work, name: str, known: Mapping[str, Any], *, is_replaced: bool = False
) -> Target:
    """Take the volume from the record of the publish, because its PV is gone (DA-006).

    If a PV with another handle has replaced it, a record counts only if the attachment's name
    proves it: the other volume may be in use on the same node.

    Raises:
        AttachError: no usable record names the volume.
    """
    found = records.annotated(work.attachment, work.settings.record_annotation)
    if is_replaced and found and not records.proves(work.attachment, str(found["handle"])):
        found = None
    found = found or records.confirmed(known, work.attachment)
    if found is None or found.get("driver") != work.driver.name:
        raise AttachError(
            texts.volume_replaced(name) if is_replaced else texts.volume_missing(name)
        )
    _log.warning("detach by the record of the publish, the volume is another one", volume=name)
    secret = found.get("secret")
    return Target(
        handle=str(found["handle"]),
        secret=(secret[0], secret[1]) if secret else None,
        is_multi_node=False,
    )


def find_secrets(work: Work, reference: tuple[str, str] | None) -> dict[str, str]:
    """Read the publish secret; if it is gone, a flag allows a detach without it (DA-007)."""
    try:
        return work.secrets(reference)
    except AttachError as error:
        if not (error.is_missing and work.settings.detaches_without_missing_secret):
            raise
        _log.warning("detach without secrets", err=error.message)
        return {}


def find_node_ids(work: Work, remembered: Mapping[str, Any]) -> list[str]:
    """The node ids that publishes used; the node's current id only if no id is known."""
    known = [annotated_id(work.attachment), *earlier_ids(work.attachment)]
    known += remembered.get("nodes", ())
    node_ids = [one for one in dict.fromkeys(known) if one]
    return node_ids or [registered_id(work.node, work.read_node(), work.driver.name)]


def finish(work: Work) -> Outcome:
    """Remove the finalizer, then update the status (A-062).

    Raises:
        AttachError: one of the writes was refused; the unpublish is repeated.
    """
    try:
        release(work)
        metadata = work.attachment["metadata"]
        is_gone = metadata.get("deletionTimestamp") and not metadata.get("finalizers")
        if not is_gone and has_attached_status(work):
            body = writes.detached_patch(work.attachment)
            work.patch("save-detached", body, status=True)
    except NotFoundError:
        return done("detached")
    except RefusedError as error:
        if isinstance(error, ConflictError) and work.is_gone():
            return done("attachment was made again")
        raise AttachError(f"could not mark as detached: {error}") from error
    return done("detached")


def release(work: Work) -> None:
    """Remove our finalizer from the attachment and keep all others (DA-014)."""
    for _ in range(CONFLICT_TRIES):
        body = writes.without_finalizer_patch(work.attachment, work.finalizer)
        try:
            return work.patch("release-attachment", body)
        except ConflictError:
            uid = reread(work)["metadata"]["uid"]
            if work.attachment["metadata"]["uid"] != uid:
                raise Busy(done("attachment was made again")) from None
    raise Busy(wait(1.0, "others write the attachment all the time"))


def has_attached_status(work: Work) -> bool:
    """Return True if the status still shows a publication or a detach error."""
    status = work.attachment.get("status") or {}
    return any(status.get(name) for name in ("attached", "attachmentMetadata", "detachError"))

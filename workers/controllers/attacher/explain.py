"""Finds the first cause that applies to an attachment, for `csi-fleet explain va NAME`."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from csi_client.errors import code_name
from workers.controllers.attacher import names
from workers.controllers.attacher.names import Reason
from workers.errors import ApiError
from workers.explain import queueing, remedies, serving
from workers.explain.commands import DESCRIBE, RETRY
from workers.explain.facts import Cause
from workers.explain.generic import Explained
from workers.explain.moves import ADMIN, USER
from workers.explain.serving import Served
from workers.explain.words import duration, stamp
from workers.kube import paths
from workers.kube.errors import NotFoundError, Unreachable
from workers.kube.finalizers import has_finalizer
from workers.queue.inspect import read_key
from workers.translate.fields import is_deleting

if TYPE_CHECKING:
    from collections.abc import Mapping

    from workers.cli.tools import Tools
    from workers.kube.objects import JsonObject
    from workers.queue.inspect import KeyState

ATTACHER: Final = "attacher"
NOBODY: Final = Served(ATTACHER)
_RELEASE: Final = (
    'kubectl patch {object} --type=merge -p \'{{"metadata":{{"finalizers":null}}}}\''
    "  # after you have detached the volume"
)


@dataclass(frozen=True, slots=True)
class AttachmentFacts:
    """The facts about an attachment from which `explain` finds the cause.

    Attributes:
        attachment: the attachment, read live; None if it does not exist.
        driver: the driver's registration; None if no worker runs the attacher for the driver.
        served: the drivers that workers serve, with and without the attacher.
        state: the state of the attachment's key; None if the key is not in the queue.
        watchers: the number of running watchers.
        workers: the number of running worker processes.
        is_node_gone: True if the attachment's node does not exist.
        elsewhere: the name and node of another attachment of the volume; None if there is none.
    """

    name: str
    now: float
    attachment: JsonObject | None = None
    driver: Mapping[str, Any] | None = None
    served: Served = NOBODY
    state: KeyState | None = None
    watchers: int = 0
    workers: int = 0
    is_node_gone: bool = False
    elsewhere: tuple[str, str] | None = None


def explain(tools: Tools, noun: str, namespace: str, name: str) -> Explained:
    """Gather the facts and return the first cause that applies.

    Raises:
        ApiError: the API server does not answer, or refuses to show the attachment.
        QueueUnavailable: Redis does not answer.
    """
    del noun, namespace  # called only for attachments, which have no namespace
    facts = gather(tools, name)
    return Explained(attachment_cause(facts), facts.state)


def gather(tools: Tools, name: str) -> AttachmentFacts:
    """Read the attachment from the API server, and its key and driver from Redis.

    Raises:
        ApiError: the API server does not answer, or refuses to show the attachment.
        QueueUnavailable: Redis does not answer.
    """
    now = time.time()
    try:
        found = tools.kube.get(paths.ATTACHMENTS, name)
    except NotFoundError:
        return AttachmentFacts(name, now)
    spec, records = found["spec"], tools.registry.alive()
    attached = serving.of_controller(records, ATTACHER)
    queue_name, record = next(
        ((queue, one) for queue, one in attached.items() if one.get("name") == spec["attacher"]),
        (spec["attacher"], None),
    )
    kind = names.DETACHMENTS if is_deleting(found) else names.ATTACHMENTS
    uid = found["metadata"]["uid"]
    key = names.attachment_key(queue_name, spec["nodeName"], name, uid, kind)
    return AttachmentFacts(
        name,
        now,
        attachment=found,
        driver=record,
        served=Served.by(records, ATTACHER),
        state=read_key(tools.redis, key),
        watchers=len(tools.presence.alive()),
        workers=len(tools.presence.workers()),
        is_node_gone=_is_gone(tools, str(spec["nodeName"])),
        elsewhere=_elsewhere(tools, found),
    )


def _elsewhere(tools: Tools, attachment: JsonObject) -> tuple[str, str] | None:
    """Return another attachment of the same volume, with its node; None if unknown."""
    spec, status = attachment["spec"], attachment.get("status") or {}
    if not status.get("attachError") or is_deleting(attachment):
        return None
    volume = (spec.get("source") or {}).get("persistentVolumeName")
    try:
        others = [
            (str(one["metadata"]["name"]), str(one["spec"]["nodeName"]))
            for one in tools.kube.list_attachments()
            if (one["spec"].get("source") or {}).get("persistentVolumeName") == volume
            and one["spec"]["nodeName"] != spec["nodeName"]
        ]
    except Unreachable:
        raise
    except ApiError:
        return None
    return min(others, default=None)


def _is_gone(tools: Tools, node: str) -> bool:
    """Return True if the node does not exist; False also if reading it is forbidden."""
    try:
        tools.kube.get_node(node)
    except NotFoundError:
        return True
    except Unreachable:
        raise
    except ApiError:
        return False
    return False


def attachment_cause(facts: AttachmentFacts) -> Cause:
    """Return the first cause that applies."""
    if facts.attachment is None:
        return Cause(
            "not-found",
            f"There is no VolumeAttachment {facts.name}.",
            "Check the name: kubectl get volumeattachments",
        )
    spec = facts.attachment["spec"]
    return _cause(facts, facts.attachment).with_names(
        driver=str(spec["attacher"]),
        node=str(spec["nodeName"]),
        volume=str((spec.get("source") or {}).get("persistentVolumeName") or ""),
    )


def _cause(facts: AttachmentFacts, attachment: JsonObject) -> Cause:
    attacher = str(attachment["spec"]["attacher"])
    if settled := _settled(attachment, names.finalizer(attacher)):
        return settled
    if facts.driver is None:
        return queueing.unserved(attacher, facts.served, workers=facts.workers)
    return _waiting(facts, attachment)


def _settled(attachment: JsonObject, finalizer: str) -> Cause | None:
    """Return why csi-fleet has nothing to do for the attachment now; None if it has work to do."""
    node = attachment["spec"]["nodeName"]
    if is_deleting(attachment) and not has_finalizer(attachment, finalizer):
        others = ", ".join(attachment["metadata"].get("finalizers") or ())
        return Cause(
            "foreign-finalizer",
            f"The volume is detached from node {node}, but the finalizers of other controllers "
            f"keep the VolumeAttachment: {others}.",
            "Wait until these controllers remove their finalizers; then the VolumeAttachment is "
            "gone. If such a controller is no longer installed, remove its finalizer by hand.",
        )
    if (attachment.get("status") or {}).get("attached") and not is_deleting(attachment):
        return Cause("attached", f"The volume is attached to node {node}.", is_problem=False)
    return None


def _waiting(facts: AttachmentFacts, attachment: JsonObject) -> Cause:
    """Return the cause for an attachment that must still be attached or detached."""
    state, word = facts.state, "detach" if is_deleting(attachment) else "attach"
    error = (attachment.get("status") or {}).get(f"{word}Error")
    if state is not None:
        cause = queueing.running(state) or queueing.paused(state)
        if cause := cause or (None if state.fails else queueing.queued(state)):
            return cause
    told = (str(error.get("message") or ""), stamp(str(error.get("time") or ""))) if error else None
    if told or (state is not None and state.fails):
        found = queueing.last_error(state, told)
        if found:
            cause = _failed(facts, attachment, word, *found)
            code = code_name(error["errorCode"]) if error and error.get("errorCode") else ""
            cause = remedies.applied(cause, state, code)
            answer = remedies.answer_of(state, found[0], code)
            if word == "detach" and facts.is_node_gone and answer.code == "NotFound":
                return _of_gone_node(cause)
            return _held_elsewhere(facts, cause)
    if state is not None and (cause := queueing.queued(state)):
        return cause
    if facts.watchers == 0:
        return Cause(
            "no-watcher",
            "No csi-fleet watcher is running, so the VolumeAttachment is not noticed.",
            "Start the watcher; nothing is lost in the meantime.",
        )
    return Cause(
        "not-queued",
        f"The volume should be {word}ed, but the VolumeAttachment is not queued.",
        "Wait for the next resync (--resync-period), which queues the VolumeAttachment.",
    )


def _of_gone_node(cause: Cause) -> Cause:
    """Add the remedy for a detach that the driver keeps refusing because the node is gone."""
    return replace(
        cause,
        advice=f"{cause.advice} If the storage backend shows that no node has the volume, remove "
        "the finalizer from the VolumeAttachment.",
        templates=(*(cause.templates or ()), _RELEASE),
    )


def _held_elsewhere(facts: AttachmentFacts, cause: Cause) -> Cause:
    """If the volume is still attached to another node, add that node to the cause."""
    if facts.elsewhere is None or cause.move != USER:
        return cause
    name, node = facts.elsewhere
    return replace(
        cause,
        text=f"{cause.text.rstrip('.')}. The volume has a VolumeAttachment for node {node} too "
        f"({name}).",
        templates=(
            f"csi-fleet explain va {name}",
            f"kubectl get pods -A --field-selector=spec.nodeName={node}",
            RETRY,
        ),
    )


def _failed(
    facts: AttachmentFacts, attachment: JsonObject, word: str, message: str, at: float
) -> Cause:
    """Return a cause with the last attempt's error and the remedy."""
    state = facts.state
    again = queueing.next_try(state) if state is not None else ""
    if state is not None and (cause := queueing.defect(state, message, again)):
        return cause
    node = attachment["spec"]["nodeName"]
    # Every Redis user can write the memo, so only a known reason is accepted from it.
    noted = str(queueing.memo_of(state).get("reason") or "")
    reason = Reason(noted) if noted in set(Reason) else Reason.OTHER
    code, advice = str(reason) or f"{word}-failed", again
    more: dict[str, Any] = {}
    if reason == Reason.VOLUME_MISSING:
        advice = (
            "Restore the PersistentVolume; the attach then starts automatically. Or delete the "
            "claim that names it, and the pods of that claim."
        )
        if word == "detach":
            advice = (
                "The PersistentVolume was removed by force. Detach the volume in the storage "
                "backend, then remove the finalizer from the VolumeAttachment."
            )
            more = {"move": ADMIN, "templates": (DESCRIBE, _RELEASE)}
    elif word == "detach" and facts.is_node_gone:
        message = f"{message}. Node {node} no longer exists."
    elif word == "attach" and facts.is_node_gone:
        code = "node-gone"
        message = f"node {node} does not exist. The error was: {message}"
        advice = (
            "Delete the pod that was scheduled to that node; kube-controller-manager then deletes "
            "the VolumeAttachment."
        )
    elif reason == Reason.DRIVER_NOT_ON_NODE:
        advice = (
            f"Check the driver's pod on node {node}; the attach starts automatically when the "
            "driver registers there."
        )
    elif reason in {Reason.SECRET, Reason.SECRET_MISSING}:
        code = Reason.SECRET
        advice = f"Create the secret, or allow csi-fleet to read it. {again}"
        more = {"names": queueing.secret_names(message)[0]}
    age = duration(max(0.0, facts.now - at))
    return Cause(
        code,
        f"The last {word} failed {age} ago: {message}",
        advice,
        state.due if state is not None else 0.0,
        **more,
    )

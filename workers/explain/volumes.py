"""Finds the first reason why a volume waits, from facts alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from workers.constants import FINALIZER_VOLUME
from workers.explain import deletion, queueing
from workers.explain.facts import Cause, VolumeFacts
from workers.explain.words import duration
from workers.translate.fields import has_finalizer

if TYPE_CHECKING:
    from collections.abc import Mapping


def volume_cause(facts: VolumeFacts) -> Cause:
    """Return the first cause that applies to the volume."""
    if facts.volume is None:
        if facts.state is not None and facts.state.unsaved is not None:
            found = queueing.last_error(facts.state, facts.last_error)
            why = f": {found[0]}" if found else "."
            return Cause(
                "save-refused",
                f"The volume exists in the storage, but the API server does not take it{why}",
                "Remove what refuses it; it is tried again by itself.",
                facts.state.due,
            )
        return Cause(
            "not-found", f"There is no volume {facts.name}.", "Check the name: kubectl get pv"
        )
    settled = _settled(facts, facts.volume)
    return settled or _deletion(facts)


def _settled(facts: VolumeFacts, volume: Mapping[str, Any]) -> Cause | None:
    """Return the cause if csi-fleet has nothing to do for the volume now, else None."""
    spec, metadata = volume.get("spec") or {}, volume["metadata"]
    phase = (volume.get("status") or {}).get("phase") or ""
    policy = spec.get("persistentVolumeReclaimPolicy")
    if not facts.owner:
        return Cause(
            "not-ours",
            "No provisioner made this volume; csi-fleet leaves it alone.",
            is_problem=False,
        )
    if phase == "Bound" and not metadata.get("deletionTimestamp"):
        claim = spec.get("claimRef") or {}
        return Cause(
            "in-use",
            f"It is bound to claim {claim.get('namespace')}/{claim.get('name')}.",
            is_problem=False,
        )
    if phase == "Bound":
        return Cause(
            "still-bound",
            "It is marked as deleted, but a claim is still bound to it.",
            "It is deleted once the claim is gone.",
        )
    is_ours = has_finalizer(volume, FINALIZER_VOLUME)
    if not is_ours and (cause := deletion.held(volume)):
        return cause
    if policy != "Delete" and not (is_ours and metadata.get("deletionTimestamp")):
        return Cause(
            "kept",
            f"Its reclaim policy is {policy}: it is kept when its claim goes.",
            "Set persistentVolumeReclaimPolicy to Delete if it should be deleted.",
            is_problem=False,
        )
    if phase not in {"Released", "Failed"} and not metadata.get("deletionTimestamp"):
        return Cause("waiting", f"Its phase is {phase or 'not set yet'}.", is_problem=False)
    return None


def _deletion(facts: VolumeFacts) -> Cause:
    """Return the cause for a volume that should be deleted."""
    if facts.driver is None:
        return queueing.unserved(facts.owner, facts.served, workers=facts.workers)
    if facts.attachments:
        node = min(facts.attachments.values())
        return Cause(
            "attached",
            f"It is still attached to node {node}.",
            "It is deleted when the VolumeAttachment is gone; see the attacher if this lasts.",
        )
    state = facts.state
    if state is not None:
        for cause in (
            queueing.running(state),
            queueing.paused(
                state,
                facts.class_pause,
                facts.class_pause_until,
                paused_class=facts.class_name,
            ),
            None if state.fails else queueing.queued(state),
        ):
            if cause is not None:
                return cause
        found = queueing.last_error(state, facts.last_error)
        if found and (state.fails or state.due):
            again = queueing.next_try(state)
            if cause := queueing.defect(state, found[0], again):
                return cause
            age = duration(max(0.0, facts.now - found[1]))
            return Cause(
                "driver-error" if "rpc error" in found[0] else "attempt-failed",
                f"The last deletion failed {age} ago: {found[0]}",
                again,
                state.due,
            )
        if cause := queueing.queued(state):
            return cause
    if facts.watchers == 0:
        return Cause(
            "no-watcher",
            "No csi-fleet watcher is alive, so its release is not seen.",
            "Start the watcher; nothing is lost meanwhile.",
        )
    return Cause(
        "not-queued",
        "It is not queued although it should be deleted.",
        "csi-fleet retry pv NAME queues it; the resync does it too, by --resync-period.",
    )

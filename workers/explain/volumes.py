"""Finds, from facts alone, the first reason that a volume is waiting."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from workers.constants import FINALIZER_VOLUME
from workers.explain import deletion, queueing, remedies
from workers.explain.facts import Cause, VolumeFacts
from workers.explain.words import WHEN_REJECTED, duration
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
                "The volume exists in the storage backend, but the API server rejects its "
                f"PersistentVolume{why}",
                f"{WHEN_REJECTED}Saving the PersistentVolume is retried automatically.",
                facts.state.due,
            )
        return Cause(
            "not-found", f"There is no volume {facts.name}.", "Check the name: kubectl get pv"
        )
    cause = _settled(facts, facts.volume) or _deletion(facts)
    return cause.with_names(driver=facts.owner, **{"class": facts.class_name})


def settled_cause(facts: VolumeFacts) -> Cause | None:
    """Return the cause if the objects alone show one; None if csi-fleet has work to do."""
    return _settled(facts, facts.volume) if facts.volume is not None else volume_cause(facts)


def _claim_of(volume: Mapping[str, Any]) -> str:
    """Return the namespace and name of the claim that the volume is bound to."""
    claim = (volume.get("spec") or {}).get("claimRef") or {}
    return f"{claim.get('namespace')}/{claim.get('name')}"


def _settled(facts: VolumeFacts, volume: Mapping[str, Any]) -> Cause | None:
    """Return a cause if csi-fleet has nothing to do for the volume now, else None."""
    spec, metadata = volume.get("spec") or {}, volume["metadata"]
    phase = (volume.get("status") or {}).get("phase") or ""
    policy = spec.get("persistentVolumeReclaimPolicy")
    if not facts.owner:
        return Cause(
            "not-ours",
            "No provisioner created this volume, so csi-fleet does not change it.",
            is_problem=False,
        )
    if phase == "Bound" and facts.is_claim_deleting:
        return Cause(
            "claim-terminating",
            f"The volume is bound to claim {_claim_of(volume)}, which is being deleted. When "
            f"the claim is gone, the reclaim policy {policy} applies.",
            "Check why the claim still exists.",
        )
    if phase == "Bound" and not metadata.get("deletionTimestamp"):
        return Cause(
            "in-use",
            f"The volume is bound to claim {_claim_of(volume)}.",
            is_problem=False,
        )
    if phase == "Bound":
        return Cause(
            "still-bound",
            f"The volume was marked for deletion, but claim {_claim_of(volume)} is still bound to "
            f"it. When the claim is gone, the reclaim policy {policy} applies.",
            "The deletion cannot be cancelled. If the data is still needed, copy it to another "
            "claim. Then delete the claim.",
        )
    is_ours = has_finalizer(volume, FINALIZER_VOLUME)
    if not is_ours and (cause := deletion.held(volume)):
        return cause
    if phase == "Available" and not metadata.get("deletionTimestamp"):
        claim = spec.get("claimRef")
        whom = f"reserved for claim {_claim_of(volume)}" if claim else "free"
        return Cause(
            "available",
            f"The volume is {whom} and is waiting for a claim. It is bound when a claim names it "
            "in spec.volumeName, or requests what it offers.",
            is_problem=False,
        )
    if policy != "Delete" and not (is_ours and metadata.get("deletionTimestamp")):
        return Cause(
            "kept",
            f"The volume's reclaim policy is {policy}, so the volume is kept after its claim is "
            "deleted.",
            "If the volume should be deleted, set its persistentVolumeReclaimPolicy to Delete.",
            is_problem=False,
        )
    if phase not in {"Released", "Failed"} and not metadata.get("deletionTimestamp"):
        return Cause(
            "waiting", f"The phase of the volume is {phase or 'not set yet'}.", is_problem=False
        )
    return None


def _deletion(facts: VolumeFacts) -> Cause:
    """Return the cause for a volume that should be deleted."""
    if facts.driver is None:
        return queueing.unserved(facts.owner, facts.served, workers=facts.workers)
    if facts.attachments:
        name, node = min(facts.attachments.items())
        return Cause(
            "still-attached",
            f"The volume is still attached to node {node} (VolumeAttachment {name}), so it is not "
            "deleted yet.",
            "Wait until the VolumeAttachment is gone; then the volume is deleted. If this "
            "persists, run the next command: it shows why the volume is not detached.",
            names={"attachment": name, "node": node},
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
            secret, problem = queueing.secret_names(found[0])
            if secret:
                return Cause(
                    "secret-missing",
                    f"The secret {secret['secret_namespace']}/{secret['secret']}, which the driver "
                    f"needs to delete the volume, could not be read {age} ago: {problem}",
                    f"Create the secret, or allow csi-fleet to read it. {again}",
                    state.due,
                    names=secret,
                )
            return Cause(
                "driver-error" if remedies.answer_of(state, found[0]).code else "attempt-failed",
                f"The last deletion failed {age} ago: {found[0]}",
                again,
                state.due,
            )
        if cause := queueing.queued(state):
            return cause
    if facts.watchers == 0:
        return Cause(
            "no-watcher",
            "No csi-fleet watcher is running, so the release of the volume is not noticed.",
            "Start the watcher; nothing is lost in the meantime.",
        )
    return Cause(
        "not-queued",
        "The volume should be deleted, but it is not queued.",
        f"To queue the volume now, run csi-fleet retry pv {facts.name}. The next resync "
        "(--resync-period) also queues it.",
    )

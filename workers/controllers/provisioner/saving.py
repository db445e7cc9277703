"""Saves a provisioned volume as a PV and retries until it succeeds (M-011, L-080, L-084).

The full PV is stored in Redis before the first try, so a crash does not cause a second
CreateVolume. A refusal by the API server is never by itself a reason to delete the volume from the
storage system.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from workers import constants as k
from workers.controllers.provisioner import measure
from workers.controllers.provisioner.sourcing import unprotect_snapshot
from workers.engine.outcome import Action, Outcome, done, retry, wait
from workers.engine.steps import Step
from workers.errors import ApiError, AttemptError, IgnoredError
from workers.kube.errors import (
    AlreadyExistsError,
    AwayError,
    InvalidError,
    NotFoundError,
)
from workers.migration.to_csi import storage_of

if TYPE_CHECKING:
    from workers.controllers.provisioner.work import ClaimWork
    from workers.kube.objects import JsonObject

# Back-off for an unsaved PV (L-080). Upstream starts at 5 ms; 100 ms spares a struggling API
# server.
SAVE_BASE_SECONDS: Final = 0.1
SAVE_CAP_SECONDS: Final = 1000.0
# If a call took this long, the claim may be gone, so it is read again before an event on it is
# recorded.
STALE_AFTER_SECONDS: Final = 1.0
# The API server's status for a failing webhook and for an object that is too large for etcd. It
# concerns this PV, whereas the other 5xx statuses concern the server (D-040).
INTERNAL_ERROR: Final = 500
TOO_LARGE: Final = 413


def save(
    work: ClaimWork, claim: JsonObject, volume: JsonObject, live: JsonObject | None
) -> Outcome:
    """Creates the PV and records an event on the claim.

    Args:
        work: the current reconcile.
        claim: the claim for which the volume was created; it may already be gone.
        volume: the complete PV.
        live: the claim as it was read in this reconcile; None if it is gone.
    """
    name = volume["metadata"]["name"]
    if work.is_elsewhere:
        found = existing(work, name)
        if is_going(found) or claim_uid(found) != claim_uid(volume):
            # If the nodes share the storage system, the other node's PV may later refer to this
            # volume.
            return later("the claim waits for another node's volume")
        same = is_same(found, volume)
        return _finished(work, "another node's volume") if same else unwanted(work, volume)
    work.runtime.effects.reach(Step.SAVE_VOLUME, work.lease)
    try:
        work.runtime.effects.kube.create_volume(volume)
    except AlreadyExistsError:
        found = existing(work, name)
        if is_going(found):
            return later(f"an earlier volume {name} is still being deleted")
        if not is_same(found, volume):
            if work.driver.settings.node.enabled and claim_uid(found) == claim_uid(volume):
                return unwanted(work, volume)  # the claim has another node's volume
            return refused(
                work,
                claim,
                f"persistentvolumes {name!r} already exists and belongs to another claim or "
                "volume. Delete it or change --volume-name-uuid-length",
            )
    except ApiError as error:
        text = f"failed to save volume {name}: {error}"
        if isinstance(error, AwayError) and error.status != INTERNAL_ERROR:
            return later(text)
        outcome = refused(work, claim, text)
        return unsavable(work, volume, live) if is_about_volume(error) else outcome
    return saved(work, claim, name, live)


def saved(work: ClaimWork, claim: JsonObject, name: str, live: JsonObject | None) -> Outcome:
    """Records an event on the claim and forgets the intent, now that the PV is saved."""
    unprotect_snapshot(work, claim)
    if is_still_there(work, live):
        text = f"Successfully provisioned volume {name}"
        work.event(claim, "Normal", k.REASON_PROVISIONING_SUCCEEDED, text)
    measure.saved(work, claim)
    work.runtime.effects.reach(Step.FORGET_INTENT, work.lease)
    return ended(work, "provisioned")


def ended(work: ClaimWork, reason: str) -> Outcome:
    """Ends a saved claim's attempt once no dead worker's call can still be in flight."""
    seconds = work.overtaken_seconds()
    if seconds > 0 and work.record is not None:
        work.record = work.own.safekeeping.keep_saved(work.lease, work.record)
        return wait(seconds, "saved; the call of a dead process may still be running")
    return _finished(work, reason)


def resume(work: ClaimWork, volume: JsonObject, live: JsonObject | None) -> Outcome:
    """Saves a volume that an earlier reconcile created, without a second CreateVolume (M-011)."""
    return save(work, claim_of(volume, live), volume, live)


def claim_of(volume: JsonObject, live: JsonObject | None) -> JsonObject:
    """Return the live claim, or a stub of the claim built from the volume's claimRef."""
    reference = volume["spec"]["claimRef"]
    return live or {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {name: reference.get(name) for name in ("namespace", "name", "uid")},
        "spec": {},
    }


def exists(work: ClaimWork, claim: JsonObject, *, by_any_name: bool = False) -> bool:
    """True if the claim's PV already exists (L-040 step 1, with the check of L-084).

    Args:
        work: the current reconcile.
        claim: the claim, as far as it is known.
        by_any_name: whether to search all PVs if none has the name that the flags give, because a
            worker with different flags may have saved the PV under another name.
    """
    uid = claim["metadata"].get("uid")
    try:
        return bool(claim_uid(work.runtime.kube.get_volume(work.volume)) == uid)
    except NotFoundError:
        return by_any_name and bool(work.user_of(lambda volume: claim_uid(volume) == uid))


def existing(work: ClaimWork, name: str) -> JsonObject:
    """Return the PV that has the name now, or an empty object if there is none."""
    try:
        return work.runtime.kube.get_volume(name)
    except NotFoundError:
        return {}


def is_going(found: JsonObject) -> bool:
    """True if the PV is being deleted or gone, so that it cannot be the PV of a new volume.

    Otherwise the new volume would be left without a PV, because the PV's own volume may already be
    deleted (upstream issue 1469).
    """
    return not found or "deletionTimestamp" in found["metadata"]


def is_same(found: JsonObject, volume: JsonObject) -> bool:
    """True if the existing PV is the one that csi-fleet tried to save."""
    return claim_uid(found) == claim_uid(volume) and storage_of(found)[1] == storage_of(volume)[1]


def is_still_there(work: ClaimWork, live: JsonObject | None) -> bool:
    """True if the claim still exists; reads it again only if the last read is too old."""
    if live is None:
        return False
    if time.monotonic() - work.started < STALE_AFTER_SECONDS:
        return True
    try:
        return work.read_claim() is not None
    except ApiError:
        return True


def refused(work: ClaimWork, claim: JsonObject, message: str) -> Outcome:
    """Records the API server's refusal as an event and schedules a retry of the save (D-040)."""
    work.event(claim, "Warning", k.REASON_PROVISIONING_FAILED, message)
    work.keep_copy()
    return later(message)


def is_about_volume(error: ApiError) -> bool:
    """True if the PV itself is invalid, so that the API server will refuse it again.

    A refusal by admission does not count, because the policy or the webhook may change.
    """
    return (
        isinstance(error, InvalidError)
        or error.status == TOO_LARGE
        or "request is too large" in error.message
    )


def unsavable(work: ClaimWork, volume: JsonObject, live: JsonObject | None) -> Outcome:
    """Drops a PV that the API server will never accept, so that the driver is called again (L-083).

    The next call uses the same name. If the claim is gone and the policy is Delete, the volume is
    deleted instead, because nothing needs the volume and no PV will ever cause its deletion.
    """
    policy = volume["spec"].get("persistentVolumeReclaimPolicy")
    if live is None and policy in (None, "", "Delete"):
        return unwanted(work, volume)
    work.runtime.effects.reach(Step.RECORD_VOLUME, work.lease)
    work.own.intents.of(work.lease.key.driver).delete_pv(work.lease.domain)
    measure.failed(work, claim_of(volume, live))
    return retry("unsavable")


def unwanted(work: ClaimWork, volume: JsonObject) -> Outcome:
    """Deletes a volume that no claim uses, because no PV will ever cause its deletion."""
    if (seconds := work.overtaken_seconds()) > 0:
        return wait(seconds, "the call of a dead process may make it once more")
    try:
        work.backend.delete(work, volume)
    except (AttemptError, IgnoredError) as error:
        return later(f"volume without PV not deleted: {error}")
    work.runtime.effects.reach(Step.FORGET_INTENT, work.lease)
    return _finished(work, "deleted without PV")


def _finished(work: ClaimWork, reason: str) -> Outcome:
    """Drops the copy and then the key's record, because a copy that remains would be restored."""
    record, keeping = work.record, work.own.safekeeping
    if record is not None and record.has_copy and not keeping.drop_copy(work.lease):
        # If the PV is deleted before the copy is removed, the mark prevents the PV from being saved
        # again.
        work.record = keeping.keep_saved(work.lease, record)
        return later("copy of the intent stays")
    return done(reason, finish_intent=True)


def later(message: str) -> Outcome:
    """Schedules a retry of the save, with the back-off for unsaved PVs."""
    return Outcome(
        Action.RETRY,
        base_seconds=SAVE_BASE_SECONDS,
        cap_seconds=SAVE_CAP_SECONDS,
        may_give_up=False,
        reason=message,
    )


def claim_uid(volume: JsonObject) -> str:
    """Return the UID of the claim that the volume names; "" if it names no claim."""
    return ((volume.get("spec") or {}).get("claimRef") or {}).get("uid") or ""

"""Saving a provisioned volume as PV, for as long as it takes (M-011, L-080, L-084).

The full PV stands in Redis before the first try, so a crash costs no second CreateVolume, and the
volume in the storage is never deleted because the API server refuses.
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
    NotFoundError,
)
from workers.migration.to_csi import storage_of

if TYPE_CHECKING:
    from workers.controllers.provisioner.work import ClaimWork
    from workers.kube.objects import JsonObject

# Back-off of an unsaved PV (L-080): upstream starts at 5 ms; 100 ms spares a struggling API server.
SAVE_BASE_SECONDS: Final = 0.1
SAVE_CAP_SECONDS: Final = 1000.0
# After a call this long the claim may have gone; it is read again before it gets its event.
STALE_AFTER_SECONDS: Final = 1.0
# The API server's status for a webhook that fails and for an object too large for etcd: an answer
# about this PV, unlike the other 5xx, which are about the server (D-040).
INTERNAL_ERROR: Final = 500


def save(
    work: ClaimWork, claim: JsonObject, volume: JsonObject, live: JsonObject | None
) -> Outcome:
    """Creates the PV and tells the claim.

    Args:
        work: the pass under way.
        claim: the claim the volume was made for, possibly gone by now.
        volume: the complete PV.
        live: the claim as read in this pass; None if it is gone.
    """
    name = volume["metadata"]["name"]
    if work.is_elsewhere:
        found = existing(work, name)
        if is_going(found) or claim_uid(found) != claim_uid(volume):
            # In a storage that nodes share it may become the other node's.
            return later("the claim waits for another node's volume")
        same = is_same(found, volume)
        return _finished(work, "another node's volume") if same else unwanted(work, volume)
    work.runtime.effects.reach(Step.SAVE_VOLUME, work.lease)
    try:
        work.runtime.effects.kube.create_volume(volume)
    except AlreadyExistsError:
        found = existing(work, name)
        if is_going(found):
            return later(f"volume {name} of an earlier life is still being deleted")
        if not is_same(found, volume):
            if work.driver.settings.node.enabled and claim_uid(found) == claim_uid(volume):
                return unwanted(work, volume)  # the claim has what another node made
            return refused(
                work,
                claim,
                f"persistentvolumes {name!r} already exists and belongs to another "
                "claim or volume; delete it or change --volume-name-uuid-length",
            )
    except ApiError as error:
        text = f"failed to save volume {name}: {error}"
        if isinstance(error, AwayError) and error.status != INTERNAL_ERROR:
            return later(text)
        outcome = refused(work, claim, text)
        return unsavable(work, volume, live) if is_about_volume(error) else outcome
    return saved(work, claim, name, live)


def saved(work: ClaimWork, claim: JsonObject, name: str, live: JsonObject | None) -> Outcome:
    """The PV exists: the claim is told and nothing is remembered any more."""
    unprotect_snapshot(work, claim)
    if is_still_there(work, live):
        text = f"Successfully provisioned volume {name}"
        work.event(claim, "Normal", k.REASON_PROVISIONING_SUCCEEDED, text)
    measure.saved(work, claim)
    work.runtime.effects.reach(Step.FORGET_INTENT, work.lease)
    return ended(work, "provisioned")


def ended(work: ClaimWork, reason: str) -> Outcome:
    """The claim has its volume: the record goes once no overtaken call may run any more."""
    seconds = work.overtaken_seconds()
    if seconds > 0 and work.record is not None:
        work.record = work.own.safekeeping.keep_saved(work.lease, work.record)
        return wait(seconds, "saved; the call of a dead process may still run")
    return _finished(work, reason)


def resume(work: ClaimWork, volume: JsonObject, live: JsonObject | None) -> Outcome:
    """Saves a volume that an earlier pass made: no CreateVolume (M-011)."""
    return save(work, claim_of(volume, live), volume, live)


def claim_of(volume: JsonObject, live: JsonObject | None) -> JsonObject:
    """The live claim, else as much of it as the volume knows."""
    reference = volume["spec"]["claimRef"]
    return live or {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {name: reference.get(name) for name in ("namespace", "name", "uid")},
        "spec": {},
    }


def exists(work: ClaimWork, claim: JsonObject, *, by_any_name: bool = False) -> bool:
    """True if the claim's PV is there already (L-040 step 1, with the check of L-084).

    Args:
        work: the pass under way.
        claim: the claim, as far as it is known.
        by_any_name: looks through all PVs if none has the name that the flags give: a worker with
            other flags may have saved it.
    """
    uid = claim["metadata"].get("uid")
    try:
        return bool(claim_uid(work.runtime.kube.get_volume(work.volume)) == uid)
    except NotFoundError:
        return by_any_name and bool(work.user_of(lambda volume: claim_uid(volume) == uid))


def existing(work: ClaimWork, name: str) -> JsonObject:
    """The PV that has the name now; empty if it is gone again."""
    try:
        return work.runtime.kube.get_volume(name)
    except NotFoundError:
        return {}


def is_going(found: JsonObject) -> bool:
    """True if the PV is being deleted or gone: it is no home for a volume that exists.

    Its backend volume may be deleted already, and then ours would be left without a PV (upstream
    issue 1469).
    """
    return not found or "deletionTimestamp" in found["metadata"]


def is_same(found: JsonObject, volume: JsonObject) -> bool:
    """True if the PV of that name is the one we tried to save."""
    return claim_uid(found) == claim_uid(volume) and storage_of(found)[1] == storage_of(volume)[1]


def is_still_there(work: ClaimWork, live: JsonObject | None) -> bool:
    """True if the claim exists; asks again only when what we know is old."""
    if live is None:
        return False
    if time.monotonic() - work.started < STALE_AFTER_SECONDS:
        return True
    try:
        return work.read_claim() is not None
    except ApiError:
        return True


def refused(work: ClaimWork, claim: JsonObject, message: str) -> Outcome:
    """The API server said no: the user sees it, the save goes on (D-040)."""
    work.event(claim, "Warning", k.REASON_PROVISIONING_FAILED, message)
    work.keep_copy()
    return later(message)


def is_about_volume(error: ApiError) -> bool:
    """True if the PV itself is wrong: the same PV will be refused again."""
    return error.status in {400, 413, 422} or "request is too large" in error.message


def unsavable(work: ClaimWork, volume: JsonObject, live: JsonObject | None) -> Outcome:
    """The driver's answer makes no valid PV: only another answer can help (L-083).

    So the driver is asked again by the same name. Once the claim is gone nobody waits for the
    volume, and no PV will ever lead to its deletion: it is deleted here (policy Delete).
    """
    policy = volume["spec"].get("persistentVolumeReclaimPolicy")
    if live is None and policy in (None, "", "Delete"):
        return unwanted(work, volume)
    work.runtime.effects.reach(Step.RECORD_VOLUME, work.lease)
    work.own.intents.delete_pv(work.lease.domain)
    measure.failed(work, claim_of(volume, live))
    return retry("unsavable")


def unwanted(work: ClaimWork, volume: JsonObject) -> Outcome:
    """Deletes a volume that nobody ever got and that no PV will lead to."""
    if (seconds := work.overtaken_seconds()) > 0:
        return wait(seconds, "the call of a dead process may make it once more")
    try:
        work.backend.delete(work, volume)
    except (AttemptError, IgnoredError) as error:
        return later(f"volume without PV not deleted: {error}")
    work.runtime.effects.reach(Step.FORGET_INTENT, work.lease)
    return _finished(work, "deleted without PV")


def _finished(work: ClaimWork, reason: str) -> Outcome:
    """The record goes with the key, but never before its copy: that one would come back."""
    record, keeping = work.record, work.own.safekeeping
    if record is not None and record.has_copy and not keeping.drop_copy(work.lease):
        # The PV must not be saved again: it may be deleted before the copy goes.
        work.record = keeping.keep_saved(work.lease, record)
        return later("copy of the intent stays")
    return done(reason, finish_intent=True)


def later(message: str) -> Outcome:
    """Try to save again with the unsaved volumes' own back-off."""
    return Outcome(
        Action.RETRY,
        base_seconds=SAVE_BASE_SECONDS,
        cap_seconds=SAVE_CAP_SECONDS,
        may_give_up=False,
        reason=message,
    )


def claim_uid(volume: JsonObject) -> str:
    """UID of the claim the volume is for; empty if it names none."""
    return ((volume.get("spec") or {}).get("claimRef") or {}).get("uid") or ""

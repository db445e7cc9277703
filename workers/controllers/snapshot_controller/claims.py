"""Prevents deletion of a claim while snapshots are being taken from it (SNC-060 to SNC-062).

The claim has a finalizer for this purpose, and a lock on the claim is held whenever the finalizer
is checked or written. Without the lock, as in snapshot-controller, one snapshot can find the
finalizer present while another snapshot's reconcile is removing it (SND-018).
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from workers.constants import FINALIZER_CLAIM_AS_SOURCE
from workers.controllers.snapshot_controller.decide import uses_claim
from workers.controllers.snapshot_controller.work import ObjectPass
from workers.engine.outcome import Outcome, done
from workers.errors import AttemptError, State
from workers.kube import paths
from workers.kube.errors import ConflictError, NotFoundError, RefusedError
from workers.queue.locks import Lock
from workers.translate import snapshot_objects as objects
from workers.translate.fields import Json, has_finalizer, is_deleting

if TYPE_CHECKING:
    from workers.engine.context import Context
    from workers.kube.objects import JsonObject
    from workers.queue.keys import Key
    from workers.queue.leases import Lease


def claim_lock(namespace: str, name: str) -> Lock:
    """Return the lock for checking or changing a claim's finalizer (SNQ-003)."""
    return Lock(f"pvc:{namespace}/{name}")


def update_failed(name: str, cause: object) -> AttemptError:
    """Return the error for a failed write, with snapshot-controller's message."""
    message = f"snapshot controller failed to update {name} on API server: {cause}"
    return AttemptError(message, State.NO_CHANGE)


def hold(work: ObjectPass) -> JsonObject:
    """Locks the source claim until `let_go` or the end of the reconcile, and reads the claim.

    Raises:
        AttemptError: the claim is missing.
        Ended: another snapshot of the claim holds the lock.
    """
    name = objects.source_claim(work.item) or ""
    work.acquire(claim_lock(work.namespace, name))
    claim = work.find(paths.CLAIMS, name, work.namespace)
    if claim is None:
        raise update_failed(work.name, "cannot get claim from snapshot")
    return claim


def let_go(work: ObjectPass) -> None:
    """Unlocks the claim once the snapshot content exists.

    From then on, the content shows that the snapshot is using the claim.
    """
    name = objects.source_claim(work.item) or ""
    work.context.queue.unlock(work.lease, claim_lock(work.namespace, name).name)


def protect(work: ObjectPass, claim: Json) -> None:
    """Adds the finalizer to a claim that is already locked (SNC-060).

    Raises:
        AttemptError: the claim is being deleted, or the API server refuses the write.
    """
    if has_finalizer(claim, FINALIZER_CLAIM_AS_SOURCE):
        return
    name = objects.name_of(claim)
    if is_deleting(claim):
        raise update_failed(name, "cannot add finalizer on claim because it is being deleted")
    work.reach("protect-claim")
    kube = work.context.effects.kube
    try:
        kube.add_finalizer(paths.CLAIMS, claim, FINALIZER_CLAIM_AS_SOURCE)
    except NotFoundError:
        raise update_failed(work.name, "cannot get claim from snapshot") from None
    except RefusedError as error:
        raise update_failed(name, error) from error


def unprotect(work: ObjectPass, name: str, *, except_uid: str = "") -> bool:
    """Removes the finalizer if no snapshot needs the claim (SNC-061, SNC-062).

    Args:
        work: the reconcile of a snapshot of the claim, or of the claim itself.
        name: the claim's name; "" for a snapshot without a claim.
        except_uid: the UID of a snapshot to leave out, because it is being deleted.

    Returns:
        False if a snapshot needs the claim.

    Raises:
        ApiError: the finalizer could not be removed.
        Ended: a snapshot of the claim holds the lock.
    """
    claim = work.find(paths.CLAIMS, name, work.namespace)
    if claim is None or not has_finalizer(claim, FINALIZER_CLAIM_AS_SOURCE):
        return True
    lock = claim_lock(work.namespace, name)
    work.acquire(lock)
    snapshots = work.context.kube.list_snapshots(work.namespace)
    is_used = any(
        uses_claim(one, name, except_uid=except_uid) and _has_begun(work, one) for one in snapshots
    )
    if not is_used:
        work.reach("unprotect-claim")
        kube = work.context.effects.kube
        with suppress(NotFoundError, ConflictError):  # the claim is gone or was recreated
            kube.remove_finalizer(paths.CLAIMS, claim, FINALIZER_CLAIM_AS_SOURCE)
    work.context.queue.unlock(work.lease, lock.name)
    return not is_used


def _has_begun(work: ObjectPass, snapshot: Json) -> bool:
    """True if a VolumeSnapshotContent exists for the snapshot (SNC-061).

    Until it has a content, the snapshot does not need its claim. It may never get a content, for
    example if its class is missing. The content is created while the claim is locked, so no content
    can be created during this check.
    """
    if objects.bound_content(snapshot):
        return True
    return work.find_content(objects.content_name(snapshot)) is not None


def sync_source(context: Context, key: Key, lease: Lease) -> Outcome:
    """Removes a finalizer that snapshots left on a claim, if no snapshot needs it (SNQ-013).

    A snapshot's own reconcile can leave the finalizer behind for three reasons: two snapshots were
    deleted together and each counted the other as a user of the claim, a reconcile died half-way,
    or a late write arrived after the last check.
    """
    work = ObjectPass(context, key, lease, paths.CLAIMS)
    return done("released" if unprotect(work, work.name) else "a snapshot needs it")

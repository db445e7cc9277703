"""The finalizer that keeps a claim while snapshots are taken from it (SNC-060 to SNC-062).

One lock per claim is held around each look and write: in the reference one snapshot finds the
finalizer there while another takes it away (SND-018).
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from workers.constants import FINALIZER_CLAIM_AS_SOURCE
from workers.controllers.snapshot_controller.decide import uses_claim
from workers.controllers.snapshot_controller.work import Busy, ObjectPass
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
    """Who looks at or changes the finalizer of a claim (SNQ-003)."""
    return Lock(f"pvc:{namespace}/{name}")


def update_failed(name: str, cause: object) -> AttemptError:
    """The reference's words for a write that could not be done."""
    message = f"snapshot controller failed to update {name} on API server: {cause}"
    return AttemptError(message, State.NO_CHANGE)


def hold(work: ObjectPass) -> JsonObject:
    """Lock and read the source claim of a snapshot, until `let_go` or the end of the pass.

    Raises:
        AttemptError: the claim is missing.
        Busy: another snapshot of the claim is at it.
    """
    name = objects.source_claim(work.item) or ""
    work.acquire(claim_lock(work.namespace, name))
    claim = work.find(paths.CLAIMS, name, work.namespace)
    if claim is None:
        raise update_failed(work.name, "cannot get claim from snapshot")
    return claim


def let_go(work: ObjectPass) -> None:
    """Unlock the claim: the content exists, so the snapshot counts as the claim's user."""
    name = objects.source_claim(work.item) or ""
    work.context.queue.unlock(work.lease, claim_lock(work.namespace, name).name)


def protect(work: ObjectPass, claim: Json) -> None:
    """Put the finalizer on a claim that is held (SNC-060).

    Raises:
        AttemptError: the claim is going away, or the API server refuses.
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
    """Take it off when no snapshot needs the claim any more (SNC-061, SNC-062).

    Args:
        work: of a snapshot of the claim, or of the claim itself.
        name: of the claim, "" for a snapshot without one.
        except_uid: the snapshot that does not count, because it goes.

    Returns:
        False if a snapshot needs it.

    Raises:
        ApiError: it could not be taken off.
        Busy: a snapshot of the claim is at it.
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
        with suppress(NotFoundError, ConflictError):  # gone, or made again
            kube.remove_finalizer(paths.CLAIMS, claim, FINALIZER_CLAIM_AS_SOURCE)
    work.context.queue.unlock(work.lease, lock.name)
    return not is_used


def _has_begun(work: ObjectPass, snapshot: Json) -> bool:
    """Whether the snapshot has a content; one that cannot start holds no claim (SNC-061).

    Its class may be missing for ever. The content is made under the claim's lock, so none is on
    its way.
    """
    if objects.bound_content(snapshot):
        return True
    return work.find_content(objects.content_name(snapshot)) is not None


def sync_source(context: Context, key: Key, lease: Lease) -> Outcome:
    """One pass over a claim with the finalizer that no snapshot seems to need (SNQ-013).

    What a snapshot's own pass leaves there is found here, whatever the reason: two that went side
    by side counted each other, a pass ended half-way, a late write came after the last look.
    """
    work = ObjectPass(context, key, lease, paths.CLAIMS)
    try:
        return done("released" if unprotect(work, work.name) else "a snapshot needs it")
    except Busy as busy:
        return busy.outcome()

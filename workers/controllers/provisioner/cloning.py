"""Removes the clone-source finalizer from a claim that is being deleted (CL-005 to CL-009).

The watcher adds the key when the deletion timestamp appears, and again when the last known clone
leaves the Pending phase. The worker reads everything live again, so a late or repeated key does no
harm.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from workers.constants import FINALIZER_CLONE_SOURCE
from workers.controllers.provisioner.references import needed_references
from workers.engine.outcome import Outcome, done, retry
from workers.kube.errors import NotFoundError
from workers.kube.finalizers import has_finalizer, without_finalizer
from workers.kube.retry import update_with_retry
from workers.translate.references import KIND_CLAIM

if TYPE_CHECKING:
    from workers.drivers.driver import Driver
    from workers.engine.context import Runtime
    from workers.kube.objects import JsonObject
    from workers.queue.keys import Key
    from workers.queue.leases import Lease

# A clone needs its source only while the clone is in this phase (CL-006).
_HOLDING = frozenset({"Pending"})


def sync_cloning(runtime: Runtime, driver: Driver, key: Key, lease: Lease) -> Outcome:
    """Removes the finalizer of one source claim once no clone needs the claim."""
    namespace, _, name = key.object.partition("/")
    kube = runtime.kube
    try:
        source = kube.get_claim(namespace, name)
    except NotFoundError:
        return done("claim is gone")
    if not _is_waiting(source, key.uid):
        return done("nothing to do")
    if (KIND_CLAIM, namespace, name) in needed_references(runtime, driver, namespace, _HOLDING):
        return retry("a clone is still being made")

    def read() -> JsonObject:
        return kube.get_claim(namespace, name)

    def change(claim: JsonObject) -> JsonObject | None:
        if not _is_waiting(claim, key.uid):
            return None
        lease.check()
        return without_finalizer(claim, FINALIZER_CLONE_SOURCE)

    try:
        update_with_retry(read, change, runtime.effects.kube.update_claim, known=source)
    except NotFoundError:
        return done("claim is gone")
    return done("protection removed")


def _is_waiting(claim: JsonObject, uid: str) -> bool:
    """True if the claim has the key's uid and the finalizer, and is being deleted (CL-004)."""
    metadata = claim["metadata"]
    return bool(
        (not uid or metadata.get("uid") == uid)
        and metadata.get("deletionTimestamp")
        and has_finalizer(claim, FINALIZER_CLONE_SOURCE)
    )

"""The sweep of finalizers that nobody took off a VolumeSnapshot (P-240 to P-243, SN-002 to SN-005).

A snapshot whose protection no unbound claim and no attempt under way needs loses it. Every read
must succeed before anything is concluded; every update carries the resourceVersion that was listed.
"""

from __future__ import annotations

import time
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from workers.constants import FINALIZER_SNAPSHOT_SOURCE
from workers.controllers.provisioner.references import needed_references, references_under_way
from workers.engine.outcome import Outcome, done
from workers.errors import ApiError
from workers.kube import paths
from workers.kube.errors import ConflictError, ForbiddenError, NotFoundError
from workers.kube.finalizers import has_finalizer, without_finalizer
from workers.observability.logging import get_logger
from workers.translate.references import KIND_SNAPSHOT, UNBOUND, references_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from workers.drivers.driver import Driver
    from workers.engine.context import Runtime
    from workers.kube.objects import JsonObject
    from workers.queue.keys import Key
    from workers.queue.leases import Lease

_log = get_logger(__name__)

_FIELD_MANAGER: Final = "csi-fleet"


def can_sweep(driver: Driver) -> bool:
    """Tell whether the driver's worker sweeps at all (P-240, C-127)."""
    return driver.settings.provision.snapshot_orphan_sweep_seconds > 0 and driver.supports(
        "CREATE_DELETE_SNAPSHOT"
    )


def sweep_snapshots(runtime: Runtime, driver: Driver, key: Key, lease: Lease) -> Outcome:
    """One sweep over all snapshots; errors of single updates are left to the next sweep.

    Raises:
        ApiError: a list failed; nothing was concluded from it (SN-004, D-016).
        QueueUnavailable: the attempts under way are not known; the same.
    """
    del key
    kube = runtime.kube
    if not can_sweep(driver) or not kube.is_served(paths.SNAPSHOTS):
        return done("no snapshots here")
    try:
        # Snapshots first: a finalizer that is in this list was put there for a claim that exists
        # already, so the claims read afterwards have it.
        protected = [
            one for one in kube.list_snapshots() if has_finalizer(one, FINALIZER_SNAPSHOT_SOURCE)
        ]
    except ForbiddenError as error:
        _log.info(
            "SnapshotFinalizerProtection: disabled, missing list permission on volumesnapshots",
            err=error,
        )
        return done("not permitted")
    if not protected:
        return done("nothing is protected")
    young_seconds = 2 * driver.settings.driver.timeout_seconds
    needed = references_of(kube.list_claims(), UNBOUND) | references_under_way(runtime)
    for snapshot in protected:
        metadata = snapshot["metadata"]
        reference = (KIND_SNAPSHOT, metadata["namespace"], metadata["name"])
        if reference in needed or is_young(snapshot, young_seconds, time.time):
            continue
        # SN-005: once more, just before; a claim may have come meanwhile.
        if reference in needed_references(runtime, driver, metadata["namespace"], UNBOUND):
            continue
        lease.check()
        _unprotect(runtime, snapshot)
    return done("swept")


def is_young(snapshot: Mapping[str, Any], young_seconds: float, clock: Callable[[], float]) -> bool:
    """Tell whether we put the finalizer there so recently that its claim may be unseen (SN-005)."""
    for entry in snapshot["metadata"].get("managedFields") or ():
        fields = ((entry.get("fieldsV1") or {}).get("f:metadata") or {}).get("f:finalizers") or {}
        if entry.get("manager") != _FIELD_MANAGER or not any(
            FINALIZER_SNAPSHOT_SOURCE in name for name in fields
        ):
            continue
        try:
            then = datetime.fromisoformat(str(entry.get("time"))).timestamp()
        except ValueError:
            continue
        if clock() - then < young_seconds:
            return True
    return False


def _unprotect(runtime: Runtime, snapshot: JsonObject) -> None:
    """Take the finalizer off; P-243 says how loud each refusal is."""
    metadata = snapshot["metadata"]
    name = f"{metadata['namespace']}/{metadata['name']}"
    body = without_finalizer(snapshot, FINALIZER_SNAPSHOT_SOURCE)
    if body is None:
        return
    try:
        runtime.effects.kube.update_snapshot(body)
    except (NotFoundError, ConflictError) as error:
        _log.v(5, "the snapshot is left to the next sweep", snapshot=name, err=error)
    except ForbiddenError as error:
        _log.info("SnapshotFinalizerProtection: may not update", snapshot=name, err=error)
    except ApiError as error:
        _log.warning("Failed to remove snapshot finalizer", snapshot=name, err=error)
    else:
        _log.info("SnapshotFinalizerProtection: removed orphaned finalizer", snapshot=name)

"""Removes orphaned source finalizers from VolumeSnapshots (P-240 to P-243, SN-002 to SN-005).

A finalizer is orphaned if no unbound claim and no open attempt needs the snapshot. Every read must
succeed before a finalizer is removed; every update carries the resourceVersion that was listed.
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
from workers.translate.fields import text
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
    """Return True if the sweep is on and the driver supports snapshots (P-240, C-127)."""
    return driver.settings.provision.snapshot_orphan_sweep_seconds > 0 and driver.supports(
        "CREATE_DELETE_SNAPSHOT"
    )


def sweep_snapshots(runtime: Runtime, driver: Driver, key: Key, lease: Lease) -> Outcome:
    """Sweep all snapshots once; the next sweep retries updates that failed.

    Raises:
        ApiError: a list failed; no finalizer was removed because of it (SN-004, D-016).
        QueueUnavailable: the open attempts are not known; the same.
    """
    del key
    kube = runtime.kube
    if not can_sweep(driver) or not kube.is_served(paths.SNAPSHOTS):
        return done("no snapshots here")
    try:
        # Snapshots are listed first: a finalizer in this list was added for a claim that existed
        # already, so the claims listed afterwards include it.
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
    needed = references_of(kube.list_claims(), UNBOUND) | references_under_way(runtime, driver)
    for snapshot in protected:
        metadata = snapshot["metadata"]
        reference = (KIND_SNAPSHOT, metadata["namespace"], metadata["name"])
        if reference in needed or is_young(snapshot, young_seconds, time.time):
            continue
        # A claim may have been created meanwhile, so the check is repeated (SN-005).
        if reference in needed_references(runtime, driver, metadata["namespace"], UNBOUND):
            continue
        if _is_foreign(runtime, driver, snapshot):
            continue
        lease.check()
        _unprotect(runtime, snapshot)
    return done("swept")


def is_young(snapshot: Mapping[str, Any], young_seconds: float, clock: Callable[[], float]) -> bool:
    """Return True if csi-fleet added the finalizer within the last `young_seconds` (SN-005).

    Its claim may not have been listed yet.
    """
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


def _is_foreign(runtime: Runtime, driver: Driver, snapshot: JsonObject) -> bool:
    """Return True if another driver took the snapshot: that driver's sweep knows its attempts."""
    name = text(snapshot, "status", "boundVolumeSnapshotContentName")
    try:
        content = runtime.kube.get_snapshot_content(name) if name else {}
    except NotFoundError:
        return False
    return text(content, "spec", "driver") not in {"", driver.name}


def _unprotect(runtime: Runtime, snapshot: JsonObject) -> None:
    """Remove the finalizer; log each refusal at the level of P-243."""
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

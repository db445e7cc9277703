"""Removes orphaned source finalizers from VolumeSnapshots (P-240 to P-243, SN-002 to SN-005).

A finalizer is orphaned if no unbound claim and no open attempt needs the snapshot. Every read must
succeed before a finalizer is removed, and every update is conditional on the resourceVersion from
the list.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from workers.constants import FINALIZER_SNAPSHOT_SOURCE
from workers.controllers.provisioner.references import needed_references, references_under_way
from workers.deadlines import Deadline
from workers.engine.outcome import Outcome, done
from workers.errors import ApiError
from workers.kube import paths
from workers.kube.errors import ConflictError, ForbiddenError, NotFoundError
from workers.kube.finalizers import has_finalizer, without_finalizer
from workers.observability.logging import get_logger
from workers.translate.fields import text
from workers.translate.references import KIND_SNAPSHOT, UNBOUND, references_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from workers.drivers.driver import Driver
    from workers.engine.context import Runtime
    from workers.kube.objects import JsonObject
    from workers.queue.keys import Key
    from workers.queue.leases import Lease

_log = get_logger(__name__)

_FIELD_MANAGER: Final = "csi-fleet"
_YOUNG: Final = "young"
# Each entry takes about 110 bytes, and a mark is limited to 64 KiB.
_MOST_YOUNG: Final = 300


def can_sweep(driver: Driver) -> bool:
    """Return True if the sweep is enabled and the driver supports snapshots (P-240, C-127)."""
    return driver.settings.provision.snapshot_orphan_sweep_seconds > 0 and driver.supports(
        "CREATE_DELETE_SNAPSHOT"
    )


def sweep_snapshots(runtime: Runtime, driver: Driver, key: Key, lease: Lease) -> Outcome:
    """Sweep all snapshots once; the next sweep retries updates that failed.

    A finalizer that csi-fleet itself added is removed only after it has been orphaned for twice
    `--timeout`, by the queue's clock, because its claim may not have been listed yet (SN-005).

    Raises:
        ApiError: a LIST request failed; no finalizer was removed on incomplete data (SN-004,
            D-016).
        QueueUnavailable: the open attempts are unknown, so no further finalizer was removed.
    """
    del key
    kube = runtime.kube
    if not can_sweep(driver) or not kube.is_served(paths.SNAPSHOTS):
        return done("no snapshots here")
    try:
        # The snapshots are listed before the claims. A finalizer in the list of snapshots was added
        # for a claim that already existed, so the later list of claims includes that claim.
        protected = [
            one for one in kube.list_snapshots() if has_finalizer(one, FINALIZER_SNAPSHOT_SOURCE)
        ]
    except ForbiddenError as error:
        _log.info(
            "SnapshotFinalizerProtection: disabled, missing list permission on volumesnapshots",
            err=error,
        )
        return done("not permitted")
    young = _Young(lease, 2 * driver.settings.driver.timeout_seconds)
    if not protected:
        young.keep(runtime)
        return done("nothing is protected")
    needed = references_of(kube.list_claims(), UNBOUND) | references_under_way(runtime, driver)
    for snapshot in protected:
        metadata = snapshot["metadata"]
        reference = (KIND_SNAPSHOT, metadata["namespace"], metadata["name"])
        if reference in needed or young.has(snapshot):
            continue
        if _is_foreign(runtime, driver, snapshot):
            continue
        # A claim may have been created in the meantime, so the check is repeated (SN-005).
        if reference in needed_references(runtime, driver, metadata["namespace"], UNBOUND):
            continue
        lease.check()
        _unprotect(runtime, snapshot)
    young.keep(runtime)
    return done("swept")


class _Young:
    """Tracks csi-fleet's own finalizers that were recently found to be orphaned.

    The finalizers are stored in the key's mark.

    Args:
        lease: the lease of the sweep.
        seconds: how long a finalizer counts as young.

    Attributes:
        known: maps a snapshot's uid and a timestamp to the time until which the finalizer
            counts as young, as the last sweep stored it.
        found: the same mapping, as this sweep will store it.
    """

    def __init__(self, lease: Lease, seconds: float) -> None:
        known = lease.mark.get(_YOUNG)
        self.known: dict[str, Any] = known if isinstance(known, dict) else {}
        self.found: dict[str, Any] = {}
        self._lease, self._seconds = lease, seconds

    def keep(self, runtime: Runtime) -> None:
        """Write the mark if it has changed."""
        if self.found != self.known:
            runtime.effects.mark(self._lease, {_YOUNG: self.found} if self.found else {})

    def has(self, snapshot: Mapping[str, Any]) -> bool:
        """Return True if the snapshot's finalizer, though orphaned, must be kept for now."""
        stamp = _added_at(snapshot)
        if stamp is None:
            return False
        name = f"{snapshot['metadata'].get('uid')} {stamp}"
        session = self._lease.session
        until = Deadline.read(self.known.get(name)) or session.later(self._seconds)
        # If the mark has no room left, the next sweep treats the finalizer as newly found.
        if name not in self.found and len(self.found) < _MOST_YOUNG:
            self.found[name] = until.data()
        return session.seconds_left(until) > 0


def _added_at(snapshot: Mapping[str, Any]) -> str | None:
    """Return the time at which csi-fleet wrote the finalizer; None if another program did."""
    for entry in snapshot["metadata"].get("managedFields") or ():
        fields = ((entry.get("fieldsV1") or {}).get("f:metadata") or {}).get("f:finalizers") or {}
        if entry.get("manager") == _FIELD_MANAGER and any(
            FINALIZER_SNAPSHOT_SOURCE in name for name in fields
        ):
            return str(entry.get("time"))
    return None


def _is_foreign(runtime: Runtime, driver: Driver, snapshot: JsonObject) -> bool:
    """Return True if another driver took the snapshot; that driver's sweep checks it."""
    name = text(snapshot, "status", "boundVolumeSnapshotContentName")
    try:
        content = runtime.kube.get_snapshot_content(name) if name else {}
    except NotFoundError:
        return False
    return text(content, "spec", "driver") not in {"", driver.name}


def _unprotect(runtime: Runtime, snapshot: JsonObject) -> None:
    """Remove the finalizer; log each refusal at the level that P-243 gives."""
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

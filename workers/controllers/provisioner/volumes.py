"""Reconciles a PersistentVolume: its finalizer and its deletion (L-070, P-500 to P-521).

DeleteVolume is idempotent by id. The PV is deleted only while it has the UID for which the deletion
was decided, and the finalizer is removed last. If a worker dies between two steps, another worker
finishes the deletion.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from workers import constants as k
from workers.controllers.capacity.publishing import publishing_of
from workers.controllers.provisioner import measure
from workers.controllers.provisioner.backend import backend_of
from workers.controllers.provisioner.deleting import class_of
from workers.controllers.provisioner.intent import deadlines_of
from workers.controllers.provisioner.own import own
from workers.controllers.provisioner.work import Work
from workers.engine.outcome import Outcome, blocked, done, retry, wait
from workers.engine.pausing import class_pause
from workers.engine.steps import Step
from workers.errors import AttemptError, IgnoredError
from workers.kube.errors import ConflictError, NotFoundError
from workers.migration.plugins import in_tree_source
from workers.migration.to_csi import volume_to_csi
from workers.observability import trail
from workers.observability.logging import get_logger
from workers.queue.keys import claim_key
from workers.queue.locks import stored_volume
from workers.translate import volumes as rules
from workers.translate.fields import version_of
from workers.translate.volume_facts import FinalizerAction

if TYPE_CHECKING:
    from workers.drivers.driver import Driver
    from workers.engine.context import Runtime
    from workers.kube.objects import JsonObject
    from workers.queue.keys import Key
    from workers.queue.leases import Lease

_log = get_logger(__name__)


def sync_volume(runtime: Runtime, driver: Driver, key: Key, lease: Lease) -> Outcome:
    """Reconciles one PV."""
    return VolumePass(runtime, driver, key, lease, backend_of(driver), own(runtime)).run()


@dataclass(slots=True)
class VolumePass(Work):
    """One reconcile of one PV, under its lease."""

    def run(self) -> Outcome:
        """Decides and acts; raises only if the API server, Redis or csi-fleet itself fails."""
        try:
            volume = self.runtime.kube.get_volume(self.key.object)
        except NotFoundError:
            return done("volume is gone")
        if not rules.is_ours(volume, self.driver.names):
            return done("volume of another provisioner")
        try:
            volume = self.keep_finalizer(volume)
        except (NotFoundError, ConflictError):  # a new PV of that name has its own event
            return done("volume is gone")
        if not rules.should_delete(
            volume,
            add_finalizer=self.backend.add_finalizer,
            is_guard_willing=self.backend.is_guard_willing(volume),
        ):
            return done("nothing to do")
        if self.is_wanted(volume):
            return done("its claim is not bound yet")
        paused = class_pause(self.runtime, class_of(volume))
        return paused or self.overtaken(volume) or self.being_cut(volume) or self.delete(volume)

    def is_wanted(self, volume: JsonObject) -> bool:
        """True if a PV that is being deleted may still be bound to the claim that it names.

        If so, the PV binder sets the PV to Bound, and to Released once the claim is gone. Both
        changes are events that add the key again.
        """
        claim = volume["spec"].get("claimRef") or {}
        if (volume.get("status") or {}).get("phase") == "Released" or not claim.get("uid"):
            return False
        try:
            found = self.runtime.kube.get_claim(
                claim.get("namespace") or "", claim.get("name") or ""
            )
        except NotFoundError:
            return False
        return bool(found["metadata"].get("uid") == claim["uid"])

    def being_cut(self, volume: JsonObject) -> Outcome | None:
        """Return an outcome that makes the key wait while a snapshot of the volume is being taken.

        Returns None if no csi-fleet snapshotter, in any process, is taking a snapshot of it.
        """
        if not self.driver.supports("CREATE_DELETE_SNAPSHOT"):
            return None
        try:
            migrated = in_tree_source(volume) is not None
            handle = rules.volume_handle(volume_to_csi(volume) if migrated else volume)
        except AttemptError:  # the deletion itself reports it
            return None
        lock = stored_volume(self.driver.name, handle)
        busy = self.runtime.queue.acquire(self.lease, lock)
        return None if busy is None else blocked(busy, "a snapshot of it is being cut")

    def overtaken(self, volume: JsonObject) -> Outcome | None:
        """Return the outcome that makes the key wait for a dead worker's in-flight CreateVolume.

        That call would recreate the volume. Returns None if there is no such call.
        """
        owner = volume["spec"].get("claimRef") or {}
        namespace, name, uid = (owner.get(one) or "" for one in ("namespace", "name", "uid"))
        claim = claim_key(self.key.driver, namespace, name, uid)
        record = self.own.intents.of(claim.driver).get(claim.record_name)
        seconds = self.lease.session.seconds_left(*deadlines_of(record))
        return (
            wait(seconds, "an overtaken CreateVolume may still be running") if seconds > 0 else None
        )

    def keep_finalizer(self, volume: JsonObject) -> JsonObject:
        """Adds or removes the deletion finalizer and returns the patched PV (L-072)."""
        action = rules.finalizer_action(volume, add_finalizer=self.backend.add_finalizer)
        if action is FinalizerAction.KEEP:
            return volume
        kube, metadata = self.runtime.effects.kube, volume["metadata"]
        self.runtime.effects.reach(Step.PATCH_FINALIZER, self.lease)
        is_missing = action is FinalizerAction.ADD
        patch = kube.add_volume_finalizer if is_missing else kube.remove_volume_finalizer
        return patch(metadata["name"], k.FINALIZER_VOLUME, uid=metadata["uid"])

    def delete(self, volume: JsonObject) -> Outcome:
        """Deletes the volume from the storage system, then the PV (P-501, P-515, L-075)."""
        started = time.monotonic()
        try:
            self.backend.delete(self, volume)
        except IgnoredError as error:
            return done(error.reason)
        except AttemptError as error:
            trail.note("error", error.message)
            _log.warning("could not delete the volume", err=error.message)
            self.runtime.metrics.delete_failed(volume)
            self.runtime.effects.event(
                volume,
                "Warning",
                k.REASON_VOLUME_FAILED_DELETE,
                error.message,
                component=self.driver.event_source,
            )
            return retry("delete failed")
        publishing = publishing_of(self.runtime)
        if publishing is not None:
            publishing.deleted(self.driver, volume)
        outcome = self.delete_object(volume)
        measure.deleted(self, volume, started)
        return outcome

    def delete_object(self, volume: JsonObject) -> Outcome:
        """Deletes the PV, then removes its finalizer (L-075, L-076)."""
        kube, metadata = self.runtime.effects.kube, volume["metadata"]
        name, uid = metadata["name"], metadata["uid"]
        self.runtime.effects.reach(Step.DELETE_OBJECT, self.lease)
        try:
            left = kube.delete_volume(name, uid=uid)
        except (NotFoundError, ConflictError):
            return done("volume is gone")
        finalizers = (left.get("metadata") or {}).get("finalizers") or []
        if k.FINALIZER_VOLUME in finalizers:
            self.runtime.effects.reach(Step.RELEASE_OBJECT, self.lease)
            with contextlib.suppress(NotFoundError, ConflictError):
                left = kube.remove_volume_finalizer(name, k.FINALIZER_VOLUME, uid=uid)
        # Because of `known`, the events from these writes cause no further reconcile.
        return done("deleted", known=version_of(left))

"""Chooses the backend that creates and deletes a driver's volumes: the CSI driver or a plug-in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from workers.controllers.provisioner import deleting, precheck, saving
from workers.controllers.provisioner.attempt import Attempt

if TYPE_CHECKING:
    from workers.controllers.provisioner.intent import Intent
    from workers.controllers.provisioner.work import Backend, ClaimAttempt, ClaimWork, Work
    from workers.drivers.driver import Driver
    from workers.engine.outcome import Outcome
    from workers.kube.objects import JsonObject


class CsiBackend:
    """Creates and deletes volumes by gRPC calls to the CSI driver."""

    add_finalizer = True

    def threshold(self, kind: str) -> int:
        """Return 0: a CSI driver's keys have no retry limit, as in csi-provisioner."""
        del kind
        return 0

    def should_provision(
        self, work: ClaimWork, claim: JsonObject, storage_class: JsonObject | None
    ) -> Outcome | None:
        """Runs the pre-check of a claim, including the node check (L-022, L-025)."""
        return precheck.should_provision(work, claim, storage_class)

    def attempt(
        self, work: ClaimWork, claim: JsonObject, storage_class: JsonObject, intent: Intent | None
    ) -> ClaimAttempt:
        """Return a new attempt, which makes one CreateVolume call."""
        return Attempt(work, claim, storage_class, intent)

    def save(
        self, work: ClaimWork, claim: JsonObject, volume: JsonObject, live: JsonObject | None
    ) -> Outcome:
        """Saves the PV and retries until the save succeeds, as the library's queue store does."""
        return saving.save(work, claim, volume, live)

    def resume(self, work: ClaimWork, volume: JsonObject, live: JsonObject | None) -> Outcome:
        """Saves the PV that an earlier reconcile recorded."""
        return saving.resume(work, volume, live)

    def is_guard_willing(self, volume: JsonObject) -> bool:
        """Return True, because CSI drivers have no deletion guard."""
        del volume
        return True

    def delete(self, work: Work, volume: JsonObject) -> None:
        """Deletes the volume with one DeleteVolume call."""
        deleting.delete_in_storage(work, volume)


CSI: Final = CsiBackend()


def backend_of(driver: Driver) -> Backend:
    """Return the plug-in's backend if a plug-in serves the driver, else the gRPC backend."""
    backend: Backend | None = getattr(driver, "backend", None)
    return CSI if backend is None else backend

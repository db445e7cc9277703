"""Who makes and removes the volumes of one driver: the CSI driver itself, unless a plug-in does."""

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
    """The driver is asked by gRPC."""

    add_finalizer = True

    def threshold(self, kind: str) -> int:
        """Retried without end, as the reference."""
        del kind
        return 0

    def should_provision(
        self, work: ClaimWork, claim: JsonObject, storage_class: JsonObject | None
    ) -> Outcome | None:
        """L-022, L-025 and the node gate."""
        return precheck.should_provision(work, claim, storage_class)

    def attempt(
        self, work: ClaimWork, claim: JsonObject, storage_class: JsonObject, intent: Intent | None
    ) -> ClaimAttempt:
        """One CreateVolume and what belongs to it."""
        return Attempt(work, claim, storage_class, intent)

    def save(
        self, work: ClaimWork, claim: JsonObject, volume: JsonObject, live: JsonObject | None
    ) -> Outcome:
        """Queue store: for as long as it takes."""
        return saving.save(work, claim, volume, live)

    def resume(self, work: ClaimWork, volume: JsonObject, live: JsonObject | None) -> Outcome:
        """The same."""
        return saving.resume(work, volume, live)

    def is_guard_willing(self, volume: JsonObject) -> bool:
        """CSI drivers have no guard."""
        del volume
        return True

    def delete(self, work: Work, volume: JsonObject) -> None:
        """One DeleteVolume and what belongs to it."""
        deleting.delete_in_storage(work, volume)


CSI: Final = CsiBackend()


def backend_of(driver: Driver) -> Backend:
    """The plug-in's, for a plug-in's driver; else the one that asks by gRPC."""
    backend: Backend | None = getattr(driver, "backend", None)
    return CSI if backend is None else backend

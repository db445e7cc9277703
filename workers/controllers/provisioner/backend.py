"""Who makes and removes the volumes of one driver: a CSI driver, or a plug-in in this process.

Everything around it is the same for both: queue, leases, intents, events, retries, the saving of
the PV and its deletion. `ClaimPass` and `VolumePass` ask the backend of their driver and nothing
else about the kind of driver.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from workers.controllers.provisioner import precheck, saving
from workers.controllers.provisioner.attempt import Attempt

if TYPE_CHECKING:
    from workers.controllers.provisioner.claims import ClaimPass
    from workers.controllers.provisioner.intent import Intent
    from workers.controllers.provisioner.volumes import VolumePass
    from workers.drivers.driver import Driver
    from workers.engine.outcome import Outcome
    from workers.kube.objects import JsonObject


class ClaimAttempt(Protocol):
    """One attempt to provision one claim."""

    claim: JsonObject
    was_sent: bool

    def run(self) -> JsonObject:
        """Returns the complete PV, already recorded in Redis.

        Raises:
            AttemptError: with the state that decides what follows.
            IgnoredError: the claim is not ours.
        """

    @property
    def current(self) -> Intent:
        """The intent of this attempt, once it is recorded."""

    def remember_background(self) -> None:
        """The end is not known: the record says so (P-401)."""


class Backend(Protocol):
    """What differs between a CSI driver and a plug-in."""

    @property
    def add_finalizer(self) -> bool:
        """Option AddFinalizer of the library (L-002, L-072)."""

    def threshold(self, kind: str) -> int:
        """Failures after which a key of that kind is given up, 0 for never (L-016)."""

    def should_provision(
        self, work: ClaimPass, claim: JsonObject, storage_class: JsonObject | None
    ) -> Outcome | None:
        """The pre-check (L-022); None means an attempt is due."""

    def attempt(
        self, work: ClaimPass, claim: JsonObject, storage_class: JsonObject, intent: Intent | None
    ) -> ClaimAttempt:
        """A new attempt; nothing has happened yet."""

    def save(
        self, work: ClaimPass, claim: JsonObject, volume: JsonObject, live: JsonObject | None
    ) -> Outcome:
        """Saves a provisioned volume (L-080, L-081)."""

    def resume(self, work: ClaimPass, volume: JsonObject, live: JsonObject | None) -> Outcome:
        """Goes on with the saving of a volume that an earlier pass made."""

    def is_guard_willing(self, volume: JsonObject) -> bool:
        """Answer of the DeletionGuard (L-073 row 1)."""

    def delete(self, work: VolumePass, volume: JsonObject) -> None:
        """Deletes the volume in its storage; a volume that is gone already is a success.

        Raises:
            AttemptError: told on the PV and retried.
            IgnoredError: not ours to delete.
        """


class CsiBackend:
    """The driver is asked by gRPC."""

    add_finalizer = True

    def threshold(self, kind: str) -> int:
        """Retried without end, as the reference."""
        del kind
        return 0

    def should_provision(
        self, work: ClaimPass, claim: JsonObject, storage_class: JsonObject | None
    ) -> Outcome | None:
        """L-022, L-025 and the node gate."""
        return precheck.should_provision(work, claim, storage_class)

    def attempt(
        self, work: ClaimPass, claim: JsonObject, storage_class: JsonObject, intent: Intent | None
    ) -> ClaimAttempt:
        """One CreateVolume and what belongs to it."""
        return Attempt(work, claim, storage_class, intent)

    def save(
        self, work: ClaimPass, claim: JsonObject, volume: JsonObject, live: JsonObject | None
    ) -> Outcome:
        """Queue store: for as long as it takes."""
        return saving.save(work, claim, volume, live)

    def resume(self, work: ClaimPass, volume: JsonObject, live: JsonObject | None) -> Outcome:
        """The same."""
        return saving.resume(work, volume, live)

    def is_guard_willing(self, volume: JsonObject) -> bool:
        """CSI drivers have no guard."""
        del volume
        return True

    def delete(self, work: VolumePass, volume: JsonObject) -> None:
        """One DeleteVolume and what belongs to it."""
        work.delete_in_storage(volume)


CSI: Final = CsiBackend()


def backend_of(driver: Driver) -> Backend:
    """The plug-in's, for a plug-in's driver; else the one that asks by gRPC."""
    backend: Backend | None = getattr(driver, "backend", None)
    return CSI if backend is None else backend

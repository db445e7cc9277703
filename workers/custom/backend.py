"""A plug-in as a driver's backend: claims and volumes are handled as for CSI drivers."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from workers import constants as k
from workers.controllers.provisioner import saving
from workers.custom.api import Ignored, Options, Provisioner, VolumeStore
from workers.custom.attempt import CustomAttempt, describe
from workers.custom.store import BackoffStore
from workers.engine.outcome import Outcome, done, retry
from workers.engine.steps import Step
from workers.errors import AttemptError, IgnoredError, State
from workers.translate import claims
from workers.translate.claims import Decision

if TYPE_CHECKING:
    from workers.controllers.provisioner.intent import Intent
    from workers.controllers.provisioner.work import ClaimAttempt, ClaimWork, Work
    from workers.kube.objects import JsonObject


@dataclass(frozen=True, slots=True)
class CustomBackend:
    """Calls a plug-in in this process (L-100)."""

    provisioner: Provisioner
    options: Options
    _store: BackoffStore = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_store", BackoffStore(self.provisioner, self.options))

    @property
    def add_finalizer(self) -> bool:
        """The option AddFinalizer, which is off by default, as in the library."""
        return self.options.add_finalizer

    def threshold(self, kind: str) -> int:
        """Return the number of failures after which keys of that kind are not retried (L-016)."""
        return {
            "claims": self.options.failed_provision_threshold,
            "volumes": self.options.failed_delete_threshold,
        }.get(kind, 0)

    def should_provision(
        self, work: ClaimWork, claim: JsonObject, storage_class: JsonObject | None
    ) -> Outcome | None:
        """Decide whether to provision: check the plug-in's Qualifier, then its block support.

        The steps are those of L-022 and of L-040 step 3.

        Returns:
            None if the claim should be provisioned, otherwise the outcome.
        """
        qualifier = getattr(self.provisioner, "should_provision", None)
        is_bound = bool((claim.get("spec") or {}).get("volumeName"))
        is_qualified = qualifier is None or is_bound or bool(qualifier(deepcopy(claim)))
        decision = claims.should_provision(
            claim, storage_class, known_names=work.driver.names, is_qualified=is_qualified
        )
        if decision is Decision.CLASS_MISSING:
            return retry("storage class not found")
        if decision is not Decision.PROVISION:
            return done(decision.value)
        is_ours = storage_class is not None and claims.is_known_class(
            storage_class, work.driver.names
        )
        if is_ours and claims.is_block(claim) and not self.supports_block():
            text = f"{work.driver.name} does not support block volume provisioning"
            work.event(claim, "Warning", k.REASON_PROVISIONING_FAILED, text)
            return done("block is not supported")
        return None

    def supports_block(self) -> bool:
        """Return True if the plug-in reports block support; the default is False (L-100)."""
        method = getattr(self.provisioner, "supports_block", None)
        return method is not None and bool(method())

    def attempt(
        self, work: ClaimWork, claim: JsonObject, storage_class: JsonObject, intent: Intent | None
    ) -> ClaimAttempt:
        """Return one attempt; it makes one call of `provision` under the lease of the volume."""
        return CustomAttempt(
            work, claim, storage_class, intent, self.provisioner, self.options.add_finalizer
        )

    def save(
        self, work: ClaimWork, claim: JsonObject, volume: JsonObject, live: JsonObject | None
    ) -> Outcome:
        """Save the PV in the way that the author's `volume_store` option selects."""
        if self.options.volume_store is VolumeStore.BACKOFF:
            return self._store.go_on(work, claim, volume, live)
        return saving.save(work, claim, volume, live)

    def resume(self, work: ClaimWork, volume: JsonObject, live: JsonObject | None) -> Outcome:
        """Resume saving a PV that an earlier reconcile did not manage to save."""
        return self.save(work, saving.claim_of(volume, live), volume, live)

    def is_guard_willing(self, volume: JsonObject) -> bool:
        """Return the result of the plug-in's DeletionGuard; True if the plug-in has none."""
        guard = getattr(self.provisioner, "should_delete", None)
        return guard is None or bool(guard(deepcopy(volume)))

    def delete(self, work: Work, volume: JsonObject) -> None:
        """Call the plug-in's `delete` once (L-075 step 1)."""
        work.runtime.effects.reach(Step.DELETE_VOLUME, work.lease)
        try:
            self.provisioner.delete(deepcopy(volume))
        except Ignored as ignored:
            raise IgnoredError(ignored.reason) from None
        except Exception as error:
            raise AttemptError(describe(error), State.FINISHED) from error

"""Connects the provisioner to the engine: the reconcile function and the locks of each kind."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any, Final

from workers.controllers.provisioner.backend import backend_of
from workers.controllers.provisioner.claims import claim_volume, sync_claim
from workers.controllers.provisioner.cloning import sync_cloning
from workers.controllers.provisioner.own import build
from workers.controllers.provisioner.spec import SPEC
from workers.controllers.provisioner.sweep import can_sweep, sweep_snapshots
from workers.controllers.provisioner.volumes import sync_volume
from workers.engine.controller import Due
from workers.queue import keys
from workers.queue.locks import Lock

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from workers.controllers.provisioner.own import Own
    from workers.drivers.driver import Driver
    from workers.engine.context import Context
    from workers.engine.controller import Means
    from workers.engine.outcome import Outcome
    from workers.queue.keys import Key
    from workers.queue.leases import Lease

_PASSES: Final = {
    keys.KIND_CLAIMS: sync_claim,
    keys.KIND_VOLUMES: sync_volume,
    keys.KIND_CLONING: sync_cloning,
    keys.KIND_SWEEP: sweep_snapshots,
}


class ProvisionerController:
    """Provisions and deletes volumes; removes protection from sources that are no longer used."""

    spec = SPEC

    def locks(self, key: Key, driver: Driver | None) -> tuple[Lock, ...]:
        """Return the lock on the PV's name for creations and deletions, and none for clean-up."""
        if key.kind == keys.KIND_CLAIMS and driver is not None:
            return (Lock(claim_volume(driver, key)),)
        return (Lock(key.object),) if key.kind == keys.KIND_VOLUMES else ()

    def sync(self, context: Context, driver: Driver | None, key: Key, lease: Lease) -> Outcome:
        """Reconciles the key; adds a plug-in's retry limit to the outcome (L-016)."""
        assert driver is not None  # keys of all kinds have a driver
        outcome = _PASSES[key.kind](context, driver, key, lease)
        if outcome.may_give_up:
            return replace(outcome, give_up_after=backend_of(driver).threshold(key.kind))
        return outcome

    def periodic(self, context: Context, driver: Driver | None) -> Iterable[Due]:
        """Schedules the sweep of orphaned snapshot finalizers (P-240)."""
        del context
        if driver is None or not can_sweep(driver):
            return ()
        seconds = driver.settings.provision.snapshot_orphan_sweep_seconds
        return (Due(keys.sweep_key(driver.queue_name), seconds),)

    def build(self, means: Means, parts: Mapping[str, Any]) -> Own:
        """Builds the store of intents and the view of the cluster's topology."""
        del parts
        return build(means)

    def record(self, driver: Driver) -> Mapping[str, Any]:
        """Return the facts about the driver that the watcher's rules and a rehearsal need."""
        return {
            "topology": driver.supports_topology,
            "rules": asdict(driver.settings.provision),
        }

    def serves(self, driver: Driver) -> bool:
        """Return True: if a driver cannot provision, an event on the claim reports it."""
        del driver
        return True

    def limits(self, driver: Driver | None) -> Mapping[str, int]:
        """Return the limit for each kind.

        `--worker-threads` limits creations and deletions separately.
        """
        assert driver is not None
        provision = driver.settings.provision
        return {
            keys.KIND_CLAIMS: provision.worker_threads,
            keys.KIND_VOLUMES: provision.worker_threads,
            keys.KIND_CLONING: provision.cloning_protection_threads,
            keys.KIND_SWEEP: 1,
        }


CONTROLLER: Final = ProvisionerController()

"""The provisioner as the engine runs it: the pass of each kind of key, and what it locks."""

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
    """Claims get volumes, volumes end, sources of clones and snapshots are protected."""

    spec = SPEC

    def locks(self, key: Key, driver: Driver | None) -> tuple[Lock, ...]:
        """The PV's name, for creation and deletion alike; clean-up locks nothing."""
        if key.kind == keys.KIND_CLAIMS and driver is not None:
            return (Lock(claim_volume(driver, key)),)
        return (Lock(key.object),) if key.kind == keys.KIND_VOLUMES else ()

    def sync(self, context: Context, driver: Driver | None, key: Key, lease: Lease) -> Outcome:
        """One pass of the key's kind; a plug-in may give up after so many failures (L-016)."""
        assert driver is not None  # all kinds have one
        outcome = _PASSES[key.kind](context, driver, key, lease)
        if outcome.may_give_up:
            return replace(outcome, give_up_after=backend_of(driver).threshold(key.kind))
        return outcome

    def periodic(self, context: Context, driver: Driver | None) -> Iterable[Due]:
        """The sweep of orphaned snapshot finalizers (P-240)."""
        del context
        if driver is None or not can_sweep(driver):
            return ()
        seconds = driver.settings.provision.snapshot_orphan_sweep_seconds
        return (Due(keys.sweep_key(driver.queue_name), seconds),)

    def build(self, means: Means, parts: Mapping[str, Any]) -> Own:
        """Records of attempts, the cluster's topology."""
        del parts
        return build(means)

    def record(self, driver: Driver) -> Mapping[str, Any]:
        """What the rules and a rehearsal must know."""
        return {
            "topology": driver.supports_topology,
            "rules": asdict(driver.settings.provision),
        }

    def serves(self, driver: Driver) -> bool:
        """Every driver: one that cannot create volumes is told so by the claims' events."""
        del driver
        return True

    def limits(self, driver: Driver | None) -> Mapping[str, int]:
        """`--worker-threads` for creations and, apart from them, deletions."""
        assert driver is not None
        provision = driver.settings.provision
        return {
            keys.KIND_CLAIMS: provision.worker_threads,
            keys.KIND_VOLUMES: provision.worker_threads,
            keys.KIND_CLONING: provision.cloning_protection_threads,
            keys.KIND_SWEEP: 1,
        }


CONTROLLER: Final = ProvisionerController()

"""Runs capacity publishing as a controller of the engine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from workers.controllers.capacity.objects import MANAGED_BY, managed_by
from workers.controllers.capacity.publishing import Publishing, publishing_of
from workers.controllers.capacity.spec import SPEC
from workers.controllers.capacity.sync import sync_capacity
from workers.queue import keys
from workers.queue.capacities import CapacityStore

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from workers.drivers.driver import Driver
    from workers.engine.context import Context
    from workers.engine.controller import Due, Means
    from workers.engine.outcome import Outcome
    from workers.queue.keys import Key
    from workers.queue.leases import Lease
    from workers.queue.locks import Lock


class CapacityController:
    """Keeps CSIStorageCapacity objects in line with the driver's GetCapacity responses."""

    spec = SPEC

    def locks(self, key: Key, driver: Driver | None) -> tuple[Lock, ...]:
        """Return no locks, because capacity publishing touches no volume."""
        del key, driver
        return ()

    def sync(self, context: Context, driver: Driver | None, key: Key, lease: Lease) -> Outcome:
        """Reconciles one capacity key."""
        assert driver is not None  # keys of all kinds have a driver
        return sync_capacity(context, driver, key, lease)

    def periodic(self, context: Context, driver: Driver | None) -> Iterable[Due]:
        """Return nothing, because `tick` starts the periodic work."""
        del context, driver
        return ()

    def build(self, means: Means, parts: Mapping[str, Any]) -> Publishing:
        """Builds this process's `Publishing`, which uses the provisioner's view of the cluster."""
        publishing = Publishing(
            means.settings,
            kube=means.kube,
            store=CapacityStore(means.redis),
            queue=means.queue,
            catalog=means.catalog,
            clusters=parts[SPEC.part_of].clusters,
            periods=means.periods,
            metrics=means.metrics,
        )
        publishing.prepare()
        return publishing

    def tick(self, context: Context, drivers: Sequence[Driver], *, is_first: bool) -> None:
        """Adds the keys that are due; the shared cache determines them (see `publishing`)."""
        publishing = publishing_of(context)
        if publishing is None:
            return
        if is_first:
            publishing.start(drivers)
        publishing.tick(drivers)

    def record(self, driver: Driver) -> Mapping[str, Any]:
        """Return the namespace and the managed-by label of the driver's capacity objects."""
        if not driver.publishes_capacity:
            return {"capacity": None}
        node = driver.settings.node
        return {
            "capacity": {
                "namespace": driver.settings.capacity.namespace,
                "managed_by": managed_by(node.node_name) if node.enabled else MANAGED_BY,
            }
        }

    def serves(self, driver: Driver) -> bool:
        """True if capacity publishing is enabled and the driver reports capacity (CAP-012)."""
        return driver.publishes_capacity

    def limits(self, driver: Driver | None) -> Mapping[str, int]:
        """Limits concurrent GetCapacity calls to `--capacity-threads`."""
        assert driver is not None
        return {keys.KIND_CAPACITY: driver.settings.capacity.threads}


CONTROLLER: Final = CapacityController()

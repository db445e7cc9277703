"""Capacity publishing as the engine runs it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from workers.controllers.capacity.spec import SPEC
from workers.controllers.capacity.sync import sync_capacity
from workers.queue import keys

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from workers.drivers.driver import Driver
    from workers.engine.context import Context
    from workers.engine.controller import Due
    from workers.engine.outcome import Outcome
    from workers.queue.keys import Key
    from workers.queue.leases import Lease
    from workers.queue.locks import Lock


class CapacityController:
    """Keeps CSIStorageCapacity objects as the driver's GetCapacity says."""

    spec = SPEC

    def locks(self, key: Key, driver: Driver | None) -> tuple[Lock, ...]:
        """None: capacity is of no volume."""
        del key, driver
        return ()

    def sync(self, context: Context, driver: Driver | None, key: Key, lease: Lease) -> Outcome:
        """One pass over one unit of capacity work."""
        assert driver is not None  # all kinds have one
        return sync_capacity(context, driver, key, lease)

    def periodic(self, context: Context, driver: Driver | None) -> Iterable[Due]:
        """Nothing here: what is due depends on the catalog, see `publishing`."""
        del context, driver
        return ()

    def serves(self, driver: Driver) -> bool:
        """Drivers whose capacity is wanted and told (CAP-012)."""
        return driver.publishes_capacity

    def limits(self, driver: Driver | None) -> Mapping[str, int]:
        """`--capacity-threads`."""
        assert driver is not None
        return {keys.KIND_CAPACITY: driver.settings.capacity.threads}


CONTROLLER: Final = CapacityController()

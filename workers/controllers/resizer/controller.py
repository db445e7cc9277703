"""Connects the resizer to the engine: its drivers, its limits and its work."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from workers.controllers.resizer.decide import Resizer
from workers.controllers.resizer.rules import KIND
from workers.controllers.resizer.spec import SPEC
from workers.controllers.resizer.sync import Reconcile

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from workers.controllers.resizer.settings import ResizerSettings
    from workers.drivers.driver import Driver
    from workers.engine.context import Context
    from workers.engine.controller import Due
    from workers.engine.outcome import Outcome
    from workers.queue.keys import Key
    from workers.queue.leases import Lease
    from workers.queue.locks import Lock


class ResizerController:
    """Changes volumes to the size and the class that their claims request."""

    spec = SPEC

    def locks(self, key: Key, driver: Driver | None) -> tuple[Lock, ...]:
        """Return no lock: `sync` takes the locks after it has read the claim's volume name."""
        del key, driver
        return ()

    def sync(self, context: Context, driver: Driver | None, key: Key, lease: Lease) -> Outcome:
        """Reconcile one claim."""
        assert driver is not None  # keys of this kind have a driver
        settings = settings_of(driver)
        return Reconcile(
            context,
            driver,
            key,
            lease,
            settings,
            resizer=resizer_of(driver),
            can_modify=can_modify(driver),
        ).run()

    def periodic(self, context: Context, driver: Driver | None) -> Iterable[Due]:
        """Return nothing, because the resizer has no periodic work."""
        del context, driver
        return ()

    def serves(self, driver: Driver) -> bool:
        """Return True if the driver can expand or modify volumes (R-003).

        Expansion on the controller and expansion on the node both count. A driver that can only
        modify volumes counts even if the gate is off; its worker then has nothing to do (R-004).
        """
        is_modifier = "MODIFY_VOLUME" in driver.controller_capabilities
        return resizer_of(driver) is not Resizer.NONE or is_modifier

    def limits(self, driver: Driver | None) -> Mapping[str, int]:
        """Return how many claims may be processed at once: the value of `--workers`."""
        assert driver is not None
        return {KIND: settings_of(driver).workers}


def settings_of(driver: Driver) -> ResizerSettings:
    """Return the resizer's settings for one driver."""
    found: ResizerSettings = driver.settings.controllers[SPEC.name]
    return found


def resizer_of(driver: Driver) -> Resizer:
    """Return how the driver's volumes are expanded (R-003).

    Unlike in csi-resizer, a driver without CONTROLLER_SERVICE can expand on the node (DR-002).
    """
    if "EXPAND_VOLUME" in driver.controller_capabilities:
        return Resizer.REAL
    return Resizer.TRIVIAL if "EXPAND_VOLUME" in driver.node_capabilities else Resizer.NONE


def can_modify(driver: Driver) -> bool:
    """Return True if the driver can modify volumes and the gates allow it (R-004).

    `volume_attributes_class` is off if the API server does not serve VolumeAttributesClasses
    (R-002).
    """
    is_served = driver.settings.gates.volume_attributes_class
    is_on = is_served and settings_of(driver).applies_classes
    return is_on and "MODIFY_VOLUME" in driver.controller_capabilities


CONTROLLER: Final = ResizerController()

"""The resizer as the engine runs it."""

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
    """Makes volumes as large as their claims want, and of the class that they want."""

    spec = SPEC

    def locks(self, key: Key, driver: Driver | None) -> tuple[Lock, ...]:
        """None: the volume's name stands in the claim, so `sync` takes them."""
        del key, driver
        return ()

    def sync(self, context: Context, driver: Driver | None, key: Key, lease: Lease) -> Outcome:
        """One reconcile of one claim."""
        assert driver is not None  # the kind has one
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
        """Nothing comes back by itself."""
        del context, driver
        return ()

    def serves(self, driver: Driver) -> bool:
        """Drivers that expand, on the controller or the node, or modify (R-003).

        One that only modifies counts with the gate off too: its worker stays, without work (R-004).
        """
        is_modifier = "MODIFY_VOLUME" in driver.controller_capabilities
        return resizer_of(driver) is not Resizer.NONE or is_modifier

    def limits(self, driver: Driver | None) -> Mapping[str, int]:
        """`--workers`."""
        assert driver is not None
        return {KIND: settings_of(driver).workers}


def settings_of(driver: Driver) -> ResizerSettings:
    """The driver's settings for this controller."""
    found: ResizerSettings = driver.settings.controllers[SPEC.name]
    return found


def resizer_of(driver: Driver) -> Resizer:
    """Who makes the driver's volumes larger (R-003).

    Unlike the reference a driver without CONTROLLER_SERVICE may grow on the node alone (DR-002).
    """
    if "EXPAND_VOLUME" in driver.controller_capabilities:
        return Resizer.REAL
    return Resizer.TRIVIAL if "EXPAND_VOLUME" in driver.node_capabilities else Resizer.NONE


def can_modify(driver: Driver) -> bool:
    """R-004; the common gate is off where the API server does not serve classes (R-002)."""
    is_served = driver.settings.gates.volume_attributes_class
    is_on = is_served and settings_of(driver).applies_classes
    return is_on and "MODIFY_VOLUME" in driver.controller_capabilities


CONTROLLER: Final = ResizerController()

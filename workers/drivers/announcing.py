"""Announces this process's drivers in Redis: queue limits, driver records and controllers.

Limits are declared first, so that no key is admitted without a limit. Work that belongs to no
driver is announced as if it belonged to a driver without a name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from workers.drivers.driversfile import DriverSpec
from workers.engine.controller import TellsOfDrivers
from workers.queue.keys import lane_name
from workers.queue.kinds import APART, apart

if TYPE_CHECKING:
    from collections.abc import Sequence

    from workers.config.settings import Settings
    from workers.drivers.driver import Driver
    from workers.engine.controller import Controller
    from workers.queue.registry import DriverRegistry
    from workers.queue.workqueue import WorkQueue

REGISTRATION_TTL_SECONDS: Final = 15.0
DRIVERLESS: Final = ""
"""The name and the queue name that stand for work that belongs to no driver."""


class Announcing:
    """Announces the drivers that a process serves, and the controllers that it runs for them."""

    def __init__(self, settings: Settings, controllers: Sequence[Controller]) -> None:
        self._settings = settings
        self._controllers = controllers
        self._driverless = [
            one for one in controllers if not all(kind.has_driver for kind in one.spec.kinds)
        ]

    @property
    def has_driverless(self) -> bool:
        """Return True if a controller of this process has work that belongs to no driver."""
        return bool(self._driverless)

    def place(self, queue_name: str) -> str:
        """Return the name of a driver's record in the registry.

        Each set of controllers has its own record of a driver.
        """
        specs = [one.spec for one in self._controllers]
        if not any(apart(spec) for spec in specs):
            return queue_name
        names = sorted({spec.part_of or spec.name for spec in specs})
        return f"{queue_name}{APART}{'+'.join(names)}"

    def record(self, driver: Driver) -> dict[str, Any]:
        """Return the driver's public record, including the controllers that serve it here."""
        record = driver.record()
        for one in self._controllers:
            if isinstance(one, TellsOfDrivers):
                record |= one.record(driver)
        names = [one.spec.name for one in self._controllers if one.serves(driver)]
        return record | {"controllers": names}

    def driverless_record(self) -> dict[str, Any]:
        """Return the record of the work that belongs to no driver."""
        names = [one.spec.name for one in self._driverless]
        return {"name": DRIVERLESS, "queue_name": DRIVERLESS, "controllers": names}

    def register(self, driver: Driver, registry: DriverRegistry) -> None:
        """Store the driver's record in the registry.

        Raises:
            QueueUnavailable: Redis does not answer.
        """
        place, record = self.place(driver.queue_name), self.record(driver)
        registry.register(place, record, ttl_seconds=REGISTRATION_TTL_SECONDS)

    def announce_driverless(self, queue: WorkQueue, registry: DriverRegistry) -> None:
        """Declare the limits of driverless work and register it, if this process does such work.

        Raises:
            QueueUnavailable: Redis does not answer.
        """
        for controller in self._driverless:
            self._declare(controller, None, DriverSpec("", ""), queue)
        if self._driverless:
            place, record = self.place(DRIVERLESS), self.driverless_record()
            registry.register(place, record, ttl_seconds=REGISTRATION_TTL_SECONDS)

    def set_limits(self, driver: Driver, spec: DriverSpec, queue: WorkQueue) -> None:
        """Declare the limits of the driver's queues.

        Raises:
            QueueUnavailable: Redis does not answer.
        """
        for controller in self._controllers:
            if controller.spec.needs_driver and controller.serves(driver):
                self._declare(controller, driver, spec, queue)

    def _declare(
        self, controller: Controller, driver: Driver | None, spec: DriverSpec, queue: WorkQueue
    ) -> None:
        defaults = controller.limits(driver)
        if driver is None:  # only a controller's own flag can limit driverless work
            own = self._settings.controllers.get(controller.spec.name)
            threads = getattr(own, "worker_threads", None)
            defaults = defaults if threads is None else dict.fromkeys(defaults, threads)
        place = DRIVERLESS if driver is None else driver.queue_name
        for kind in controller.spec.kinds:
            if kind.has_driver is (driver is None):
                continue
            limits = spec.lane_limits(kind, defaults[kind.name])
            queue.set_limits(
                lane_name(kind.name, place),
                limits.concurrency,
                rate_per_second=limits.rate_per_second,
                burst=limits.burst,
                total=limits.total,
                hold_seconds=spec.hold_seconds(kind, limits, self._settings),
            )

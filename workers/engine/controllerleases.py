"""The Leases of one controller: one per driver that it serves here, one in all without a driver.

What the Go sidecar of the controller would hold, under its name; losing it holds back the lanes of
this controller alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from workers.drivers.driver import Driver
    from workers.engine.leadership import Leadership
    from workers.spec import Spec


class ControllerLeases:
    """One controller's part of a process's Leases.

    Args:
        spec: the controller.
        leadership: its elections.
        drivers: returns the connected drivers.
    """

    def __init__(
        self, spec: Spec, leadership: Leadership, drivers: Callable[[], Iterable[Driver]]
    ) -> None:
        self.name = spec.name
        self._needs_driver = spec.needs_driver
        self._leadership = leadership
        self._drivers = drivers

    def places(self) -> list[tuple[str, str]]:
        """Queue name and driver name of every Lease."""
        if not self._needs_driver:
            return [("", "")]
        return [(driver.queue_name, driver.name) for driver in self._drivers()]

    def step(self) -> None:
        """Look after each Lease once.

        Raises:
            QueueUnavailable: Redis does not answer; the next step repeats what was not told.
        """
        self._leadership.step(self.places())

    def run(self) -> None:
        """Step until `stop`; never raises."""
        self._leadership.run(self.places)

    def check(self) -> str:
        """Say which Lease of ours is overdue; "" for none."""
        return self._leadership.check()

    def stop(self) -> None:
        """End `run` and give back what is held; call after the last work ended."""
        self._leadership.stop()

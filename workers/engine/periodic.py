"""Adds periodic work that is due: capacity polls, sweeps, events about long holds.

Each worker checks twice a second, and beat's tick checks too. The periods are marks in Redis, so a
doubled, late or dead clock does no harm.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from workers.engine.controller import Ticks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from workers.drivers.driver import Driver
    from workers.engine.context import Context
    from workers.engine.controller import Controller, Due
    from workers.explain.lasting import Lasting
    from workers.queue.periods import Periods
    from workers.queue.workqueue import WorkQueue

TICK_SECONDS: Final = 0.5


class Periodic:
    """The clock of one worker.

    Args:
        drivers: returns the connected drivers.
        queue: gets the keys.
        periods: the marks.
        controllers: those of this process; their methods get what `context` returns.
        lasting: sends events about claims that are held back for long; None for none.
    """

    def __init__(
        self,
        drivers: Callable[[], list[Driver]],
        *,
        queue: WorkQueue,
        periods: Periods,
        controllers: Sequence[Controller] = (),
        context: Callable[[], Context],
        lasting: Lasting | None = None,
    ) -> None:
        self._drivers = drivers
        self._queue = queue
        self._periods = periods
        self._controllers = controllers
        self._context = context
        self._lasting = lasting
        self._is_started = False

    def tick(self) -> None:
        """Add what is due; the first tick of a process adds everything.

        Raises:
            QueueUnavailable: Redis does not answer.
        """
        drivers = self._drivers()
        for controller in self._controllers:
            if isinstance(controller, Ticks):
                controller.tick(self._context(), drivers, is_first=not self._is_started)
        self._add_due(drivers)
        if self._lasting is not None:
            self._lasting.tick()
        self._is_started = True

    def _add_due(self, drivers: list[Driver]) -> None:
        for controller in self._controllers:
            places = [None, *drivers] if not controller.spec.needs_driver else drivers
            for driver in places:
                for due in self._due(controller, driver):
                    if not self._is_started:
                        self._periods.restart(due.key.text, due.every_seconds)
                        self._queue.add([due.key])
                    elif self._periods.is_due(due.key.text, due.every_seconds):
                        self._queue.add([due.key])

    def _due(self, controller: Controller, driver: Driver | None) -> Iterable[Due]:
        """Return the controller's periodic work; empty if it has no work for the driver."""
        if driver is not None and not controller.serves(driver):
            return ()
        return controller.periodic(self._context(), driver)

    def step(self) -> float:
        """Tick once; returns the seconds until the next tick (a `Loop`'s step).

        Raises:
            QueueUnavailable: Redis does not answer.
        """
        self.tick()
        return TICK_SECONDS

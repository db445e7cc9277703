"""Adds the keys of periodic work that is due, and sends events about claims that have to wait.

The periodic work includes capacity polls and sweeps. Each worker checks twice a second for work
that is due, and beat's tick triggers a check too. The periods are marks in Redis, so a timer that
runs twice, is late or has died does no harm.
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
    """The timer for the periodic work of one worker.

    Args:
        drivers: returns the connected drivers.
        queue: the queue to which the keys are added.
        periods: the marks of the periods in Redis.
        controllers: the controllers of this process; their methods are called with the result
            of `context`.
        context: returns this process's `Context`.
        lasting: sends events about claims that have been held back for long; None for no events.
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
        """Add the work that is due; the first tick of a process adds all periodic work.

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
        """Tick once, as the step of a `Loop`; return the seconds until the next tick.

        Raises:
            QueueUnavailable: Redis does not answer.
        """
        self.tick()
        return TICK_SECONDS

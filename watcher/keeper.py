"""Does the watcher's periodic work in Redis: moves due keys, and detects new drivers and lost data.

Each step takes a bounded time, waits only for Redis, and may run in several watchers at once.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final, Protocol

from watcher.known import Differing, merged
from workers.errors import TransientError
from workers.explain.words import named
from workers.observability.logging import get_logger

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from watcher.known import Record

_log = get_logger(__name__)

LOOK_SECONDS: Final = 0.4
# The interval between steps until the first driver is known; until then, no key can be added.
FIRST_LOOK_SECONDS: Final = 0.05
# How often to check for kinds that are missing in the shared cache. Workers wait until such a kind
# has been listed again.
CHECK_SECONDS: Final = 5.0


class Pump(Protocol):
    """The method of workers.queue.WorkQueue that is used here."""

    def pump(self) -> float:
        """Move the keys that are due; return the seconds until the next call."""


class Epochs(Protocol):
    """The method of workers.queue.catalog.CatalogWriter that is used here."""

    def epoch(self) -> str:
        """Return the current epoch of Redis."""


class Registry(Protocol):
    """The method of workers.queue.registry.DriverRegistry that is used here."""

    def alive(self) -> dict[str, dict[str, Any]]:
        """Return the records of the drivers that are served now, by queue name."""


class Keeper:
    """Does the periodic work, one step at a time.

    Args:
        queue: the queue to maintain.
        epochs: returns the epoch of Redis.
        registry: returns the registered drivers.
        on_epoch: called with True once Redis has been reached for the first time, and with False
            after Redis has lost its data.
        on_drivers: called with all known records by queue name, after the records have changed.
        on_check: called every `CHECK_SECONDS`, to check for kinds that are missing in the
            shared cache.
    """

    def __init__(
        self,
        queue: Pump,
        epochs: Epochs,
        registry: Registry,
        *,
        on_epoch: Callable[[bool], None],
        on_drivers: Callable[[dict[str, Record]], None],
        on_check: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._queue = queue
        self._epochs = epochs
        self._registry = registry
        self._on_epoch = on_epoch
        self._on_drivers = on_drivers
        self._on_check = on_check
        self._clock = clock
        self._alive: Mapping[str, Any] | None = None
        self._records: dict[str, Record] = {}
        self._differing = Differing()
        self._looked_at = self._checked_at = float("-inf")
        self.epoch = ""

    def step(self) -> float:
        """Check Redis and maintain the queue; return the seconds until the next step.

        Raises:
            TransientError: Redis does not answer.
        """
        now = self._clock()
        if not self._records or now - self._looked_at >= LOOK_SECONDS:
            self._look()
            self._looked_at = now
        if now - self._checked_at >= CHECK_SECONDS:
            self._checked_at = now
            self._on_check()
        seconds = self._queue.pump()
        return seconds if self._records else FIRST_LOOK_SECONDS

    def _look(self) -> None:
        epoch, before = self._epochs.epoch(), self.epoch
        # The epoch is set before the callbacks run, because lists that begin now belong to the new
        # epoch.
        self.epoch = epoch
        if epoch != before:
            if before:
                _log.warning("Redis restarted and may have lost its data; adding all keys again")
            try:
                self._on_epoch(not before)
            except TransientError:
                self.epoch = before  # the next check repeats this
                raise
        self._look_at_drivers()

    def _look_at_drivers(self) -> None:
        alive = self._registry.alive()
        for place in self._differing.see(alive, self._clock()):
            _log.warning(
                "workers report different facts about the same driver: two drivers have the same "
                "name, or a rollout has not finished; give each storage system its own driver name",
                driver=place,
            )
        if alive == self._alive:
            return
        self._alive = alive
        records = merged(self._records, alive)
        if records != self._records:
            self._records = records
            names = named(record["name"] for record in records.values())
            _log.info("the set of served drivers changed", drivers=names)
            self._on_drivers(records)

"""What does the engine ask of a controller? Everything that is not data.

A controller's `spec.py` says what it is, its `controller.py` has one object of this protocol. The
frame takes its locks, runs `sync` and turns the outcome into what the queue does next; the rest is
asked when a driver is announced and when something may be due.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from workers.drivers.driver import Driver
    from workers.engine.context import Context
    from workers.engine.outcome import Outcome
    from workers.queue.keys import Key
    from workers.queue.leases import Lease
    from workers.queue.locks import Lock
    from workers.spec import Spec


@dataclass(frozen=True, slots=True)
class Due:
    """Work that comes back by itself: its key is added once in every period, at the start too."""

    key: Key
    every_seconds: float


class Controller(Protocol):
    """One controller; stateless, used by all threads. `driver` is None for driverless kinds."""

    @property
    def spec(self) -> Spec:
        """The controller as data."""

    def locks(self, key: Key, driver: Driver | None) -> tuple[Lock, ...]:
        """What is locked before `sync` starts; () where `sync` takes its locks itself."""

    def sync(self, context: Context, driver: Driver | None, key: Key, lease: Lease) -> Outcome:
        """One reconcile of one key, under its lease."""

    def periodic(self, context: Context, driver: Driver | None) -> Iterable[Due]:
        """What comes back by itself for a driver; asked twice a second, so it must be cheap."""

    def serves(self, driver: Driver) -> bool:
        """Whether there is work for a driver with these capabilities."""

    def limits(self, driver: Driver | None) -> Mapping[str, int]:
        """How many keys of each kind may run at once, over all workers; 0 runs none."""

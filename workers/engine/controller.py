"""What does the engine ask of a controller? Everything that is not data.

A controller's `spec.py` says what it is, its `controller.py` has one object of this protocol. The
frame takes its locks, runs `sync` and turns the outcome into what the queue does next; the rest is
asked when a driver is announced and when something may be due.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, cast, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from workers.config.settings import Settings
    from workers.drivers.driver import Driver
    from workers.engine.context import Context
    from workers.engine.outcome import Outcome
    from workers.kube.resources import KubeResources
    from workers.observability.metrics import Metrics
    from workers.queue.catalog import CatalogReader
    from workers.queue.connection import RedisClient
    from workers.queue.keys import Key
    from workers.queue.leases import Lease
    from workers.queue.locks import Lock
    from workers.queue.periods import Periods
    from workers.queue.seal import Seal
    from workers.queue.workqueue import WorkQueue
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


def load(name: str) -> Controller:
    """Import what runs the controller with this name; only workers need it."""
    module = importlib.import_module(f"workers.controllers.{name.replace('-', '_')}.controller")
    return cast("Controller", module.CONTROLLER)


# What only some controllers have.


@dataclass(frozen=True, slots=True)
class Means:
    """What a controller may build its own part of a process from."""

    settings: Settings
    redis: RedisClient
    seal: Seal
    kube: KubeResources
    queue: WorkQueue
    catalog: CatalogReader
    periods: Periods
    metrics: Metrics


@runtime_checkable
class KeepsParts(Protocol):
    """A controller that keeps something in the process."""

    def build(self, means: Means, parts: Mapping[str, Any]) -> Any:
        """Build it, once; `parts` are those of the controllers before it in the catalogue.

        Raises:
            ConfigError: the process cannot start.
        """


@runtime_checkable
class Ticks(Protocol):
    """A controller with a clock of its own, beside what `periodic` says."""

    def tick(self, context: Context, drivers: Sequence[Driver], *, is_first: bool) -> None:
        """Add what is due; twice a second, `is_first` once per process.

        Raises:
            QueueUnavailable: Redis does not answer.
        """


@runtime_checkable
class TellsOfDrivers(Protocol):
    """A controller whose watcher rules or tools must know something of a driver."""

    def record(self, driver: Driver) -> Mapping[str, Any]:
        """What stands in the driver's record in the registry; no secrets."""

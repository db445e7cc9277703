"""Declares the methods of a controller that the engine calls.

A controller's `spec.py` describes it as data; its `controller.py` defines one object that
implements this protocol. The frame takes the locks, runs `sync` and passes the outcome to the
queue. The other methods are called when a driver is announced, and when periodic work may be due.
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
    """Periodic work: a key that is added when a process starts, and then once in every period."""

    key: Key
    every_seconds: float


class Controller(Protocol):
    """A stateless controller that all threads share.

    The argument `driver` is None for kinds without a driver.
    """

    @property
    def spec(self) -> Spec:
        """The description of the controller as data."""

    def locks(self, key: Key, driver: Driver | None) -> tuple[Lock, ...]:
        """Return the locks to take before `sync` starts; () if `sync` takes its own locks."""

    def sync(self, context: Context, driver: Driver | None, key: Key, lease: Lease) -> Outcome:
        """Reconcile one key under its lease."""

    def periodic(self, context: Context, driver: Driver | None) -> Iterable[Due]:
        """Return a driver's periodic work; called twice a second, so it must be cheap."""

    def serves(self, driver: Driver) -> bool:
        """Return True if this controller has work for the driver, given its capabilities."""

    def limits(self, driver: Driver | None) -> Mapping[str, int]:
        """Return how many keys of each kind all workers together may run at once; 0 allows none."""


def load(name: str) -> Controller:
    """Import the controller with this name; only workers need the controller's code."""
    module = importlib.import_module(f"workers.controllers.{name.replace('-', '_')}.controller")
    return cast("Controller", module.CONTROLLER)


# The protocols below are optional: a controller need not implement them.


@dataclass(frozen=True, slots=True)
class Means:
    """What a controller may use to build its per-process object."""

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
    """A controller that keeps an object of its own in the process."""

    def build(self, means: Means, parts: Mapping[str, Any]) -> Any:
        """Build the controller's object; called once per process.

        `parts` contains the objects of the controllers that precede this one in the catalogue.

        Raises:
            ConfigError: the process cannot start.
        """


@runtime_checkable
class Ticks(Protocol):
    """A controller that adds keys on its own schedule, in addition to `periodic`."""

    def tick(self, context: Context, drivers: Sequence[Driver], *, is_first: bool) -> None:
        """Add the keys that are due; this is called twice a second.

        `is_first` is True for the first call in a process.

        Raises:
            QueueUnavailable: Redis does not answer.
        """


@runtime_checkable
class TellsOfDrivers(Protocol):
    """A controller whose watcher rules or tools need facts about a driver."""

    def record(self, driver: Driver) -> Mapping[str, Any]:
        """Return this controller's fields for the driver's registry record, without secrets."""

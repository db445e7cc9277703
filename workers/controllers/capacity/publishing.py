"""Decides for which drivers this process publishes capacity, with which owner, and when.

Three triggers add keys: the poll (a period in Redis), a change of the wanted items (classes or
segments, noticed in the shared cache without a request to the API server), and created or deleted
volumes. `workers.controllers.capacity.sync` reconciles the keys.
"""

from __future__ import annotations

import hashlib
import threading
import time
from typing import TYPE_CHECKING, Any, Final

from workers.controllers.capacity.items import Wanted, wanted_items
from workers.controllers.capacity.objects import MANAGED_BY, Publisher, managed_by
from workers.controllers.capacity.owners import owner_reference
from workers.controllers.capacity.refresh import after_delete, after_provision
from workers.controllers.capacity.spec import SPEC
from workers.errors import ApiError, CatalogIncomplete, ConfigError, TransientError
from workers.kube import paths
from workers.queue.catalogkinds import KIND_CLASSES
from workers.queue.keys import capacity_key
from workers.topology.segments import node_segment, segment_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from workers.config.settings import Settings
    from workers.controllers.capacity.items import Item
    from workers.controllers.provisioner.clusters import Clusters
    from workers.drivers.driver import Driver
    from workers.engine.context import Context
    from workers.errors import State
    from workers.kube.paths import Resource
    from workers.kube.resources import KubeResources
    from workers.observability.metrics import Metrics
    from workers.queue.capacities import CapacityStore
    from workers.queue.catalog import CatalogReader
    from workers.queue.keys import Key
    from workers.queue.leases import CatalogState
    from workers.queue.periods import Periods
    from workers.queue.workqueue import WorkQueue

    # An attempt or a deletion: the driver, the class ("" for a deletion), and either a failed
    # attempt's state or the created or deleted volume.
    _Change = tuple[Driver, str, State | Mapping[str, Any]]


POLL: Final = "poll"
PLAN: Final = "plan"
# The delay after a volume was created or deleted, so that a burst of them causes only one call
# (M-014).
REFRESH_SECONDS: Final = 1.0
# How many changes are kept between two ticks; the poll covers the rest.
_MAX_CHANGES: Final = 10_000
# The values that client-go uses if a rate or burst is set to 0.
_DEFAULT_QPS: Final = 5.0
_DEFAULT_BURST: Final = 10
_FATAL: Final = 255


class Publishing:
    """Publishes capacity for one worker process; thread-safe.

    Args:
        settings: the settings of the process.
        kube: the client for the API server.
        store: the known objects.
        queue: the queue to which keys are added.
        catalog: the catalog with the classes.
        clusters: the cluster's topology, from which the segments are taken.
        periods: the periods in Redis, for the poll.
        metrics: the gauges to set; None for no metrics.
        sleep: a function that sleeps for a number of seconds.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        kube: KubeResources,
        store: CapacityStore,
        queue: WorkQueue,
        catalog: CatalogReader,
        clusters: Clusters,
        periods: Periods,
        metrics: Metrics | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.store = store
        self.resource: Resource = paths.CAPACITIES
        self._settings = settings
        self._kube = kube
        self._queue = queue
        self._catalog = catalog
        self._clusters = clusters
        self._periods = periods
        self._metrics = metrics
        self._sleep = sleep
        self._owner: dict[str, Any] | None = None
        self._changes: list[_Change] = []
        self._lock = threading.Lock()

    # At the start.

    def prepare(self) -> None:
        """Find the served API version and the owner of the objects; called before the first tick.

        Raises:
            ConfigError: there is no owner at the configured level, or the API server does not serve
                CSIStorageCapacity or does not answer; the exit code is 255.
        """
        capacity = self._settings.capacity
        if not capacity.enabled:
            return
        try:
            self.resource = self._served()
        except ApiError as error:
            raise ConfigError(f"capacity: discovery failed: {error}", exit_code=_FATAL) from error
        self._owner = owner_reference(
            capacity.ownerref_level,
            namespace=capacity.namespace,
            pod_name=capacity.pod_name,
            fetch=self._kube.get_by_kind,
        )

    def _served(self) -> Resource:
        """Return the API version that discovery finds, without a trial write (CAP-002, CAP-070)."""
        for version in ("v1", "v1beta1"):
            resource = paths.CAPACITIES.at(version)
            if self._kube.is_served(resource):
                return resource
        raise ConfigError(
            "--enable-capacity: the API server does not serve CSIStorageCapacity objects. Remove "
            "the flag, or use Kubernetes 1.24 or newer",
            exit_code=_FATAL,
        )

    def start(self, drivers: Iterable[Driver]) -> None:
        """Start a first poll of every driver immediately."""
        for driver in filter(self.publishes, drivers):
            key = capacity_key(driver.queue_name, POLL)
            self._periods.restart(key.text, self._settings.capacity.poll_interval_seconds)
            self._queue.add([key])

    # Drivers, their publishers and their items.

    def publishes(self, driver: Driver) -> bool:
        """Return True if the driver's capacity is published (CAP-012)."""
        return driver.publishes_capacity

    def publisher(self, driver: Driver) -> Publisher:
        """Return the labels, the owner and the namespace for writing the driver's objects."""
        node = driver.settings.node
        return Publisher(
            driver_name=driver.name,
            namespace=self._settings.capacity.namespace,
            managed_by=managed_by(node.node_name) if node.enabled else MANAGED_BY,
            owner=self._owner,
            api_version=self.resource.api_version,
        )

    def wanted(self, driver: Driver, state: CatalogState | None = None) -> Wanted:
        """Return the items for which the driver should have objects now.

        Raises:
            CatalogIncomplete: not all classes or nodes are known.
        """
        if driver.node_segments is not None:
            segments: Iterable[Any] = [node_segment(driver.node_segments)]
        else:
            segments = self._clusters.current(state).segments(driver.name)
        return wanted_items(
            self._catalog.all(KIND_CLASSES, state).values(),
            segments,
            driver_name=driver.name,
            for_immediate_binding=self._settings.capacity.for_immediate_binding,
        )

    def class_uids(self, wanted: Wanted, state: CatalogState | None = None) -> dict[str, str]:
        """Return the uid of every wanted class; a recreated class may have other parameters."""
        classes = self._catalog.all(KIND_CLASSES, state)
        return {
            name: str(classes[name]["metadata"].get("uid", ""))
            for name in sorted(wanted.storage_classes)
            if name in classes
        }

    def wait_for_turn(self, driver: Driver) -> None:
        """Wait until `--kube-api-capacity-qps` allows the next write (CAP-071).

        The rate applies to the driver across all processes, so more workers do not write faster.

        Raises:
            QueueUnavailable: Redis does not answer.
        """
        kube = self._settings.kube
        if kube.capacity_qps < 0:
            return
        self._sleep(
            self.store.turn(
                driver.queue_name,
                qps=kube.capacity_qps or _DEFAULT_QPS,
                burst=kube.capacity_burst or _DEFAULT_BURST,
            )
        )

    # Triggers.

    def provisioned(
        self, driver: Driver, storage_class: str, outcome: State | Mapping[str, Any]
    ) -> None:
        """Record the result of an attempt for the next tick; makes no request (CAP-030)."""
        self._note(driver, storage_class, outcome)

    def deleted(self, driver: Driver, volume: Mapping[str, Any]) -> None:
        """Record that a volume was deleted from the storage system (CAP-030)."""
        self._note(driver, "", volume)

    def _note(self, driver: Driver, storage_class: str, outcome: State | Mapping[str, Any]) -> None:
        if not self.publishes(driver):
            return
        with self._lock:
            if len(self._changes) < _MAX_CHANGES:
                self._changes.append((driver, storage_class, outcome))

    def tick(self, drivers: Iterable[Driver]) -> None:
        """Add the keys that are due now; called often, from any number of processes.

        Raises:
            QueueUnavailable: Redis does not answer.
        """
        served = [driver for driver in drivers if self.publishes(driver)]
        for driver in served:
            self._tick(driver, is_only=len(served) == 1)
        self._refresh()

    def _tick(self, driver: Driver, *, is_only: bool) -> None:
        poll = capacity_key(driver.queue_name, POLL)
        if self._periods.is_due(poll.text, self._settings.capacity.poll_interval_seconds):
            self._queue.add([poll])
        try:
            wanted = self.wanted(driver)
            digest = digest_of(wanted, self.class_uids(wanted))
        except CatalogIncomplete:
            return
        noticed = self.store.noticed(driver.queue_name)
        if noticed is None or noticed.get("digest") != digest:
            self._queue.add([capacity_key(driver.queue_name, PLAN)])
        if self._metrics is not None:
            current, obsolete = self.store.counts(driver.queue_name)
            label = "" if is_only else driver.name
            self._metrics.capacity_goal.labels(label).set(len(wanted))
            self._metrics.capacity_current.labels(label).set(current)
            self._metrics.capacity_obsolete.labels(label).set(obsolete)

    def _refresh(self) -> None:
        with self._lock:
            changes, self._changes = self._changes, []
        try:
            self._ask_for(changes)
        except TransientError as error:
            with self._lock:  # kept for the next tick, which tries again
                self._changes = (changes + self._changes)[:_MAX_CHANGES]
            if not isinstance(error, CatalogIncomplete):
                raise

    def _ask_for(self, changes: list[_Change]) -> None:
        keys: dict[Key, None] = {}
        for driver, storage_class, outcome in changes:
            items = self._items(driver, storage_class, outcome)
            keys |= dict.fromkeys(capacity_key(driver.queue_name, item.text) for item in items)
        if keys:
            failing = self.store.failing(list(keys))
            self._queue.add(
                [key for key in keys if key not in failing], delay_seconds=REFRESH_SECONDS
            )

    def _items(
        self, driver: Driver, storage_class: str, outcome: State | Mapping[str, Any]
    ) -> list[Item]:
        wanted = self.wanted(driver)
        if not storage_class and not hasattr(outcome, "value"):
            return after_delete(wanted, outcome)
        return after_provision(wanted, storage_class, outcome)


def digest_of(wanted: Wanted, class_uids: Mapping[str, str]) -> str:
    """Return a hash that changes only if the wanted items or the classes' uids change (C-113)."""
    parts = [f"{name}={uid}" for name, uid in sorted(class_uids.items())]
    parts += sorted(map(segment_text, wanted.segments))
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def publishing_of(context: Context) -> Publishing | None:
    """Return this process's publishing; None if this process does not run the controller."""
    return context.parts.get(SPEC.name)

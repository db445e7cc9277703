"""The watcher as a whole: its threads, how they start, and how they end.

Two watchers may run side by side: every write is idempotent or decided by resourceVersion.
Threads: one reflector per kind, the outbox, the keeper, the resync, the restorer. Reflectors start
when Redis was seen for the first time, those of nodes and attachments when a driver needs them
(F-034).
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any, Final

from watcher.capacities import CapacitySink, label_selector
from watcher.counting import CountingSink
from watcher.intents import Restorer, restore_intents
from watcher.keeper import Keeper
from watcher.outbox import Outbox
from watcher.resync import Resync, add_everything
from watcher.sinks import (
    AttachmentSink,
    ClaimSink,
    ClassSink,
    CsiNodeSink,
    NodeSink,
    VolumeSink,
)
from watcher.undecided import Undecided
from workers.kube import paths
from workers.kube.objects import AnyObject, Attachment, Claim, CsiNode, Node, Volume
from workers.kube.resources import KubeResources
from workers.kube.watch import Reflector

if TYPE_CHECKING:
    from collections.abc import Callable

    from watcher.drivers import Drivers
    from watcher.intents import Intents
    from watcher.keeper import Registry
    from workers.kube.client import KubeClient
    from workers.kube.watch import Sink
    from workers.observability.metrics import Metrics
    from workers.queue.catalog import CatalogWriter
    from workers.queue.keys import Key
    from workers.queue.recovery import Recovery
    from workers.queue.workqueue import WorkQueue

_RECOVERY_SECONDS: Final = 60.0
_CATALOG_KINDS = ("classes", "csinodes", "nodes", "attachments")


class Watcher:
    """All parts, wired.

    Args:
        client: API client with at least 10 pooled connections.
        queue: where keys go; its `publish` sends tickets.
        catalog: where classes, nodes and attachments go.
        registry: who serves which driver.
        intents: the store of attempts.
        namespace: of the system's own ConfigMaps.
        resync_seconds: time between two looks at everything undecided; 0 for none.
        recovery: gives records of attempts their keys back.
        metrics: counts what the API server sends; None counts nothing.

    Attributes:
        undecided: the table of claims and volumes.
        reflectors: by kind, those started so far.
    """

    def __init__(
        self,
        client: KubeClient,
        *,
        queue: WorkQueue,
        catalog: CatalogWriter,
        registry: Registry,
        intents: Intents,
        namespace: str,
        resync_seconds: float = 900.0,
        recovery: Recovery | None = None,
        metrics: Metrics | None = None,
    ) -> None:
        self._client = client
        self._metrics = metrics
        resources = KubeResources(client)
        self.undecided = Undecided()
        self.outbox = Outbox(queue, catalog)
        self.keeper = Keeper(
            queue, catalog, registry, on_epoch=self._redis_seen, on_drivers=self._drivers_changed
        )
        self._resync = Resync(self.undecided, self.outbox, period_seconds=resync_seconds)

        def restore() -> list[Key]:
            if recovery is not None:
                recovery.run()
            return restore_intents(resources, namespace, intents, self._queue_names())

        period_seconds = recovery_seconds(resync_seconds)
        self._restorer = Restorer(restore, self.outbox.add, period_seconds=period_seconds)
        self.reflectors: dict[str, Reflector[Any]] = {}
        self._threads: list[threading.Thread] = []
        self._stopped = threading.Event()

    def start(self) -> None:
        """Start the threads; returns at once."""
        self._start_thread("outbox", self.outbox.run)
        self._start_thread("keeper", self.keeper.run)
        if self._resync.period_seconds > 0:
            self._start_thread("resync", self._resync.run)
        self._start_thread("intents", self._restorer.run)

    def stop(self, *, timeout_seconds: float = 3.0) -> None:
        """End all threads; what was not sent is found by the next list. Safe to call twice."""
        deadline = time.monotonic() + timeout_seconds
        self._stopped.set()
        self.keeper.stop()
        self._resync.stop()
        self._restorer.stop()
        for reflector in tuple(self.reflectors.values()):
            reflector.stop()
        self.outbox.stop()
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    @property
    def is_synced(self) -> bool:
        """Whether every started kind was listed and all of it is in Redis."""
        reflectors = self.reflectors.values()
        return (
            bool(reflectors)
            and all(reflector.health.is_synced for reflector in reflectors)
            and self.outbox.is_idle
        )

    def health(self) -> dict[str, Any]:
        """Return the state of each part for the health endpoint; ages in seconds, None = never."""
        now = time.monotonic()
        kinds = {
            kind: {
                "synced": reflector.health.is_synced,
                "list_age_seconds": _age(now, reflector.health.listed_at),
                "event_age_seconds": _age(now, reflector.health.event_at),
                "error": reflector.health.error,
            }
            for kind, reflector in self.reflectors.items()
        }
        return {
            "kinds": kinds,
            "redis": not (self.keeper.is_down or self.outbox.is_down),
            "threads": all(thread.is_alive() for thread in self._threads),
            "undecided": self.undecided.counts(),
            "drivers": sorted(self.undecided.drivers.by_name),
        }

    def check_live(self) -> str:
        """Say which thread ended, which only a restart can mend; "" if none did."""
        ended = [thread.name for thread in self._threads if not thread.is_alive()]
        return f"ended: {', '.join(ended)}" if ended else ""

    def check_ready(self) -> str:
        """Say what keeps events from reaching the queue; "" if nothing does."""
        if self.keeper.is_down or self.outbox.is_down or not self.reflectors:
            return "waiting for Redis"
        behind = {kind: reflector.health for kind, reflector in self.reflectors.items()}
        return "; ".join(
            f"{kind}: {health.error or 'not listed yet'}"
            for kind, health in behind.items()
            if health.error or not health.is_synced
        )

    def _redis_seen(self, is_first: bool) -> None:
        """Fill Redis, at the start and after it lost its data (M-017, C-148)."""
        if is_first:
            self._start_core_reflectors()
        else:
            for kind in _CATALOG_KINDS:
                if reflector := self.reflectors.get(kind):
                    reflector.relist()
            add_everything(self.undecided, self.outbox)
        self._restorer.ask()

    def _queue_names(self) -> set[str]:
        return {view.queue_name for view in self.undecided.drivers.views()}

    def _drivers_changed(self, drivers: Drivers) -> None:
        before = self.undecided.drivers
        self.outbox.add(self.undecided.set_drivers(drivers))
        if {view.queue_name for view in drivers.views()} - {
            view.queue_name for view in before.views()
        }:
            self._restorer.ask()
        views = drivers.views()
        if any(view.needs_nodes for view in views):
            self._reflect(
                "csinodes", paths.CSI_NODES, CsiNode, CsiNodeSink(self.outbox, self._epoch)
            )
            sink = NodeSink(self.outbox, self._epoch)
            self._reflect("nodes", paths.NODES, Node, sink, metadata_only=True)
        if any(view.has_attach for view in views):
            attachments = AttachmentSink(self.undecided, self.outbox, self._epoch)
            self._reflect("attachments", paths.ATTACHMENTS, Attachment, attachments)
        for place in {view.capacity for view in views if view.capacity}:
            self._reflect_capacities(*place)
        # The table was filled by the CSI provisioner's rules; these drivers have others.
        has_own_rules = any(
            (view.node or not view.add_finalizer) and view.name not in before.by_name
            for view in views
        )
        if has_own_rules and "volumes" in self.reflectors:
            self.reflectors["volumes"].relist()

    def _reflect_capacities(self, namespace: str, managed_by: str) -> None:
        sink = CapacitySink((namespace, managed_by), self.outbox, lambda: self.undecided.drivers)
        self._reflect(
            f"capacities-{namespace}-{managed_by}",
            paths.CAPACITIES,
            AnyObject,
            sink,
            namespace=namespace,
            metadata_only=True,
            label_selector=label_selector(managed_by),
        )

    def _start_core_reflectors(self) -> None:
        classes = ClassSink(self.undecided, self.outbox, self._epoch)
        self._reflect("classes", paths.STORAGE_CLASSES, dict[str, Any], classes)
        self._reflect("claims", paths.CLAIMS, Claim, ClaimSink(self.undecided, self.outbox))
        self._reflect("volumes", paths.VOLUMES, Volume, VolumeSink(self.undecided, self.outbox))

    def _reflect(
        self,
        kind: str,
        resource: paths.Resource,
        item_type: type[Any],
        sink: Sink[Any],
        *,
        namespace: str = "",
        metadata_only: bool = False,
        label_selector: str = "",
    ) -> None:
        if kind in self.reflectors or self._stopped.is_set():
            return
        if self._metrics is not None:
            sink = CountingSink(sink, self._metrics.watch_events, resource.plural)
        reflector = Reflector(
            self._client,
            resource.path(namespace=namespace),
            item_type,
            sink,
            metadata_only=metadata_only,
            label_selector=label_selector,
        )
        self.reflectors[kind] = reflector
        self._start_thread(f"watch-{kind}", reflector.run)

    def _epoch(self) -> str:
        return self.keeper.epoch

    def _start_thread(self, name: str, target: Callable[[], None]) -> None:
        thread = threading.Thread(target=target, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()


def recovery_seconds(resync_seconds: float) -> float:
    """Return how often records without a key and stale copies are looked for (M-010 step 6)."""
    return min(_RECOVERY_SECONDS, resync_seconds or _RECOVERY_SECONDS)


def _age(now: float, then: float | None) -> float | None:
    return None if then is None else round(now - then, 1)

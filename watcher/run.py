"""The watcher as a whole: its threads, how they start, and how they end.

Two watchers may run side by side: every write is idempotent or decided by resourceVersion.
Threads: one reflector per resource, the outbox, the keeper, the resync, the restorer. Reflectors
start when Redis was seen for the first time, those of nodes and attachments when a driver needs
them (F-034).
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any, Final

from watcher.counting import CountingSink
from watcher.intents import Restorer, restore_intents
from watcher.keeper import Keeper
from watcher.machine import Machine
from watcher.outbox import Outbox
from watcher.resync import Resync
from workers.controllers.catalogue import SPECS
from workers.controllers.provisioner.filters import keys_of_unsaved
from workers.controllers.provisioner.served import Drivers
from workers.kube.resources import KubeResources
from workers.kube.watch import Reflector
from workers.observability.logging import get_logger

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from watcher.intents import Intents
    from watcher.keeper import Registry
    from watcher.known import Record
    from watcher.machine import Stream
    from workers.kube.client import KubeClient
    from workers.kube.watch import Sink
    from workers.observability.metrics import Metrics
    from workers.queue.catalog import CatalogWriter
    from workers.queue.keys import Key
    from workers.queue.recovery import Recovery
    from workers.queue.workqueue import WorkQueue
    from workers.spec import Spec

_log = get_logger()

_RECOVERY_SECONDS: Final = 60.0
_DEFAULT: Final = ("provisioner",)


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
        specs: every controller there is.
        chosen: the controllers that run whatever the registered drivers say.

    Attributes:
        machine: the controllers' rules and their reflectors.
        reflectors: by resource, those started so far.
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
        specs: Iterable[Spec] = SPECS,
        chosen: Collection[str] = _DEFAULT,
    ) -> None:
        self._client = client
        self._metrics = metrics
        resources = KubeResources(client)
        self._catalog = catalog
        self.outbox = Outbox(queue, catalog, all_keys=self._all_keys, on_cut=self._relist)
        self.reflectors: dict[str, Reflector[Any]] = {}
        self.machine = Machine(
            specs,
            self.outbox,
            chosen=chosen,
            epoch=lambda: self.keeper.epoch,
            follow=self._follow,
        )
        self.keeper = Keeper(
            queue,
            catalog,
            registry,
            on_epoch=self._redis_seen,
            on_drivers=self._drivers_changed,
            on_check=self._check_catalog,
        )
        self._resync = Resync(self.outbox.add_everything, period_seconds=resync_seconds)

        def restore() -> list[Key]:
            if recovery is not None:
                recovery.run(self._keys_of_unsaved)
            return restore_intents(resources, namespace, intents, self._queue_names())

        period_seconds = recovery_seconds(resync_seconds)
        self._restorer = Restorer(restore, self.outbox.add, period_seconds=period_seconds)
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
            "drivers": sorted({record["name"] for record in self.machine.records.values()}),
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
            self.machine.begin()
        else:
            self.machine.relist_catalog()
            self.outbox.add_everything()
        self._restorer.ask()

    def _drivers_changed(self, records: dict[str, Record]) -> None:
        is_new = records.keys() - self.machine.records.keys()
        self.machine.set_records(records)
        if is_new:
            self._restorer.ask()

    def _queue_names(self) -> set[str]:
        return {record["queue_name"] for record in self.machine.records.values()}

    def _check_catalog(self) -> None:
        """List kinds again that a worker found unreadable, or whose completion got lost (COR-4)."""
        if not self.outbox.is_idle:
            return
        kinds = {
            kind: name
            for kind, name in self.machine.catalog_kinds.items()
            if not self.machine.is_asked(name)
        }
        for kind in self._catalog.incomplete(kinds, self.keeper.epoch) if kinds else ():
            _log.warning("the catalog lacks a kind, listing it again", kind=kind)
            self.machine.relist([kinds[kind]])

    def _keys_of_unsaved(self, volume: dict[str, Any]) -> list[Key]:
        """Name the claim of a PV that was not saved, as the rules name it."""
        drivers = Drivers.of_records(self.machine.records_of("provisioner"))
        return keys_of_unsaved(volume, drivers)

    def _all_keys(self) -> list[Key]:
        return self.machine.all_keys()

    def _relist(self) -> None:
        _log.warning("too much waited for Redis, listing everything again")
        self.machine.relist(self.reflectors)

    def _follow(self, stream: Stream, sink: Sink[Any]) -> Reflector[Any] | None:
        if self._stopped.is_set():
            return None
        if self._metrics is not None:
            sink = CountingSink(sink, self._metrics.watch_events, stream.resource.plural)
        reflector = Reflector(
            self._client,
            stream.resource.path(namespace=stream.scope.namespace),
            stream.item_type,
            sink,
            metadata_only=stream.metadata_only,
            label_selector=stream.scope.label_selector,
        )
        self.reflectors[stream.name] = reflector
        self._start_thread(f"watch {stream.name}", reflector.run)
        return reflector

    def _start_thread(self, name: str, target: Callable[[], None]) -> None:
        thread = threading.Thread(target=target, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()


def recovery_seconds(resync_seconds: float) -> float:
    """Return how often records without a key and stale copies are looked for (M-010 step 6)."""
    return min(_RECOVERY_SECONDS, resync_seconds or _RECOVERY_SECONDS)


def _age(now: float, then: float | None) -> float | None:
    return None if then is None else round(now - then, 1)

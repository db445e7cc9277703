"""The whole watcher: its parts and threads, and how it starts and stops.

Two watchers may run at the same time, because every write is idempotent or decided by
resourceVersion. The threads are one reflector per resource, and the loops below. Reflectors start
once Redis has been reached; those of nodes and attachments start once a driver needs them (F-034).
The liveness check covers every thread, and fails if one has ended or is hanging.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any, Final

from watcher.counting import CountingSink
from watcher.history import LOOK_SECONDS, History
from watcher.intents import restore_intents
from watcher.keeper import Keeper
from watcher.machine import Machine
from watcher.oldkinds import OldKinds
from watcher.outbox import Outbox
from workers.backoff import Backoff
from workers.controllers.catalogue import SPECS
from workers.controllers.provisioner.filters import keys_of_unsaved
from workers.controllers.provisioner.served import Drivers
from workers.kube.pauserecord import PauseRecord
from workers.kube.resources import KubeResources
from workers.kube.watch import Reflector
from workers.loop import Loop
from workers.observability.logging import get_logger
from workers.queue.catalog import number
from workers.queue.presence import TTL_SECONDS

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from watcher.intents import Intents
    from watcher.keeper import Registry
    from watcher.known import Record
    from watcher.machine import Stream
    from workers.kube.client import KubeClient
    from workers.kube.paths import Resource
    from workers.kube.watch import Sink
    from workers.observability.metrics import Metrics
    from workers.queue.catalog import CatalogWriter
    from workers.queue.celerykeys import CeleryKeys
    from workers.queue.keys import Key
    from workers.queue.pauses import Pauses
    from workers.queue.presence import Presence
    from workers.queue.recovery import Recovery
    from workers.queue.workqueue import WorkQueue
    from workers.spec import Spec

_log = get_logger(__name__)

_RECOVERY_SECONDS: Final = 60.0
# Deletions are remembered for this long; no watcher lags that far behind.
PRUNE_SECONDS: Final = 3600.0
PAUSES_SECONDS: Final = 5.0
# Recovery reads ConfigMaps and records in Redis; each of these requests has its own timeout.
_RECOVERY_LIMIT_SECONDS: Final = 300.0
# A watch lasts 5 minutes at most and delivers bookmarks in between; a page of a list may take half
# a minute.
_REFLECTOR_LIMIT_SECONDS: Final = 600.0
_DEFAULT: Final = ("provisioner",)
ROLE: Final = "watcher"


class Watcher:
    """All parts of a watcher, connected to each other.

    Args:
        client: the client of the API server.
        queue: receives the keys; its `publish` notifies the workers.
        catalog: the shared cache; it receives classes, nodes and attachments.
        registry: the registered drivers.
        intents: the store of intents.
        namespace: the namespace of csi-fleet's own ConfigMaps.
        resync_seconds: the time between two resyncs; 0 for no resyncs.
        recovery: adds the keys of intents that have lost their key.
        metrics: counts watch events; None for no counts.
        presence: records every few seconds that this watcher is alive; None for no record.
        pauses: the mirror of operators' pauses in Redis; None for no mirror.
        celery_keys: deletes leftover Celery keys from Redis; None for no deletions.
        specs: the specs of all controllers.
        chosen: the controllers that run even if no registered driver names them.

    Attributes:
        machine: the controllers' rules and their reflectors.
        reflectors: the running reflectors, by resource.
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
        presence: Presence | None = None,
        pauses: Pauses | None = None,
        celery_keys: CeleryKeys | None = None,
        specs: Iterable[Spec] = SPECS,
        chosen: Collection[str] = _DEFAULT,
    ) -> None:
        self._client = client
        self._metrics = metrics
        self._catalog = catalog
        self.outbox = Outbox(
            queue,
            catalog,
            all_keys=self._all_keys,
            on_newer=lambda kind, version: self.history.compare(
                self.machine.feeder_of(kind), version
            ),
            on_cut=self._relist,
        )
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
        self.history = History(
            self.reflectors,
            epoch=lambda: self.keeper.epoch,
            end_life=catalog.end_history,
            relist=self.machine.relist,
        )
        self._resources: dict[str, Resource] = {}
        self._old_kinds = OldKinds(KubeResources(client), self._not_served, self._is_listed)
        # For each cached kind: the version that its watch had reached at the last pruning.
        self._pruned_to: dict[str, int] = {}
        self._intents = intents
        self._namespace = namespace
        self._recovery = recovery
        self._presence = presence
        self._pauses = pauses
        self._celery_keys = celery_keys
        self._recovery_seconds = recovery_seconds(resync_seconds)
        self._resync_seconds = resync_seconds
        self.loops = self._make_loops()
        self.outbox.on_waiting(self.loops["outbox"].wake)
        self._stopped = threading.Event()

    def _make_loops(self) -> dict[str, Loop]:
        """Return the loops by name, in the order in which to start them."""
        quick = Backoff(base_seconds=0.2, cap_seconds=2.0)
        loops = [
            Loop(
                "outbox",
                self.outbox.step,
                backoff=quick,
                first_wait_seconds=None,
            ),
            Loop(
                "keeper",
                self.keeper.step,
                backoff=Backoff(base_seconds=0.2, cap_seconds=2.0),
            ),
            Loop(
                "recovery",
                self._recover,
                limit_seconds=_RECOVERY_LIMIT_SECONDS,
                backoff=Backoff(),
                first_wait_seconds=self._recovery_seconds,
            ),
            Loop(
                "history",
                self.history.step,
                limit_seconds=_RECOVERY_LIMIT_SECONDS,
                backoff=Backoff(),
                first_wait_seconds=LOOK_SECONDS,
            ),
            Loop("prune", self._prune, first_wait_seconds=PRUNE_SECONDS),
            Loop("old kinds", self._old_kinds.step, backoff=Backoff()),
        ]
        if self._pauses is not None:
            loops.append(Loop("pauses", self._mirror_pauses, first_wait_seconds=None))
        if self._resync_seconds > 0:
            loops.append(
                Loop(
                    "resync",
                    self._resync,
                    first_wait_seconds=self._resync_seconds,
                )
            )
        if self._presence is not None:
            loops.append(Loop("presence", self._announce, first_wait_seconds=None))
        if self._celery_keys is not None:
            loops.append(Loop("celery keys", self._celery_keys.step, backoff=Backoff()))
        return {loop.name: loop for loop in loops}

    def start(self) -> None:
        """Start the threads; return at once."""
        for loop in tuple(self.loops.values()):
            loop.start()

    def stop(self, *, timeout_seconds: float = 3.0) -> None:
        """Stop all threads; idempotent. The next watcher's lists replace unsent data."""
        deadline = time.monotonic() + timeout_seconds
        self._stopped.set()
        self.history.stop()
        loops = tuple(self.loops.values())
        for loop in loops:
            loop.stop()
        for reflector in tuple(self.reflectors.values()):
            reflector.stop()
        for loop in loops:
            loop.join(max(0.0, deadline - time.monotonic()))

    @property
    def is_down(self) -> bool:
        """Whether Redis does not answer."""
        return self.loops["keeper"].is_failing or self.loops["outbox"].is_failing

    @property
    def is_synced(self) -> bool:
        """Whether every watched kind has been listed and all its objects are in Redis."""
        return self._is_listed() and self.outbox.is_idle

    def check_ready(self) -> str:
        """Return what prevents events from reaching the queue; "" if nothing does."""
        if self.is_down or not self.reflectors:
            problem = self.loops["keeper"].problem or self.loops["outbox"].problem
            return f"waiting for Redis: {problem}" if problem else "waiting for Redis"
        behind = {kind: reflector.health for kind, reflector in self.reflectors.items()}
        return "; ".join(
            f"{kind}: {health.error or 'not listed yet'}"
            for kind, health in behind.items()
            if health.error or not health.is_synced
        )

    def _redis_seen(self, is_first: bool) -> None:
        """Fill Redis, at startup and after Redis has lost its data (M-017, C-148)."""
        if is_first:
            if self._recovery is not None:
                self._recovery.adopt()
            self.machine.begin()
        else:
            self.history.life_began()
            self.machine.relist_catalog()
            self.outbox.add_everything()
        for name in {"recovery", "presence", "pauses"} & self.loops.keys():
            self.loops[name].wake()

    def _drivers_changed(self, records: dict[str, Record]) -> None:
        is_new = records.keys() - self.machine.records.keys()
        self.machine.set_records(records)
        if is_new:
            self.loops["recovery"].wake()

    def _recover(self) -> float:
        """Add the keys of intents that have no key; return the seconds until the next call."""
        if self._recovery is not None:
            self._recovery.run(self._keys_of_unsaved)
        keys = restore_intents(
            KubeResources(self._client), self._namespace, self._intents, self._queue_names()
        )
        if keys:
            _log.warning("restored attempts from their ConfigMaps", count=len(keys))
        self.outbox.add(keys)
        return self._recovery_seconds

    def _is_listed(self) -> bool:
        reflectors = tuple(self.reflectors.values())
        return bool(reflectors) and all(one.health.is_synced for one in reflectors)

    def _not_served(self) -> list[Resource]:
        """Return the watched kinds that the API server does not serve."""
        return [
            self._resources[name]
            for name, reflector in tuple(self.reflectors.items())
            if not reflector.health.is_served
        ]

    def _resync(self) -> float:
        """Add the keys of all objects that need work, in case an event was missed (M-016)."""
        _log.info("resync")
        self.outbox.add_everything()
        return self._resync_seconds

    def _mirror_pauses(self) -> float:
        """Mirror the operators' pauses in Redis; return the seconds until the next call.

        The ConfigMap may have been edited, or Redis may have lost a pause.
        """
        if self._pauses is not None:
            record = PauseRecord(KubeResources(self._client), self._namespace)
            self._pauses.mirror(record.list())
        return PAUSES_SECONDS

    def _announce(self) -> float:
        """Record, for operator commands, that this watcher is alive and which problems it has."""
        if self._presence is not None:
            self._presence.announce(ROLE)
            self._presence.complain(
                ROLE, [one.health.error for one in self.reflectors.values() if one.health.error]
            )
        return TTL_SECONDS / 3

    def _queue_names(self) -> set[str]:
        return {record["queue_name"] for record in self.machine.records.values()}

    def _check_catalog(self) -> None:
        """Relist the cached kinds that are not marked complete; workers are waiting for them."""
        is_idle = self.outbox.is_idle
        watched = [
            kind
            for kind, name in self.machine.catalog_kinds.items()
            if self.reflectors[name].health.is_watching
        ]
        if watched:
            self.outbox.keep_fresh(watched, self.keeper.epoch)
        if not is_idle:
            return
        kinds = {
            kind: name
            for kind, name in self.machine.catalog_kinds.items()
            if not self.machine.is_asked(name)
        }
        for kind in self._catalog.incomplete(kinds, self.keeper.epoch) if kinds else ():
            _log.warning("a kind is missing in the catalog; listing its objects again", kind=kind)
            self.machine.relist([kinds[kind]])

    def _prune(self) -> float:
        """Drop the cache entries of objects that were deleted at least an hour ago."""
        reached = {
            kind: number(self.reflectors[name].health.version)
            for kind, name in self.machine.catalog_kinds.items()
        }
        for kind, before in self._pruned_to.items():
            # If not, the reflector is listing now, or the resourceVersions have decreased.
            if 0 < before <= reached[kind]:
                self._catalog.prune(kind, str(before))
        self._pruned_to = reached
        return PRUNE_SECONDS

    def _keys_of_unsaved(self, volume: dict[str, Any]) -> list[Key]:
        """Return the keys of the claim of an unsaved PV, in the form that the rules use."""
        drivers = Drivers.of_records(self.machine.records_of("provisioner"))
        return keys_of_unsaved(volume, drivers)

    def _all_keys(self) -> list[Key]:
        return self.machine.all_keys()

    def _relist(self) -> None:
        """List everything again; until then, no object counts as missing from the shared cache."""
        self._catalog.mark_incomplete(self.machine.catalog_kinds)
        _log.warning("too many changes were waiting for Redis; listing all objects again")
        self.machine.relist(self.reflectors)

    def _follow(self, stream: Stream, sink: Sink[Any]) -> Reflector[Any] | None:
        if self._stopped.is_set():
            return None
        if self._metrics is not None:
            sink = CountingSink(sink, self._metrics.watch_events, stream.resource.plural)
        name = f"watch {stream.name}"
        self._resources[stream.name] = stream.resource

        def on_progress() -> None:
            self.loops[name].beat()

        reflector = self.reflectors[stream.name] = Reflector(
            self._client,
            stream.resource.path(namespace=stream.scope.namespace),
            stream.item_type,
            sink,
            metadata_only=stream.metadata_only,
            label_selector=stream.scope.label_selector,
            on_progress=on_progress,
        )
        # The loop has a single step, which runs for the life of the watcher.
        loop = self.loops[name] = Loop(name, reflector.run, limit_seconds=_REFLECTOR_LIMIT_SECONDS)
        loop.start()
        return reflector


def recovery_seconds(resync_seconds: float) -> float:
    """Return how often to search for stale copies and for intents without a key (M-010 step 6)."""
    return min(_RECOVERY_SECONDS, resync_seconds or _RECOVERY_SECONDS)

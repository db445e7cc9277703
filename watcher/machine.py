"""Decides which resources are watched, and passes objects to the rules and the shared cache.

Each resource has one reflector; the shared cache and all controllers that watch the resource share
it. What is watched depends only on the controllers' specs. A controller runs here if the settings
choose it or a driver's record names it. Each of its watches starts once the watch is needed, and
never stops.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from watcher.fanout import FanOut
from watcher.hosted import Hosted, RulesSink, ScopedSink
from watcher.known import concerns
from watcher.sinks import CATALOG_SINKS
from workers.observability.logging import get_logger
from workers.spec import EVERYWHERE

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from watcher.known import Record
    from watcher.outbox import Outbox
    from workers.kube.paths import Resource
    from workers.kube.watch import ReflectorHealth, Sink
    from workers.queue.keys import Key
    from workers.spec import Records, Rules, Scope, Spec, Watch

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Stream:
    """What one reflector follows: a resource or a part of it, and the form of its objects."""

    name: str
    resource: Resource
    item_type: type[Any]
    metadata_only: bool
    scope: Scope


class Following(Protocol):
    """The members of workers.kube.watch.Reflector that are used here."""

    health: ReflectorHealth

    def relist(self) -> None:
        """List again soon."""


class Machine:
    """The rules of all controllers, and the reflectors that feed them.

    Args:
        specs: the specs of all controllers.
        outbox: receives keys and entries of the shared cache.
        chosen: the controllers that run even if no driver's record names them.
        epoch: returns the current epoch of Redis.
        follow: starts a reflector that feeds the sink; returns None once the watcher stops.

    Attributes:
        reflectors: the running reflectors, by name.
        records: the records of all known drivers, by their place in the registry.
    """

    def __init__(
        self,
        specs: Iterable[Spec],
        outbox: Outbox,
        *,
        chosen: Collection[str],
        epoch: Callable[[], str],
        follow: Callable[[Stream, Sink[Any]], Following | None],
    ) -> None:
        self._hosted = [Hosted(spec, outbox) for spec in specs]
        self._outbox = outbox
        self._chosen = frozenset(chosen)
        self._epoch = epoch
        self._follow = follow
        self._has_begun = False
        self._fans: dict[str, FanOut[Any]] = {}
        self._catalog: dict[str, str] = {}
        # For each reflector: how many lists it had completed when a new list was last requested.
        self._asked: dict[str, int] = {}
        self.reflectors: dict[str, Following] = {}
        self.records: dict[str, Record] = {}

    def records_of(self, name: str) -> Records:
        """Return the records of a controller's drivers."""
        return next(hosted.records for hosted in self._hosted if hosted.spec.name == name)

    def rules(self, name: str) -> Rules:
        """Return a controller's rules."""
        return next(hosted.rules for hosted in self._hosted if hosted.spec.name == name)

    def begin(self) -> None:
        """Start the watches that are needed now; before this call, none is started."""
        self._has_begun = True
        for hosted in self._hosted:
            self._connect(hosted)

    def set_records(self, records: dict[str, Record]) -> None:
        """Set the records of all known drivers, by their place in the registry."""
        self.records = records
        for hosted in self._hosted:
            before = hosted.records
            ours = [record for record in records.values() if concerns(record, hosted.spec)]
            # Workers that run different controllers each write their own record of the same driver.
            now = tuple({record["queue_name"]: record for record in ours}.values())
            if now == before:
                continue
            # The keys are held first, because the new drivers' keys must not be sent before the
            # entries of the shared cache.
            self._hold(hosted, now)
            hosted.set_records(now)
            running = set(self.reflectors)
            self._connect(hosted)
            for watch in hosted.spec.watches:
                if watch.resource.plural in running and watch.relists(before, now):
                    self.relist([watch.resource.plural])

    def all_keys(self) -> list[Key]:
        """Return the keys of all objects that need work, for all controllers."""
        return [key for hosted in self._hosted for key in hosted.all_keys()]

    @property
    def catalog_kinds(self) -> Mapping[str, str]:
        """The kinds that are written to the shared cache, each with the name of its reflector."""
        catalog = self._catalog.copy()
        return {kind: name for kind, name in catalog.items() if name in self.reflectors}

    def feeder_of(self, kind: str) -> str:
        """Return the name of the reflector that feeds a kind of the shared cache."""
        return self._catalog[kind]

    def relist(self, names: Iterable[str]) -> None:
        """List the resources of the reflectors with these names again."""
        for name in names:
            if reflector := self.reflectors.get(name):
                self._asked[name] = reflector.health.lists
                reflector.relist()

    def relist_catalog(self) -> None:
        """List all kinds of the shared cache again, after Redis has lost its data."""
        self.relist(self.catalog_kinds.values())

    def is_asked(self, name: str) -> bool:
        """Return True if the reflector's first list, or a requested list, is not complete yet."""
        lists = self.reflectors[name].health.lists
        return lists in {0, self._asked.get(name)}

    def _connect(self, hosted: Hosted) -> None:
        """Start the watches that the controller needs and that are not running yet."""
        spec = hosted.spec
        is_running = hosted.records or {spec.name, spec.part_of} & self._chosen
        if not self._has_begun or not is_running:
            return
        self._hold(hosted, hosted.records)
        for watch in spec.watches:
            if not watch.is_needed(hosted.records):
                continue
            scopes = EVERYWHERE if watch.scopes is None else watch.scopes(hosted.records)
            for scope in scopes:
                self._join(hosted, watch, scope)

    def _hold(self, hosted: Hosted, records: Records) -> None:
        """Hold the controller's keys until the cached kinds that its workers read are listed."""
        kinds = [kind.name for kind in hosted.spec.kinds]
        for watch in hosted.spec.watches:
            if watch.catalog and watch.is_needed(records):
                self._outbox.hold(kinds, watch.catalog)

    def _join(self, hosted: Hosted, watch: Watch, scope: Scope) -> None:
        resource = watch.resource
        parts = (resource.plural, scope.namespace, scope.label_selector)
        name = " ".join(filter(None, parts))
        fan = self._fans.setdefault(name, FanOut(resource.path(namespace=scope.namespace)))
        make = RulesSink if watch.scopes is None else ScopedSink
        is_new = fan.join(hosted.spec.name, lambda: make(hosted, resource))
        if watch.catalog:
            sink = CATALOG_SINKS[watch.catalog]
            is_new |= fan.join("catalog", lambda: sink(self._outbox, self._epoch))
        if name in self.reflectors:
            if is_new:
                self.relist([name])
        else:
            only_metadata = self._is_metadata_enough(resource)
            stream = Stream(name, resource, watch.item_type, only_metadata, scope)
            if watch.catalog:  # before its list can end
                self._catalog[watch.catalog] = name
            if reflector := self._follow(stream, fan):
                self.reflectors[name] = reflector
                _log.info("watching", resource=name, controller=hosted.spec.name)
        if watch.catalog and name in self.reflectors:
            self._catalog[watch.catalog] = name

    def _is_metadata_enough(self, resource: Resource) -> bool:
        """Return True if every controller needs only the metadata of the resource's objects.

        Controllers that are not running are included, because they would share the resource's
        reflector.
        """
        watches = [watch for hosted in self._hosted for watch in hosted.spec.watches]
        return all(watch.metadata_only for watch in watches if watch.resource == resource)

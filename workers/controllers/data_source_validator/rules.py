"""Selects claims that may need a warning: unbound, and with a source kind foreign to Kubernetes.

The rules keep those claims and the kind of each VolumePopulator. A claim is queued when it is first
seen, and again when the last populator for its kind is gone (DVD-002). No claim is queued before
the VolumePopulators have been listed once, because a warning before then would be repeated later.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from workers.controllers.data_source_validator.decide import CORE, UNBOUND
from workers.engine.waits import Waits
from workers.kube import paths
from workers.kube.objects import GroupKind
from workers.queue.keys import Key
from workers.spec import Forget

if TYPE_CHECKING:
    from collections.abc import Iterable

    from workers.kube.objects import Claim, Populator
    from workers.kube.paths import Resource
    from workers.spec import Records, Told

KIND: Final = "data-sources"
_MAX_KIND: Final = 64
"""How many characters of a kind are kept; no real kind is longer, but a claim can name any text."""


class DataSourceRules:
    """Tracks all claims of the cluster, whatever their driver."""

    def __init__(self) -> None:
        # Maps the claim's namespace/name to its key and to the kind of source for which it needs a
        # populator.
        self._claims: Waits[tuple[Key, GroupKind]] = Waits()
        self._populators: Waits[GroupKind] = Waits()
        self._knows_populators = False
        self._tables: dict[Resource, Waits[Any]] = {
            paths.CLAIMS: self._claims,
            paths.POPULATORS: self._populators,
        }

    def set_drivers(self, drivers: Records) -> Iterable[Told]:
        """Ignore the drivers, because validation does not depend on them."""
        del drivers
        return ()

    def seen(self, resource: Resource, item: Any, *, is_listed: bool) -> Iterable[Told]:
        """Process the current state of a claim or a populator."""
        del is_listed
        self._tables[resource].listed(item.metadata.full_name)
        return self._claim(item) if resource == paths.CLAIMS else self._populator(item)

    def gone(self, resource: Resource, item: Claim | Populator) -> Iterable[Told]:
        """Drop a deleted claim; after a populator is deleted, queue the claims of its kind."""
        name = item.metadata.full_name
        if resource == paths.CLAIMS:
            known = self._claims.pop(name)
            return () if known is None else (Forget(known[0]),)
        former = self._populators.pop(name)
        return self._unpopulated(former) if former is not None else ()

    def begin_list(self, resource: Resource) -> None:
        """Start processing a complete list."""
        self._tables[resource].begin_list()

    def end_list(self, resource: Resource) -> Iterable[Told]:
        """Drop unlisted objects; after a list of populators, queue claims without a populator.

        The first such list queues every claim (DV-006); a later one makes up for missed deletions.
        """
        vanished = self._tables[resource].end_list()
        if resource == paths.CLAIMS:
            return [Forget(key) for key, _ in vanished]
        if self._knows_populators:
            return self._unpopulated()
        self._knows_populators = True
        return [key for key, _ in self._claims.values()]

    def all_keys(self) -> Iterable[Key]:
        """Return the keys of claims without a populator, to repeat warnings before they expire."""
        return self._unpopulated() if self._knows_populators else ()

    def _claim(self, item: Claim) -> Iterable[Told]:
        meta, source = item.metadata, item.spec.data_source_ref
        name, is_open = meta.full_name, item.status.phase in UNBOUND
        before = self._claims.pop(name)
        # A claim that was recreated while no watch was open has a different uid.
        gone = (Forget(before[0]),) if before is not None and before[0].uid != meta.uid else ()
        if source is None or not is_open or meta.deletion_timestamp is not None:
            return gone
        kind = GroupKind(source.api_group or "", source.kind[:_MAX_KIND])
        if kind in CORE:
            return gone
        now = (Key(KIND, "", name, meta.uid), kind)
        self._claims.put(name, now)
        return (*gone, now[0]) if before != now and self._knows_populators else gone

    def _populator(self, item: Populator) -> Iterable[Told]:
        former = self._populators.get(item.metadata.name)
        self._populators.put(item.metadata.name, item.source_kind)
        if former is None or former == item.source_kind:
            return ()
        return self._unpopulated(former)

    def _unpopulated(self, former: GroupKind | None = None) -> list[Key]:
        """Return the keys of claims without a populator; `former` selects one source kind."""
        named = set(self._populators.values())
        return [
            key
            for key, kind in self._claims.values()
            if kind not in named and former in {None, kind}
        ]

"""Which claims and volumes still wait for a decision, and who waits for what?

The only state the watcher keeps of claims and volumes: a few strings of each undecided one, so
that a new driver, a new class, the end of a clone, a resync or a Redis that lost its data touch
only those. Each method takes one fact and returns the keys to add because of it. Settled objects
leave the table. All methods are safe for threads.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from typing import TYPE_CHECKING

from watcher.drivers import Drivers
from watcher.handlers import (
    all_claim_keys,
    claim_driver,
    claim_entry,
    claim_keys,
    clone_sources,
    cloning_key,
    is_deleting_source,
    provisioner_of,
    volume_entry,
    volume_keys,
)

if TYPE_CHECKING:
    from watcher.handlers import ClaimEntry, VolumeEntry
    from workers.kube.objects import Claim, Volume
    from workers.queue.keys import Key


class Undecided:
    """The table.

    No claim key is returned before the classes were listed: late binding could not be told from
    immediate. `classes_listed` returns the ones held back.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._drivers = Drivers()
        self._classes: dict[str, tuple[str, str | None]] = {}
        self._has_classes = False
        self._claims: dict[str, ClaimEntry] = {}
        self._volumes: dict[str, VolumeEntry] = {}
        self._clones: dict[str, set[str]] = {}
        self._clones_of: defaultdict[str, set[str]] = defaultdict(set)
        self._sources: dict[str, tuple[str, str]] = {}
        self._listed: set[str] = set()
        self._listed_sources: set[str] = set()
        self._listed_volumes: set[str] = set()

    # Drivers and classes.

    @property
    def drivers(self) -> Drivers:
        """The drivers known now."""
        return self._drivers

    def set_drivers(self, drivers: Drivers) -> list[Key]:
        """Return the keys that exist under these drivers but not under the ones before."""
        with self._lock:
            before = set(self.all_keys())
            self._drivers = drivers
            return [key for key in self.all_keys() if key not in before]

    def set_class(self, name: str, uid: str, binding_mode: str | None) -> list[Key]:
        """Return the claims of a new, replaced or changed class (C-008, C-045)."""
        with self._lock:
            is_same = self._classes.get(name) == (uid, binding_mode)
            self._classes[name] = (uid, binding_mode)
            if is_same or not self._has_classes:
                return []
            entries = [entry for entry in self._claims.values() if entry.class_name == name]
            return [key for entry in entries for key in self._claim_keys(entry)]

    def drop_class(self, name: str) -> None:
        """Forget a deleted class."""
        with self._lock:
            self._classes.pop(name, None)

    def classes_listed(self, names: set[str]) -> list[Key]:
        """Forget classes that are not in the list; return claims held back until now."""
        with self._lock:
            for name in self._classes.keys() - names:
                del self._classes[name]
            if self._has_classes:
                return []
            self._has_classes = True
            return [key for entry in self._claims.values() for key in self._claim_keys(entry)]

    # Claims.

    def see_claim(self, claim: Claim, *, is_listed: bool = False) -> list[Key]:
        """Take in a claim as it is now.

        An undecided claim is added at each event, as the reference does; in a list only if it
        changed since it was last seen.
        """
        with self._lock:
            uid = claim.metadata.uid
            keys = self._see_clone(claim) + self._see_source(claim, is_listed=is_listed)
            entry = claim_entry(claim)
            if is_listed and (entry or uid in self._clones):
                self._listed.add(uid)
            if entry is None:
                self._claims.pop(uid, None)
                return keys
            known = self._claims.get(uid)
            self._claims[uid] = entry
            if is_listed and known and known.version == entry.version:
                return keys
            return keys + self._claim_keys(entry)

    def drop_claim(self, uid: str, name: str) -> list[Key]:
        """Take in a claim's deletion; `name` is `namespace/name`.

        An undecided claim of a known driver is added once more: only the worker can tell whether
        an attempt was begun that has to be finished (M-012, G7); if none was, it forgets the key.
        """
        with self._lock:
            keys = self._end_clone(uid)
            if self._sources.get(name, ("", ""))[0] == uid:
                del self._sources[name]
            entry = self._claims.pop(uid, None)
            driver = claim_driver(entry, self._drivers) if entry else None
            if entry and driver:
                keys += all_claim_keys(entry, driver, self._drivers)
            return keys

    def begin_claims(self) -> None:
        """A list of claims starts."""
        with self._lock:
            self._listed = set()
            self._listed_sources = set()

    def end_claims(self) -> list[Key]:
        """Treat what the list did not contain as deleted."""
        with self._lock:
            keys: list[Key] = []
            for source in self._sources.keys() - self._listed_sources:
                del self._sources[source]
            for uid in (self._claims.keys() | self._clones.keys()) - self._listed:
                entry = self._claims.get(uid)
                keys += self.drop_claim(uid, f"{entry.namespace}/{entry.name}" if entry else "")
            self._listed = set()
            return keys

    # Volumes.

    def see_volume(self, volume: Volume, *, is_listed: bool = False) -> list[Key]:
        """Take in a volume as it is now; returns its key if there is something to do."""
        with self._lock:
            entry = volume_entry(volume, self._drivers)
            name = volume.metadata.name
            if entry is None:
                self._volumes.pop(name, None)
                return []
            known = self._volumes.get(name)
            self._volumes[name] = entry
            if is_listed:
                self._listed_volumes.add(name)
                if known and (known.version, known.affinity) == (entry.version, entry.affinity):
                    return []
            return volume_keys(entry, self._drivers)

    def drop_volume(self, name: str) -> list[Key]:
        """Take in a volume's deletion; returns the keys to forget (L-011, C-082)."""
        with self._lock:
            entry = self._volumes.pop(name, None)
            return volume_keys(entry, self._drivers) if entry else []

    def begin_volumes(self) -> None:
        """A list of volumes starts."""
        with self._lock:
            self._listed_volumes = set()

    def end_volumes(self) -> list[Key]:
        """Treat what the list did not contain as deleted; returns the keys to forget."""
        with self._lock:
            gone = self._volumes.keys() - self._listed_volumes
            self._listed_volumes = set()
            return [key for name in gone for key in self.drop_volume(name)]

    def volume_detached(self, name: str) -> list[Key]:
        """Return the volume's key if it is undecided: its deletion waited for this (C-080)."""
        with self._lock:
            entry = self._volumes.get(name)
            return volume_keys(entry, self._drivers) if entry else []

    # Everything.

    def all_keys(self) -> list[Key]:
        """Return the keys of all undecided objects that can be decided now."""
        with self._lock:
            keys = [
                key for entry in self._volumes.values() for key in volume_keys(entry, self._drivers)
            ]
            keys += [key for entry in self._claims.values() for key in self._claim_keys(entry)]
            keys += [key for source in self._sources for key in self._cloning_keys(source)]
            return keys

    def counts(self) -> dict[str, int]:
        """Return the table's size by kind, for metrics."""
        with self._lock:
            return {
                "claims": len(self._claims),
                "volumes": len(self._volumes),
                "cloning": len(self._sources),
            }

    def _claim_keys(self, entry: ClaimEntry) -> list[Key]:
        if not self._has_classes:
            return []
        modes = {entry.class_name: self._classes.get(entry.class_name, ("", None))[1]}
        return claim_keys(entry, self._drivers, modes)

    def _cloning_keys(self, source: str) -> list[Key]:
        """Return the key of a source that is being deleted and that no clone holds any more."""
        if source not in self._sources or self._clones_of.get(source):
            return []
        key = cloning_key(source, *self._sources[source], self._drivers)
        return [key] if key else []

    def _see_clone(self, claim: Claim) -> list[Key]:
        uid = claim.metadata.uid
        now, before = clone_sources(claim), self._clones.get(uid, set())
        if now == before:
            return []
        keys = self._end_clone(uid)
        if now:
            self._clones[uid] = now
            for source in now:
                self._clones_of[source].add(uid)
        return keys

    def _end_clone(self, uid: str) -> list[Key]:
        """Return the keys of the sources this claim held last (CL-009, C-123)."""
        keys: list[Key] = []
        for source in self._clones.pop(uid, set()):
            self._clones_of[source].discard(uid)
            if not self._clones_of[source]:
                del self._clones_of[source]
                keys += self._cloning_keys(source)
        return keys

    def _see_source(self, claim: Claim, *, is_listed: bool) -> list[Key]:
        meta = claim.metadata
        source = f"{meta.namespace}/{meta.name}"
        if not is_deleting_source(claim):
            self._sources.pop(source, None)
            return []
        is_known = self._sources.get(source, ("", ""))[0] == meta.uid
        self._sources[source] = (meta.uid, provisioner_of(claim))
        if is_listed:
            self._listed_sources.add(source)
            if is_known:
                return []
        return self._cloning_keys(source)

"""Turns events into the provisioner's keys: which claims and volumes need a reconcile.

An object is called undecided if it may still need a reconcile. The watcher keeps a few strings of
each undecided object and nothing of the other objects. So a new driver, a new class, a finished
clone, a resync or a loss of Redis data affects only undecided objects. Each method receives one
fact and returns the keys to add because of it. The watcher holds its lock during each call.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any, Final

from workers.controllers.provisioner.filters import (
    all_claim_keys,
    claim_driver,
    claim_entry,
    claim_keys,
    clone_sources,
    cloning_key,
    is_deleting_source,
    volume_entry,
    volume_keys,
)
from workers.controllers.provisioner.labelrules import LabelRules
from workers.controllers.provisioner.served import Drivers, DriverView
from workers.kube import paths
from workers.kube.objects import Attachment, Claim, CsiNode, Node, Volume
from workers.queue.catalogkinds import (
    KIND_ATTACHMENTS,
    KIND_CLASSES,
    KIND_CSINODES,
    KIND_NODES,
)
from workers.spec import Forget, Watch
from workers.translate.claims import provisioner_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from workers.controllers.provisioner.filters import ClaimEntry, VolumeEntry
    from workers.kube.objects import JsonObject
    from workers.kube.paths import Resource
    from workers.queue.keys import Key
    from workers.spec import Records, Told


class ProvisionerRules:
    """Tracks the claims and volumes that may still need a reconcile.

    No claim key is returned until the classes have been listed, because the class decides between
    late and immediate binding. When that listing ends, the keys that were held back are returned.
    """

    def __init__(self) -> None:
        self._drivers = Drivers()
        self._classes: dict[str, tuple[str, str | None]] = {}
        self._listed_classes: set[str] = set()
        self._has_classes = False
        self._claims: dict[str, ClaimEntry] = {}
        self._volumes: dict[str, VolumeEntry] = {}
        self._labels = LabelRules()
        self._clones: dict[str, set[str]] = {}
        self._clones_of: defaultdict[str, set[str]] = defaultdict(set)
        self._sources: dict[str, tuple[str, str]] = {}
        self._listed: set[str] = set()
        self._listed_sources: set[str] = set()
        self._listed_volumes: set[str] = set()
        self._attached: dict[str, str] = {}
        self._listed_attached: dict[str, str] = {}

    # The interface that the watcher calls.

    def set_drivers(self, drivers: Records) -> list[Key]:
        """Replace the known drivers; return the keys that the new drivers add."""
        before = set(self.all_keys())
        self._drivers = Drivers.of_records(drivers)
        return [key for key in self.all_keys() if key not in before]

    def seen(self, resource: Resource, item: Any, *, is_listed: bool) -> Iterable[Told]:
        """Process an object that was added, changed or listed."""
        if resource == paths.CLAIMS:
            return self._see_claim(item, is_listed=is_listed)
        if resource == paths.VOLUMES:
            return self._see_volume(item, is_listed=is_listed)
        if resource == paths.STORAGE_CLASSES:
            return self._see_class(item, is_listed=is_listed)
        if resource == paths.ATTACHMENTS:
            attached = self._listed_attached if is_listed else self._attached
            if volume := item.spec.source.persistent_volume_name:
                attached[item.metadata.name] = volume
        return ()

    def gone(self, resource: Resource, item: Any) -> Iterable[Told]:
        """Process the deletion of an object."""
        if resource == paths.CLAIMS:
            meta = item.metadata
            self._labels.drop_claim(item)
            return self._drop_claim(meta.uid, meta.full_name)
        if resource == paths.VOLUMES:
            self._labels.drop_volume(item.metadata.name)
            return self._drop_volume(item.metadata.name)
        if resource == paths.STORAGE_CLASSES:
            self._classes.pop(item["metadata"]["name"], None)
        elif resource == paths.ATTACHMENTS:
            volume = self._attached.pop(item.metadata.name, "")
            return self._detached(volume)
        return ()

    def begin_list(self, resource: Resource) -> None:
        """Start recording which of the known objects still exist."""
        if resource == paths.CLAIMS:
            self._listed = set()
            self._listed_sources = set()
            self._labels.begin_claims()
        elif resource == paths.VOLUMES:
            self._listed_volumes = set()
            self._labels.begin_volumes()
        elif resource == paths.STORAGE_CLASSES:
            self._listed_classes = set()
        elif resource == paths.ATTACHMENTS:
            self._listed_attached = {}

    def end_list(self, resource: Resource) -> Iterable[Told]:
        """Treat objects that were not in the list as deleted."""
        if resource == paths.CLAIMS:
            return self._end_claims()
        if resource == paths.VOLUMES:
            return self._end_volumes()
        if resource == paths.STORAGE_CLASSES:
            return self._end_classes()
        if resource == paths.ATTACHMENTS:
            return self._end_attachments()
        return ()

    def all_keys(self) -> list[Key]:
        """Return the keys of all tracked objects that can be reconciled now."""
        keys = [
            key for entry in self._volumes.values() for key in volume_keys(entry, self._drivers)
        ]
        keys += [key for entry in self._claims.values() for key in self._claim_keys(entry)]
        keys += [key for source in self._sources for key in self._cloning_keys(source)]
        keys += self._labels.all_keys(self._drivers)
        return keys

    def counts(self) -> dict[str, int]:
        """Return the table's size by kind, for metrics."""
        return {
            "claims": len(self._claims),
            "volumes": len(self._volumes),
            "cloning": len(self._sources),
        }

    # Classes.

    def _see_class(self, item: JsonObject, *, is_listed: bool) -> list[Key]:
        """Return the claim keys that depend on a new, replaced or changed class (C-008, C-045)."""
        name, uid = item["metadata"]["name"], item["metadata"]["uid"]
        if is_listed:
            self._listed_classes.add(name)
        now = (uid, item.get("volumeBindingMode"))
        is_same = self._classes.get(name) == now
        self._classes[name] = now
        if is_same or not self._has_classes:
            return []
        entries = [entry for entry in self._claims.values() if entry.class_name == name]
        return [key for entry in entries for key in self._claim_keys(entry)]

    def _end_classes(self) -> list[Key]:
        """Forget the classes that were not listed; return the claim keys that were held back."""
        for name in self._classes.keys() - self._listed_classes:
            del self._classes[name]
        if self._has_classes:
            return []
        self._has_classes = True
        return [key for entry in self._claims.values() for key in self._claim_keys(entry)]

    # Claims.

    def _see_claim(self, claim: Claim, *, is_listed: bool = False) -> list[Key]:
        """Process a claim that was added, changed or listed.

        As in csi-provisioner, the keys of a claim that may need a volume are returned on every
        event. For a listed claim they are returned only if the claim has changed since it was last
        seen.
        """
        uid = claim.metadata.uid
        keys = self._see_clone(claim) + self._see_source(claim, is_listed=is_listed)
        keys += self._labels.see_claim(claim, self._drivers, is_listed=is_listed)
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

    def _drop_claim(self, uid: str, name: str) -> list[Key]:
        """Process the deletion of a claim; `name` is `namespace/name`.

        A claim of a known driver that may have needed a volume is queued again, because only the
        worker knows whether an open attempt has to be finished (M-012, G7). If no attempt is open,
        the worker drops the key.
        """
        keys = self._end_clone(uid)
        if self._sources.get(name, ("", ""))[0] == uid:
            del self._sources[name]
        entry = self._claims.pop(uid, None)
        driver = claim_driver(entry, self._drivers) if entry else None
        if entry and driver:
            keys += all_claim_keys(entry, driver, self._drivers)
        return keys

    def _end_claims(self) -> list[Key]:
        """Treat claims that were not in the list as deleted."""
        keys: list[Key] = []
        for source in self._sources.keys() - self._listed_sources:
            del self._sources[source]
        for uid in (self._claims.keys() | self._clones.keys()) - self._listed:
            entry = self._claims.get(uid)
            keys += self._drop_claim(uid, f"{entry.namespace}/{entry.name}" if entry else "")
        self._listed = set()
        self._labels.end_claims()
        return keys

    # Volumes.

    def _see_volume(self, volume: Volume, *, is_listed: bool = False) -> list[Key]:
        """Process a volume; return its keys if it needs a reconcile, and its claim's keys."""
        labelled = self._labels.see_volume(volume, self._drivers, is_listed=is_listed)
        entry = volume_entry(volume, self._drivers)
        name = volume.metadata.name
        if entry is None:
            self._volumes.pop(name, None)
            return labelled
        known = self._volumes.get(name)
        self._volumes[name] = entry
        if is_listed:
            self._listed_volumes.add(name)
            if known and (known.version, known.affinity) == (entry.version, entry.affinity):
                return labelled
        return labelled + volume_keys(entry, self._drivers)

    def _drop_volume(self, name: str) -> list[Forget]:
        """Process the deletion of a volume; return the keys to forget (L-011, C-082)."""
        entry = self._volumes.pop(name, None)
        return [Forget(key) for key in volume_keys(entry, self._drivers)] if entry else []

    def _end_volumes(self) -> list[Forget]:
        """Treat volumes that were not in the list as deleted; return the keys to forget."""
        gone = self._volumes.keys() - self._listed_volumes
        self._listed_volumes = set()
        self._labels.end_volumes()
        return [key for name in gone for key in self._drop_volume(name)]

    # Attachments.

    def _detached(self, volume: str) -> list[Key]:
        """Return the keys of a tracked volume if its last attachment is gone (C-080)."""
        entry = self._volumes.get(volume)
        if entry is None or volume in self._attached.values():
            return []
        return volume_keys(entry, self._drivers)

    def _end_attachments(self) -> list[Key]:
        """Replace all attachments; return the keys of volumes that have lost their last one."""
        lost = set(self._attached.values()) - set(self._listed_attached.values())
        self._attached, self._listed_attached = self._listed_attached, {}
        return [key for volume in sorted(lost) for key in self._detached(volume)]

    # Parts.

    def _claim_keys(self, entry: ClaimEntry) -> list[Key]:
        if not self._has_classes:
            return []
        modes = {entry.class_name: self._classes.get(entry.class_name, ("", None))[1]}
        return claim_keys(entry, self._drivers, modes)

    def _cloning_keys(self, source: str) -> list[Key]:
        """Return the key of a source that is being deleted and that no clone needs any longer."""
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
        """Return the keys of the sources whose last clone was this claim (CL-009, C-123)."""
        keys: list[Key] = []
        for source in self._clones.pop(uid, set()):
            self._clones_of[source].discard(uid)
            if not self._clones_of[source]:
                del self._clones_of[source]
                keys += self._cloning_keys(source)
        return keys

    def _see_source(self, claim: Claim, *, is_listed: bool) -> list[Key]:
        meta = claim.metadata
        source = meta.full_name
        if not is_deleting_source(claim):
            self._sources.pop(source, None)
            return []
        is_known = self._sources.get(source, ("", ""))[0] == meta.uid
        self._sources[source] = (meta.uid, provisioner_of(meta.annotations or {}) or "")
        if is_listed:
            self._listed_sources.add(source)
            if is_known:
                return []
        return self._cloning_keys(source)


def _has_own_rules(before: Records, now: Records) -> bool:
    """Return True if a new driver's rules may apply to volumes that the table has dropped."""
    known = {record["name"] for record in before}
    views = [DriverView.from_record(record) for record in now if record["name"] not in known]
    if any(view.node or not view.add_finalizer for view in views):
        return True
    return _has_other_labels(before, now)


def _has_other_labels(before: Records, now: Records) -> bool:
    """Return True if a driver's PVs now follow labels of claims that the table has dropped."""
    return bool(_label_keys(now) - _label_keys(before))


def _label_keys(records: Records) -> set[tuple[str, str]]:
    """Return each driver with each of its keys; nodes of one driver may have different flags."""
    views = map(DriverView.from_record, records)
    return {(view.name, key) for view in views for key in view.label_keys}


def _need_nodes(records: Records) -> bool:
    return any(DriverView.from_record(record).needs_nodes for record in records)


def _need_attachments(records: Records) -> bool:
    return any(DriverView.from_record(record).has_attach for record in records)


def _never(before: Records, now: Records) -> bool:  # noqa: ARG001 - the watch's form
    """Return False: the table already holds the objects of drivers that are not registered yet."""
    return False


WATCHES: Final = (
    Watch(paths.STORAGE_CLASSES, dict[str, Any], relists=_never, catalog=KIND_CLASSES),
    Watch(paths.CLAIMS, Claim, relists=_has_other_labels),
    Watch(paths.VOLUMES, Volume, relists=_has_own_rules),
    Watch(paths.CSI_NODES, CsiNode, is_needed=_need_nodes, relists=_never, catalog=KIND_CSINODES),
    Watch(
        paths.NODES,
        Node,
        metadata_only=True,
        is_needed=_need_nodes,
        relists=_never,
        catalog=KIND_NODES,
    ),
    Watch(
        paths.ATTACHMENTS,
        Attachment,
        is_needed=_need_attachments,
        relists=_never,
        catalog=KIND_ATTACHMENTS,
    ),
)

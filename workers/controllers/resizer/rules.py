"""Turns events into keys of claims that may need a reconcile (R-010, R-013, MR-002).

The rules keep the unfinished claims, and the driver of each volume that a registered driver has.
Events that only echo the resizer's own writes (states, conditions, allocated size) queue nothing
(DR-008). Unlike in csi-resizer (R-011), a claim is also queued when something happens that it may
be waiting for: its volume or its class changes, or an attachment ends (DR-011, DR-018, DR-019).
"""

from __future__ import annotations

from sys import intern
from typing import TYPE_CHECKING, Any, Final

import msgspec

from workers.controllers.resizer.words import ANN_PRE_RESIZE, ANN_RESIZER, Part
from workers.engine.waits import Waits
from workers.errors import AttemptError
from workers.kube import paths
from workers.queue.keys import Key
from workers.spec import Forget
from workers.translate.quantity import parse

if TYPE_CHECKING:
    from collections.abc import Iterable

    from workers.kube.objects import Attachment, AttributesClass, Claim, Volume
    from workers.kube.paths import Resource
    from workers.spec import Records, Told

KIND: Final = "changes"
_STORAGE: Final = "storage"
_BOUND: Final = "Bound"


class DriverView(msgspec.Struct, frozen=True, gc=False):
    """The facts about a driver that the rules need.

    `is_migrated`: whether the driver replaces an in-tree plugin.
    """

    queue_name: str
    is_migrated: bool
    capabilities: frozenset[str]


class Waiting(msgspec.Struct, frozen=True, gc=False):
    """A claim that is not finished, without the resizer's own writes.

    `states`: two flags: whether the claim shows an expansion state, and whether it shows a
    modification state.
    """

    uid: str
    path: str
    volume: str
    resizer: str
    classes: tuple[str, ...]
    current_class: str
    states: tuple[bool, bool]
    fingerprint: int


class Noted(msgspec.Struct, frozen=True, gc=False):
    """A PV with the pre-resize annotation: its driver, its claim and its current size."""

    driver: str
    claim: str
    uid: str
    capacity: str


class ResizerRules:
    """Tracks claims that do not have the requested size or the requested class."""

    def __init__(self) -> None:
        self._drivers: dict[str, DriverView] = {}
        self._waiting: Waits[Waiting] = Waits()
        self._volumes: dict[str, str] = {}
        self._noted: dict[str, Noted] = {}
        self._classes: dict[str, str] = {}
        self._listed_volumes: set[str] = set()

    def set_drivers(self, drivers: Records) -> Iterable[Told]:
        """Replace the drivers, and queue the claims of new or changed drivers.

        A new driver causes a new LIST request (`Watch.relists`), which adds its volumes.
        """
        before = self._drivers
        self._drivers = {
            intern(record["name"]): DriverView(
                queue_name=record["queue_name"],
                is_migrated=bool(record.get("in_tree_name")),
                capabilities=frozenset(record.get("controller_capabilities") or ()),
            )
            for record in drivers
        }
        changed = {name for name, known in self._drivers.items() if before.get(name) != known}
        return [
            key
            for waiting in self._waiting.values()
            if self._driver(waiting) in changed
            for key in self._keys(waiting)
        ]

    def seen(self, resource: Resource, item: Any, *, is_listed: bool) -> Iterable[Told]:
        """Process the current state of an object."""
        if resource == paths.CLAIMS:
            return self._see_claim(item, is_listed=is_listed)
        if resource == paths.VOLUMES:
            return self._see_volume(item, is_listed=is_listed)
        if resource.kind == paths.ATTRIBUTES_CLASSES.kind:
            return self._see_class(item)
        return ()

    def gone(self, resource: Resource, item: Any) -> Iterable[Told]:
        """Process the deletion of an object."""
        if resource == paths.CLAIMS:
            return self._drop_claim(item.metadata.uid)
        if resource == paths.VOLUMES:
            self._volumes.pop(item.metadata.name, None)
            self._noted.pop(item.metadata.name, None)
        elif resource == paths.ATTACHMENTS:
            return self._detached(item)
        elif resource.kind == paths.ATTRIBUTES_CLASSES.kind:
            self._classes.pop(item.metadata.name, None)
        return ()

    def begin_list(self, resource: Resource) -> None:
        """Start recording which objects still exist."""
        if resource == paths.CLAIMS:
            self._waiting.begin_list()
        elif resource == paths.VOLUMES:
            self._listed_volumes = set()

    def end_list(self, resource: Resource) -> Iterable[Told]:
        """Treat objects that were not in the list as deleted."""
        if resource == paths.CLAIMS:
            return [Forget(key) for one in self._waiting.end_list() for key in self._keys(one)]
        if resource == paths.VOLUMES:
            for table in (self._volumes, self._noted):
                for name in table.keys() - self._listed_volumes:
                    del table[name]
        return ()

    def all_keys(self) -> Iterable[Key]:
        """Return the keys of all claims that are not finished."""
        keys = [key for waiting in self._waiting.values() for key in self._keys(waiting)]
        return keys + [
            key
            for noted in self._noted.values()
            if self._waiting.get(noted.uid) is None
            for key in self._noted_keys(noted)
        ]

    def counts(self) -> dict[str, int]:
        """Return the sizes of the tables, for metrics."""
        return {KIND: len(self._waiting)}

    # Claims.

    def _see_claim(self, item: Claim, *, is_listed: bool) -> list[Told]:
        uid, volume = item.metadata.uid, item.spec.volume_name
        if is_listed:
            self._waiting.listed(uid)
        known = self._waiting.get(uid)
        if not has_work(item):
            self._waiting.pop(uid)
            noted = self._noted.get(volume)
            if noted is not None and noted.uid == uid and _caught_up(item, noted):
                return list(self._noted_keys(noted))
            return []
        waiting = _waiting(item)
        if known == waiting:
            return []
        classes = [("class", one) for one in waiting.classes]
        self._waiting.put(uid, waiting, ("volume", waiting.volume), *classes)
        if known is not None and _is_echo(known, waiting):
            return []
        return list(self._keys(waiting))

    def _drop_claim(self, uid: str) -> list[Told]:
        """Drop a claim's counters and state.

        A later claim with the same name must not inherit them (DR-006).
        """
        waiting = self._waiting.pop(uid)
        return [Forget(key) for key in self._keys(waiting)] if waiting is not None else []

    def _driver(self, waiting: Waiting) -> str | None:
        """Return the volume's CSI driver, else the driver in the claim's annotation (R-021)."""
        found = self._volumes.get(waiting.volume)
        return found or (waiting.resizer if waiting.resizer in self._drivers else None)

    def _keys(self, waiting: Waiting) -> list[Key]:
        name = self._driver(waiting)
        if name is None or name not in self._drivers:
            return []
        return [Key(KIND, self._drivers[name].queue_name, waiting.path, waiting.uid)]

    # The objects that claims are waiting for.

    def _see_volume(self, item: Volume, *, is_listed: bool) -> list[Told]:
        name, csi = item.metadata.name, item.spec.csi
        if is_listed:
            self._listed_volumes.add(name)
        if csi is not None and csi.driver not in self._drivers:
            return []
        told: list[Told] = list(self._note(item))
        if csi is not None and self._volumes.get(name) != csi.driver:
            self._volumes[name] = intern(csi.driver)
            told += self._wake("volume", name)
        return told

    def _note(self, item: Volume) -> list[Key]:
        """Record a PV's pre-resize annotation; queue the claim if the record is new (R-020/4)."""
        name, reference = item.metadata.name, item.spec.claim_ref
        if item.metadata.annotation(ANN_PRE_RESIZE) is None or reference is None:
            self._noted.pop(name, None)
            return []
        noted = Noted(
            driver=intern(item.spec.csi.driver) if item.spec.csi else "",
            claim=f"{reference.namespace}/{reference.name}",
            uid=reference.uid,
            capacity=(item.spec.capacity or {}).get(_STORAGE, "0"),
        )
        is_same = self._noted.get(name) == noted
        self._noted[name] = noted
        is_waiting = self._waiting.get(noted.uid) is not None
        return [] if is_same or is_waiting else self._noted_keys(noted)

    def _noted_keys(self, noted: Noted) -> list[Key]:
        """Return the key for the PV's driver; for an in-tree PV, one key per migrated driver."""
        views = [
            view
            for name, view in self._drivers.items()
            if name == noted.driver or (not noted.driver and view.is_migrated)
        ]
        return [Key(KIND, view.queue_name, noted.claim, noted.uid) for view in views]

    def _see_class(self, item: AttributesClass) -> list[Told]:
        """Queue the claims that were waiting for a class that now exists (DR-018)."""
        name, uid = item.metadata.name, item.metadata.uid
        if self._classes.get(name) == uid:
            return []
        self._classes[name] = uid
        return self._wake("class", name)

    def _detached(self, item: Attachment) -> list[Told]:
        """Queue the volume's claims, as the driver may have refused an attached volume (DR-011)."""
        return self._wake("volume", item.spec.source.persistent_volume_name or "")

    def _wake(self, word: str, name: str) -> list[Told]:
        waiting = self._waiting.waiting_for(word, name)
        return [key for one in waiting for key in self._keys(one)]


def has_work(item: Claim) -> bool:
    """Return True if a bound claim is too small or does not have its requested class (MR-002).

    A claim that is being deleted counts too, because a call in flight may have to be completed.
    """
    if item.status.phase != _BOUND or not item.spec.volume_name:
        return False
    status = item.status
    if status.modify_volume_status is not None:
        return True
    wanted = item.spec.volume_attributes_class_name or ""
    return wanted != (status.current_volume_attributes_class_name or "") or _is_small(item)


def _is_small(item: Claim) -> bool:
    wanted = (item.spec.resources.requests or {}).get(_STORAGE, "0")
    actual = (item.status.capacity or {}).get(_STORAGE, "0")
    return wanted != actual and _size(wanted) > _size(actual)


def _caught_up(item: Claim, noted: Noted) -> bool:
    return _size((item.status.capacity or {}).get(_STORAGE, "0")) >= _size(noted.capacity)


def _is_echo(before: Waiting, now: Waiting) -> bool:
    """Return True if all changes may be the resizer's own writes (DR-008).

    The resizer removes a state only on success, which also changes the capacity or the current
    class. If another writer removed the state, the claim must be retried (R-010, R-013, TR-012).
    """
    expansion_reset = before.states[0] and not now.states[0]
    modification_reset = before.states[1] and not now.states[1]
    if expansion_reset or (modification_reset and before.current_class == now.current_class):
        return False
    return before.fingerprint == now.fingerprint


def _size(text: str) -> int:
    """Parse a size in bytes; return 0 if it is invalid (the worker reports that)."""
    try:
        return parse(text)
    except AttemptError:
        return 0


def _waiting(item: Claim) -> Waiting:
    meta, spec, status = item.metadata, item.spec, item.status
    resizer = meta.annotation(ANN_RESIZER) or ""
    part = (status.allocated_resource_statuses or {}).get(_STORAGE, "")
    wanted = spec.volume_attributes_class_name or ""
    target = status.modify_volume_status
    names = {wanted, target.target_volume_attributes_class_name if target else ""} - {""}
    return Waiting(
        uid=meta.uid,
        path=meta.full_name,
        volume=spec.volume_name,
        resizer=intern(resizer),
        classes=tuple(sorted(map(intern, names))),
        current_class=intern(status.current_volume_attributes_class_name or ""),
        states=(bool(part), target is not None),
        fingerprint=hash(
            (
                (spec.resources.requests or {}).get(_STORAGE, ""),
                (status.capacity or {}).get(_STORAGE, ""),
                spec.volume_name,
                wanted,
                resizer,
                bool(meta.deletion_timestamp),
                part if part == Part.NODE_INFEASIBLE else "",
            )
        ),
    )

"""Turns events into keys of attachments and finalizers that have something to do (A-031).

Unlike csi-attacher, it ignores events that only echo our own writes (DA-009): the finalizer, node
id and errors that we write are left out of the comparison. An attachment that is settled (attached
with our finalizer, or deleting without it) is forgotten, so a resync queues only the others
(MA-003). This keeps less in memory than MA-002 allows; CSIDriver objects are not read (A-077).
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any, Final

import msgspec

from workers.constants import ANN_MIGRATED_TO
from workers.controllers.attacher import texts
from workers.controllers.attacher.names import (
    EARLIER_IDS,
    NODE_ID,
    attachment_key,
    detachment_key,
    finalizer,
    finalizer_key,
    keys_of,
)
from workers.kube import paths
from workers.spec import Forget

if TYPE_CHECKING:
    from collections.abc import Iterable

    from workers.kube.objects import Attachment, CsiNode, Volume
    from workers.kube.paths import Resource
    from workers.queue.keys import Key
    from workers.spec import Records, Told

PUBLISHES: Final = "PUBLISH_UNPUBLISH_VOLUME"
SERVICE: Final = "CONTROLLER_SERVICE"


class DriverView(msgspec.Struct, frozen=True, gc=False):
    """What the rules know of a driver."""

    name: str
    queue_name: str
    finalizer: str
    can_attach: bool


class Waiting(msgspec.Struct, frozen=True, gc=False):
    """An attachment with something to do: the parts of its key and what it waits for.

    `fingerprint`: its content without our own writes. `is_marked`: it has our finalizer and a
    node id.
    """

    driver: str
    node: str
    name: str
    uid: str
    volume: str
    is_deleting: bool
    fingerprint: int
    is_marked: bool
    lacks_volume: bool
    lacks_node: bool


class AttacherRules:
    """Tracks unfinished attachments, and PVs whose finalizer may go, of all registered drivers."""

    def __init__(self) -> None:
        self._drivers: dict[str, DriverView] = {}
        self._by_finalizer: dict[str, DriverView] = {}
        self._waiting: dict[str, Waiting] = {}
        self._of_node: defaultdict[str, set[str]] = defaultdict(set)
        self._of_volume: defaultdict[str, set[str]] = defaultdict(set)
        # PVs with our finalizer that wait for their last detach, and their queue names.
        self._held: dict[str, str] = {}
        self._listed: dict[Resource, set[str]] = {}

    def set_drivers(self, drivers: Records) -> Iterable[Told]:
        """Replace the drivers; a new driver causes a new list (`Watch.relists`)."""
        views = [
            DriverView(
                name=record["name"],
                queue_name=record["queue_name"],
                finalizer=finalizer(record["name"]),
                can_attach=can_attach(record),
            )
            for record in drivers
        ]
        self._drivers = {view.name: view for view in views}
        self._by_finalizer = {view.finalizer: view for view in views}
        return ()

    def seen(self, resource: Resource, item: Any, *, is_listed: bool) -> Iterable[Told]:
        """Process an object as it is now."""
        if is_listed:
            self._listed.setdefault(resource, set()).add(item.metadata.name)
        if resource == paths.ATTACHMENTS:
            return self._see_attachment(item)
        if resource == paths.VOLUMES:
            return self._see_volume(item, is_listed=is_listed)
        return self._see_node(item)

    def gone(self, resource: Resource, item: Any) -> Iterable[Told]:
        """Process a deletion."""
        if resource == paths.ATTACHMENTS:
            return self._drop_attachment(item)
        if resource == paths.VOLUMES:
            return self._drop_volume(item.metadata.name)
        return ()

    def begin_list(self, resource: Resource) -> None:
        """Start to record which objects still exist."""
        self._listed[resource] = set()

    def end_list(self, resource: Resource) -> Iterable[Told]:
        """Treat objects that the list did not contain as deleted."""
        listed = self._listed.pop(resource, set())
        told: list[Told] = []
        if resource == paths.ATTACHMENTS:
            for name in self._waiting.keys() - listed:
                told += self._forget(self._waiting[name])
            # It is unknown which attachments of a held PV are gone: the worker checks.
            told += [finalizer_key(queue, volume) for volume, queue in self._held.items()]
        elif resource == paths.VOLUMES:
            for name in self._held.keys() - listed:
                told += self._drop_volume(name)
        return told

    def all_keys(self) -> Iterable[Key]:
        """Return the keys of all unfinished attachments and held PVs."""
        keys = [self._key(waiting) for waiting in self._waiting.values()]
        return keys + [finalizer_key(queue, volume) for volume, queue in self._held.items()]

    def counts(self) -> dict[str, int]:
        """Return the tables' sizes, for metrics."""
        return {"attachments": len(self._waiting), "attach-finalizers": len(self._held)}

    # Attachments.

    def _see_attachment(self, item: Attachment) -> list[Told]:
        name, driver = item.metadata.name, self._drivers.get(item.spec.attacher)
        known = self._waiting.get(name)
        told: list[Told] = []
        if known is not None and known.uid != item.metadata.uid:  # its deletion was missed
            told += self._forget(known)
            known = None
        if driver is None or is_settled(item, driver):
            self._drop_waiting(name)
            return told
        waiting = self._waiting_entry(item, driver)
        is_echo = known is not None and known.fingerprint == waiting.fingerprint
        if known is not None and known.is_marked and not waiting.is_marked:
            is_echo = False  # we remove them only at the end, so someone else removed one
        self._drop_waiting(name)
        self._waiting[name] = waiting
        self._of_node[waiting.node].add(name)
        if waiting.volume:
            self._of_volume[waiting.volume].add(name)
        return told if is_echo else [*told, self._key(waiting)]

    def _waiting_entry(self, item: Attachment, driver: DriverView) -> Waiting:
        errors = (item.status.attach_error, item.status.detach_error)
        messages = [str(error.get("message") or "") for error in errors if error]
        return Waiting(
            driver=driver.queue_name,
            node=item.spec.node_name,
            name=item.metadata.name,
            uid=item.metadata.uid,
            volume=item.spec.source.persistent_volume_name or "",
            is_deleting=item.metadata.deletion_timestamp is not None,
            fingerprint=fingerprint(item, driver),
            is_marked=item.metadata.has_finalizer(driver.finalizer)
            and item.metadata.annotation(NODE_ID) is not None,
            lacks_volume=any(map(texts.waits_for_volume, messages)),
            lacks_node=any(map(texts.waits_for_node, messages)),
        )

    def _drop_attachment(self, item: Attachment) -> list[Told]:
        """Drop its counters and state; its PV, whoever attached it, may now lose the finalizer."""
        told: list[Told] = []
        driver = self._drivers.get(item.spec.attacher)
        if driver is not None:
            parts = (driver.queue_name, item.spec.node_name, item.metadata.name, item.metadata.uid)
            told += map(Forget, keys_of(*parts))
        self._drop_waiting(item.metadata.name)
        volume = item.spec.source.persistent_volume_name
        if volume and volume in self._held:
            told.append(finalizer_key(self._held[volume], volume))
        return told

    def _forget(self, waiting: Waiting) -> list[Told]:
        self._drop_waiting(waiting.name)
        return list(map(Forget, keys_of(waiting.driver, waiting.node, waiting.name, waiting.uid)))

    def _drop_waiting(self, name: str) -> None:
        known = self._waiting.pop(name, None)
        if known is None:
            return
        for index, place in ((self._of_node, known.node), (self._of_volume, known.volume)):
            index[place].discard(name)
            if not index[place]:
                del index[place]

    @staticmethod
    def _key(waiting: Waiting) -> Key:
        make = detachment_key if waiting.is_deleting else attachment_key
        return make(waiting.driver, waiting.node, waiting.name, waiting.uid)

    # What attachments wait for.

    def _see_node(self, item: CsiNode) -> list[Told]:
        """Queue attachments that failed because the driver was missing on this node (DA-021)."""
        names = {driver.name for driver in item.spec.drivers or ()}
        queues = {view.queue_name for view in self._drivers.values() if view.name in names}
        waiting = [self._waiting[name] for name in self._of_node.get(item.metadata.name, ())]
        return [self._key(one) for one in waiting if one.lacks_node and one.driver in queues]

    def _see_volume(self, item: Volume, *, is_listed: bool) -> list[Told]:
        name = item.metadata.name
        waiting = [self._waiting[one] for one in self._of_volume.get(name, ())]
        told: list[Told] = [self._key(one) for one in waiting if one.lacks_volume]
        known = self._held.pop(name, "")
        driver = self._owner(item)
        if driver is not None:
            self._held[name] = driver.queue_name
            # The end of its attachment also queues it, but the PV's own event can come first.
            if not (is_listed and known == driver.queue_name):
                told.append(finalizer_key(driver.queue_name, name))
        return told

    def _owner(self, item: Volume) -> DriverView | None:
        """The driver whose finalizer may have to go: the PV is deleted or no longer migrated."""
        ours = [self._by_finalizer.get(one) for one in item.metadata.finalizers or ()]
        driver = next((view for view in ours if view is not None), None)
        if driver is None:
            return None
        # Without a CSI source the PV may be in-tree; the worker checks.
        is_rolled_back = item.spec.csi is None and (
            item.metadata.annotation(ANN_MIGRATED_TO) != driver.name
        )
        return driver if item.metadata.deletion_timestamp or is_rolled_back else None

    def _drop_volume(self, name: str) -> list[Told]:
        queue = self._held.pop(name, "")
        return [Forget(finalizer_key(queue, name))] if queue else []


def can_attach(record: Any) -> bool:
    """Return True if the driver's registration reports that it can publish volumes (A-004)."""
    return SERVICE in record.get("plugin_capabilities", ()) and PUBLISHES in record.get(
        "controller_capabilities", ()
    )


def is_another_kind(before: Records, now: Records) -> bool:
    """Return True if a driver is new, or its ability to attach changed."""
    known = {(record["name"], can_attach(record)) for record in before}
    return not {(record["name"], can_attach(record)) for record in now} <= known


def is_settled(item: Attachment, driver: DriverView) -> bool:
    """Return True if nothing is left to do (MA-003).

    A driver that cannot attach needs no finalizer, but an old one must be removed (A-075, DA-008).
    """
    has_finalizer = item.metadata.has_finalizer(driver.finalizer)
    if item.metadata.deletion_timestamp:
        is_marked = driver.can_attach or item.status.attached
        return not has_finalizer and is_marked
    return item.status.attached and (has_finalizer or not driver.can_attach)


def fingerprint(item: Attachment, driver: DriverView) -> int:
    """A hash of everything that others can change on an attachment (A-031, TA-116, TA-117)."""
    meta = item.metadata
    annotations = dict(meta.annotations or {})
    for name in (NODE_ID, EARLIER_IDS):
        annotations.pop(name, None)
    return hash(
        (
            meta.uid,
            bool(meta.deletion_timestamp),
            item.status.attached,
            frozenset(one for one in meta.finalizers or () if one != driver.finalizer),
            frozenset(annotations.items()),
            frozenset((meta.labels or {}).items()),
        )
    )

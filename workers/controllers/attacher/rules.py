"""Turns events into keys of attachments and finalizers that need work (A-031).

Unlike csi-attacher, the rules ignore events that only echo csi-fleet's own writes (DA-009): the
comparison leaves out the finalizer, the node id and the errors. A settled attachment (attached with
the finalizer, or being deleted without it) is forgotten, so a resync queues only the other
attachments. A failed attachment is queued again when its driver is new on the node, or when its PV
is younger than the attachment. CSIDriver objects are not read (A-077).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from workers.constants import ANN_MIGRATED_TO
from workers.controllers.attacher.names import (
    ATTACHMENTS,
    DETACHMENTS,
    EARLIER_IDS,
    NODE_ID,
    attachment_key,
    finalizer,
    finalizer_key,
    keys_of,
)
from workers.engine.waits import Waits
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
    """The facts about a driver that the rules need."""

    name: str
    queue_name: str
    finalizer: str
    can_attach: bool


class Waiting(msgspec.Struct, frozen=True, gc=False):
    """An attachment that needs work: the parts of its key, and facts used to queue it again.

    `fingerprint`: a hash of the attachment that ignores csi-fleet's own writes. `is_marked`:
    whether the attachment has the finalizer and a node id.
    """

    driver: str
    node: str
    name: str
    uid: str
    created: str
    is_deleting: bool
    fingerprint: int
    is_marked: bool
    has_error: bool

    @property
    def key(self) -> Key:
        """The attachment's key; a deleted attachment is in the queue for detaches."""
        kind = DETACHMENTS if self.is_deleting else ATTACHMENTS
        return attachment_key(self.driver, self.node, self.name, self.uid, kind)

    @property
    def forgotten(self) -> list[Told]:
        """The requests to forget the counters and marks of a deleted attachment's keys."""
        return [Forget(key) for key in keys_of(self.driver, self.node, self.name, self.uid)]


class AttacherRules:
    """Tracks registered drivers' unfinished attachments, and PVs whose finalizer may be removed."""

    def __init__(self) -> None:
        self._drivers: dict[str, DriverView] = {}
        self._by_finalizer: dict[str, DriverView] = {}
        self._waiting: Waits[Waiting] = Waits()
        # The keys of PVs that have the finalizer and are waiting for their last detach.
        self._held: Waits[Key] = Waits()
        # For each node, the queue names of the served drivers that are registered on it.
        self._nodes: Waits[tuple[str, ...]] = Waits()
        self._tables: dict[Resource, Waits[Any]] = {
            paths.ATTACHMENTS: self._waiting,
            paths.VOLUMES: self._held,
            paths.CSI_NODES: self._nodes,
        }

    def set_drivers(self, drivers: Records) -> Iterable[Told]:
        """Replace the drivers; a new driver causes a new LIST request (`Watch.relists`)."""
        views = [
            DriverView(one["name"], one["queue_name"], finalizer(one["name"]), can_attach(one))
            for one in drivers
        ]
        self._drivers = {view.name: view for view in views}
        self._by_finalizer = {view.finalizer: view for view in views}
        return ()

    def seen(self, resource: Resource, item: Any, *, is_listed: bool) -> Iterable[Told]:
        """Process the current state of an object."""
        if is_listed:
            self._tables[resource].listed(item.metadata.name)
        if resource == paths.ATTACHMENTS:
            return self._see_attachment(item)
        if resource == paths.VOLUMES:
            return self._see_volume(item, is_listed=is_listed)
        return self._see_node(item)

    def gone(self, resource: Resource, item: Any) -> Iterable[Told]:
        """Process the deletion of an object."""
        known = self._tables[resource].pop(item.metadata.name)
        if resource == paths.VOLUMES:
            return [Forget(known)] if known is not None else []
        return self._drop_attachment(item) if resource == paths.ATTACHMENTS else ()

    def begin_list(self, resource: Resource) -> None:
        """Start recording which objects still exist."""
        self._tables[resource].begin_list()

    def end_list(self, resource: Resource) -> Iterable[Told]:
        """Treat objects that were not in the list as deleted."""
        missing = self._tables[resource].end_list()
        if resource == paths.VOLUMES:
            return [Forget(key) for key in missing]
        if resource == paths.CSI_NODES:
            return ()
        # It is unknown which attachments of a held PV are gone, so the worker checks all of them.
        return [*(told for waiting in missing for told in waiting.forgotten), *self._held.values()]

    def all_keys(self) -> Iterable[Key]:
        """Return the keys of all unfinished attachments and held PVs."""
        return [*(waiting.key for waiting in self._waiting.values()), *self._held.values()]

    def counts(self) -> dict[str, int]:
        """Return the sizes of the tables, for metrics."""
        return {"attachments": len(self._waiting), "attach-finalizers": len(self._held)}

    # Attachments.

    def _see_attachment(self, item: Attachment) -> list[Told]:
        name, driver = item.metadata.name, self._drivers.get(item.spec.attacher)
        known = self._waiting.pop(name)
        told: list[Told] = []
        if known is not None and known.uid != item.metadata.uid:  # its deletion was missed
            told += known.forgotten
            known = None
        if driver is None or is_settled(item, driver):
            return told
        waiting = waiting_of(item, driver)
        volume = item.spec.source.persistent_volume_name or ""
        self._waiting.put(name, waiting, ("node", waiting.node), ("volume", volume))
        is_echo = known is not None and known.fingerprint == waiting.fingerprint
        if known is not None and known.is_marked and not waiting.is_marked:
            is_echo = False  # csi-fleet removes the marks only at the end
        return told if is_echo else [*told, waiting.key]

    def _drop_attachment(self, item: Attachment) -> list[Told]:
        driver = self._drivers.get(item.spec.attacher)
        told = waiting_of(item, driver).forgotten if driver is not None else []
        held = self._held.get(item.spec.source.persistent_volume_name or "")
        return [*told, held] if held is not None else told

    # The objects that attachments are waiting for.

    def _see_node(self, item: CsiNode) -> list[Told]:
        """Queue the attachments of drivers that are new on the node."""
        name = item.metadata.name
        known = self._nodes.pop(name) or ()
        views = [self._drivers.get(entry.name) for entry in item.spec.drivers or ()]
        if now := tuple(view.queue_name for view in views if view is not None):
            self._nodes.put(name, now)
        waiting = self._waiting.waiting_for("node", name) if now != known else ()
        new = set(now).difference(known)
        return [one.key for one in waiting if one.has_error and one.driver in new]

    def _see_volume(self, item: Volume, *, is_listed: bool) -> list[Told]:
        """Queue attachments that failed before the PV was created, and a PV that may be released.

        Only a recreated PV is younger than its attachment.
        """
        name, created = item.metadata.name, item.metadata.creation_timestamp or ""
        waiting = self._waiting.waiting_for("volume", name)
        told: list[Told] = [one.key for one in waiting if one.has_error and one.created < created]
        known, driver = self._held.pop(name), self._owner(item)
        if driver is not None:
            held = finalizer_key(driver.queue_name, name)
            self._held.put(name, held)
            # The deletion of the PV's attachment also queues the key, but the PV's own event can
            # arrive first.
            if not (is_listed and known == held):
                told.append(held)
        return told

    def _owner(self, item: Volume) -> DriverView | None:
        """Return the driver whose finalizer can be removed from the PV, or None."""
        ours = [self._by_finalizer.get(one) for one in item.metadata.finalizers or ()]
        driver = next((view for view in ours if view is not None), None)
        if driver is None:
            return None
        # A PV without a CSI source may be in-tree; the worker checks this.
        is_rolled_back = item.spec.csi is None and (
            item.metadata.annotation(ANN_MIGRATED_TO) != driver.name
        )
        return driver if item.metadata.deletion_timestamp or is_rolled_back else None


def can_attach(record: Any) -> bool:
    """Return True if the driver's registration reports that it can publish volumes (A-004)."""
    return SERVICE in record.get("plugin_capabilities", ()) and PUBLISHES in record.get(
        "controller_capabilities", ()
    )


def is_another_kind(before: Records, now: Records) -> bool:
    """Return True if a driver is new or its ability to attach has changed."""
    known = {(record["name"], can_attach(record)) for record in before}
    return not {(record["name"], can_attach(record)) for record in now} <= known


def is_settled(item: Attachment, driver: DriverView) -> bool:
    """Return True if the attachment needs no work.

    A driver that cannot attach needs no finalizer, but an old finalizer must be removed (A-075,
    DA-008).
    """
    has_finalizer = item.metadata.has_finalizer(driver.finalizer)
    if item.metadata.deletion_timestamp:
        is_marked = driver.can_attach or item.status.attached
        return not has_finalizer and is_marked
    return item.status.attached and (has_finalizer or not driver.can_attach)


def waiting_of(item: Attachment, driver: DriverView) -> Waiting:
    """Return the entry of an unfinished attachment."""
    meta = item.metadata
    return Waiting(
        driver=driver.queue_name,
        node=item.spec.node_name,
        name=meta.name,
        uid=meta.uid,
        created=meta.creation_timestamp or "",
        is_deleting=meta.deletion_timestamp is not None,
        fingerprint=fingerprint(item, driver),
        is_marked=meta.has_finalizer(driver.finalizer) and meta.annotation(NODE_ID) is not None,
        has_error=bool(item.status.attach_error or item.status.detach_error),
    )


def fingerprint(item: Attachment, driver: DriverView) -> int:
    """Return a hash of the fields that other programs can change on an attachment."""
    meta = item.metadata
    ours = {NODE_ID, EARLIER_IDS}
    finalizers = frozenset(one for one in meta.finalizers or () if one != driver.finalizer)
    annotations = frozenset(one for one in (meta.annotations or {}).items() if one[0] not in ours)
    labels = frozenset((meta.labels or {}).items())
    is_deleting = bool(meta.deletion_timestamp)
    return hash((meta.uid, is_deleting, item.status.attached, finalizers, annotations, labels))

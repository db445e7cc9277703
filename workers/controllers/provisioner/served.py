"""Maps a provisioner name to the registered driver and to the queues of the driver's keys.

It holds a snapshot of the drivers' registrations. A driver in node deployment has one registration
per node, each with its own queue name `<driver>@<node>`; every other driver has one registration.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_CLONE = "CLONE_VOLUME"
_ATTACH = "PUBLISH_UNPUBLISH_VOLUME"


@dataclass(frozen=True, slots=True)
class DriverView:
    """The facts from one driver's registration that the rules need.

    Attributes:
        name: the provisioner name.
        queue_name: the driver part of the driver's keys.
        in_tree_name: the in-tree plugin that the driver replaces; the claims of that plugin
            also need the migrated-to annotation (L-025).
        additional_names: other names that a custom provisioner always serves (L-026).
        node: the driver's node in node deployment, else None.
        node_segments: that node's topology as the driver reports it.
        add_finalizer: whether the driver's volumes have the deletion finalizer (L-072).
        has_topology: whether the driver needs CSINodes and node labels in the shared cache.
        has_attach: whether the driver needs VolumeAttachments in the shared cache (L-078).
        can_clone: whether the driver's workers remove the clone-source finalizer (CL-004).
        has_capacity: whether the driver publishes capacity objects.
        label_keys: the keys of the claims' labels that the driver's PVs follow.
    """

    name: str
    queue_name: str
    in_tree_name: str | None
    additional_names: tuple[str, ...]
    node: str | None
    node_segments: Mapping[str, str] | None
    add_finalizer: bool
    has_topology: bool
    has_attach: bool
    can_clone: bool
    has_capacity: bool
    label_keys: tuple[str, ...] = ()

    @property
    def needs_nodes(self) -> bool:
        """True if requests or capacity segments depend on nodes and CSINodes (CAP-020)."""
        return self.has_topology or (self.has_capacity and self.node is None)

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> DriverView:
        """Read a record; unknown fields are ignored, and missing fields have CSI's defaults."""
        capabilities = record.get("controller_capabilities") or ()
        return cls(
            name=record["name"],
            queue_name=record["queue_name"],
            in_tree_name=record.get("in_tree_name") or None,
            additional_names=tuple(record.get("additional_names") or ()),
            node=record.get("node") or None,
            node_segments=record.get("node_segments") or None,
            add_finalizer=bool(record.get("add_finalizer", True)),
            has_topology=bool(record.get("topology")),
            has_attach=_ATTACH in capabilities,
            can_clone=_CLONE in capabilities,
            has_capacity=bool(record.get("capacity")),
            label_keys=tuple((record.get("rules") or {}).get("claim_labels_to_pv") or ()),
        )


@dataclass(frozen=True, slots=True)
class Drivers:
    """All known drivers.

    Attributes:
        by_name: maps a provisioner name to the driver's views, one per node in node deployment.
        owners: maps every driver name that a volume may have (L-071), including in-tree names,
            to the name of the driver.
    """

    by_name: Mapping[str, tuple[DriverView, ...]] = field(default_factory=dict)
    owners: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, views: Iterable[DriverView]) -> Drivers:
        """Index the views by provisioner name and by owner name."""
        ordered = sorted(views, key=lambda view: (view.name, view.queue_name))
        by_name = {
            name: tuple(group) for name, group in groupby(ordered, key=lambda view: view.name)
        }
        owners: dict[str, str] = {}
        for view in ordered:
            for alias in filter(None, (view.in_tree_name, *view.additional_names)):
                owners.setdefault(alias, view.name)
        owners.update({name: name for name in by_name})
        return cls(by_name, owners)

    @classmethod
    def of_records(cls, records: Iterable[Mapping[str, Any]]) -> Drivers:
        """Index the drivers' registrations."""
        return cls.of(map(DriverView.from_record, records))

    def views(self) -> Iterable[DriverView]:
        """Return every view, ordered by name."""
        return [view for group in self.by_name.values() for view in group]

    def first(self, name: str) -> DriverView | None:
        """Return the driver's view (in node deployment, the first node's); None if unknown."""
        views = self.by_name.get(name)
        return views[0] if views else None

"""Sinks that write watched objects to the shared cache, so that workers need no watches.

Each kind has one sink; only its reflector's thread calls it. Sinks compare objects with their last
state, so that nodes' status heartbeats cause no writes.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from watcher.outbox import CatalogList
from workers.queue.catalogkinds import KIND_ATTACHMENTS, KIND_CLASSES, KIND_CSINODES, KIND_NODES

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from watcher.outbox import Outbox
    from workers.kube.objects import Attachment, CsiNode, JsonObject, Node
    from workers.kube.watch import Sink

T = TypeVar("T")


class CatalogSink(Generic[T]):
    """Writes one kind to the shared cache; subclasses choose which part of an object to keep.

    Args:
        kind: the name of the kind in the cache.
        outbox: receives the entries.
        epoch: returns the current epoch of Redis; called when a list begins (M-017).
    """

    def __init__(self, kind: str, outbox: Outbox, epoch: Callable[[], str]) -> None:
        self._kind = kind
        self._outbox = outbox
        self._epoch = epoch
        self._list_epoch = ""
        self._items: dict[str, tuple[str, Mapping[str, Any]]] = {}

    def entry(self, item: T) -> tuple[str, str, Mapping[str, Any]]:
        """Return the name, the resourceVersion and the kept part of an object."""
        raise NotImplementedError

    def begin_list(self) -> None:
        """Start collecting a new, complete list."""
        self._list_epoch = self._epoch()
        self._items = {}

    def listed(self, item: T) -> None:
        """Collect one object of the list."""
        name, version, value = self.entry(item)
        self._items[name] = (version, value)

    def end_list(self, resource_version: str) -> None:
        """Replace the kind in the cache with the list, and declare the kind complete."""
        listed = CatalogList(self._items, resource_version, self._list_epoch)
        self._items = {}
        self._outbox.replace(self._kind, listed)

    def changed(self, item: T) -> None:
        """Write the entry of one object."""
        self._outbox.put(self._kind, *self.entry(item))

    def deleted(self, item: T) -> None:
        """Remove the entry of one object."""
        name, version, _ = self.entry(item)
        self._outbox.put(self._kind, name, version, None)


class ClassSink(CatalogSink["JsonObject"]):
    """Writes whole StorageClasses, except their managed fields."""

    def __init__(self, outbox: Outbox, epoch: Callable[[], str]) -> None:
        super().__init__(KIND_CLASSES, outbox, epoch)

    def entry(self, item: JsonObject) -> tuple[str, str, Mapping[str, Any]]:
        """Return a class without managed fields; add the kind, because listed items have none."""
        metadata = {
            key: item["metadata"][key] for key in item["metadata"] if key != "managedFields"
        }
        kept = {
            **item,
            "apiVersion": "storage.k8s.io/v1",
            "kind": "StorageClass",
            "metadata": metadata,
        }
        return metadata["name"], metadata["resourceVersion"], kept


class CsiNodeSink(CatalogSink["CsiNode"]):
    """Writes the topology keys of each driver of a CSINode, in the driver's order."""

    def __init__(self, outbox: Outbox, epoch: Callable[[], str]) -> None:
        super().__init__(KIND_CSINODES, outbox, epoch)

    def entry(self, item: CsiNode) -> tuple[str, str, Mapping[str, Any]]:
        """Return the topology keys of each driver; for a driver without keys, an empty list."""
        keys = {driver.name: driver.topology_keys or [] for driver in item.spec.drivers or ()}
        return item.metadata.name, item.metadata.resource_version, keys


class NodeSink(CatalogSink["Node"]):
    """Writes the labels of Nodes; a heartbeat that changes no labels causes no write."""

    def __init__(self, outbox: Outbox, epoch: Callable[[], str]) -> None:
        super().__init__(KIND_NODES, outbox, epoch)
        self._seen: dict[str, int] = {}

    def entry(self, item: Node) -> tuple[str, str, Mapping[str, Any]]:
        """Return the name, the resourceVersion and the labels of a node."""
        return item.metadata.name, item.metadata.resource_version, item.metadata.labels or {}

    def begin_list(self) -> None:
        """Start collecting a new list; forget all labels, so that all nodes are written."""
        super().begin_list()
        self._seen = {}

    def listed(self, item: Node) -> None:
        """Collect one node of the list."""
        super().listed(item)
        self._seen[item.metadata.name] = _digest(item)

    def changed(self, item: Node) -> None:
        """Write the entry of a node if its labels have changed."""
        digest = _digest(item)
        if self._seen.get(item.metadata.name) != digest:
            self._seen[item.metadata.name] = digest
            super().changed(item)

    def deleted(self, item: Node) -> None:
        """Remove the entry of a node."""
        self._seen.pop(item.metadata.name, None)
        super().deleted(item)


class AttachmentSink:
    """Writes the VolumeAttachments of each volume: the node's name for each attachment."""

    def __init__(self, outbox: Outbox, epoch: Callable[[], str]) -> None:
        self._outbox = outbox
        self._epoch = epoch
        self._list_epoch = ""
        self._nodes: defaultdict[str, dict[str, str]] = defaultdict(dict)
        self._listed: defaultdict[str, dict[str, str]] = defaultdict(dict)

    def begin_list(self) -> None:
        """Start collecting a new, complete list."""
        self._list_epoch = self._epoch()
        self._listed = defaultdict(dict)

    def listed(self, item: Attachment) -> None:
        """Collect one attachment under its volume."""
        volume = item.spec.source.persistent_volume_name
        if volume:
            self._listed[volume][item.metadata.name] = item.spec.node_name

    def end_list(self, resource_version: str) -> None:
        """Replace the attachments of all volumes with those in the list."""
        # Each entry has the version of the list, because an entry also shows which attachments its
        # volume does not have.
        items = {volume: (resource_version, dict(nodes)) for volume, nodes in self._listed.items()}
        listed = CatalogList(dict(items), resource_version, self._list_epoch)
        self._outbox.replace(KIND_ATTACHMENTS, listed)
        self._nodes, self._listed = self._listed, defaultdict(dict)

    def changed(self, item: Attachment) -> None:
        """Write the volume's attachments if this attachment is new; ignore status changes."""
        volume, name = item.spec.source.persistent_volume_name, item.metadata.name
        if not volume or self._nodes.get(volume, {}).get(name) == item.spec.node_name:
            return
        self._nodes[volume][name] = item.spec.node_name
        self._write(volume, item.metadata.resource_version)

    def deleted(self, item: Attachment) -> None:
        """Write the volume's attachments without the deleted one."""
        volume = item.spec.source.persistent_volume_name
        if not volume:
            return
        self._nodes[volume].pop(item.metadata.name, None)
        self._write(volume, item.metadata.resource_version)
        if not self._nodes[volume]:
            del self._nodes[volume]

    def _write(self, volume: str, version: str) -> None:
        self._outbox.put(KIND_ATTACHMENTS, volume, version, dict(self._nodes[volume]) or None)


def _digest(item: Node) -> int:
    return hash(frozenset((item.metadata.labels or {}).items()))


# For each cached kind: the sink that writes it.
CATALOG_SINKS: Final[Mapping[str, Callable[[Outbox, Callable[[], str]], Sink[Any]]]] = {
    KIND_CLASSES: ClassSink,
    KIND_CSINODES: CsiNodeSink,
    KIND_NODES: NodeSink,
    KIND_ATTACHMENTS: AttachmentSink,
}

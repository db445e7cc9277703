"""What each watched kind means: keys for the queue, entries for the catalog, or nothing.

One sink per kind, called by its reflector's thread only. Sinks compare with what they saw before,
so that status heartbeats of nodes and unchanged objects of a new list cause no write.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from watcher.outbox import CatalogList
from workers.queue.catalog import KIND_ATTACHMENTS, KIND_CLASSES, KIND_CSINODES, KIND_NODES

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from watcher.outbox import Outbox
    from watcher.undecided import Undecided
    from workers.kube.objects import Attachment, Claim, CsiNode, JsonObject, Node, Volume

T = TypeVar("T")


class ClaimSink:
    """Claims -> keys of the undecided ones, and of sources whose last clone is done."""

    def __init__(self, undecided: Undecided, outbox: Outbox) -> None:
        self._undecided = undecided
        self._outbox = outbox

    def begin_list(self) -> None:
        """Start to note which undecided claims still exist."""
        self._undecided.begin_claims()

    def listed(self, item: Claim) -> None:
        """Add the claim if it changed since it was last seen."""
        self._outbox.add(self._undecided.see_claim(item, is_listed=True))

    def end_list(self, resource_version: str) -> None:  # noqa: ARG002 - the sink's form
        """Treat the others as deleted."""
        self._outbox.add(self._undecided.end_claims())

    def changed(self, item: Claim) -> None:
        """Add the claim if it is undecided."""
        self._outbox.add(self._undecided.see_claim(item))

    def deleted(self, item: Claim) -> None:
        """Let the worker finish or forget what was undecided."""
        meta = item.metadata
        self._outbox.add(self._undecided.drop_claim(meta.uid, f"{meta.namespace}/{meta.name}"))


class VolumeSink:
    """Volumes -> keys of those with a finalizer change or deletion to do."""

    def __init__(self, undecided: Undecided, outbox: Outbox) -> None:
        self._undecided = undecided
        self._outbox = outbox

    def begin_list(self) -> None:
        """Start to note which undecided volumes still exist."""
        self._undecided.begin_volumes()

    def listed(self, item: Volume) -> None:
        """Add the volume if it changed since it was last seen."""
        self._outbox.add(self._undecided.see_volume(item, is_listed=True))

    def end_list(self, resource_version: str) -> None:  # noqa: ARG002 - the sink's form
        """Forget the others."""
        self._outbox.forget(self._undecided.end_volumes())

    def changed(self, item: Volume) -> None:
        """Add the volume if there is something to do."""
        self._outbox.add(self._undecided.see_volume(item))

    def deleted(self, item: Volume) -> None:
        """Forget its failures (L-011, C-082)."""
        self._outbox.forget(self._undecided.drop_volume(item.metadata.name))


class CatalogSink(Generic[T]):
    """Writes one kind to the catalog; subclasses say what of an object is kept.

    Args:
        kind: the catalog's word.
        outbox: where entries go.
        epoch: returns the life of Redis known now; read when a list begins (M-017).
    """

    def __init__(self, kind: str, outbox: Outbox, epoch: Callable[[], str]) -> None:
        self._kind = kind
        self._outbox = outbox
        self._epoch = epoch
        self._list_epoch = ""
        self._items: dict[str, tuple[str, Mapping[str, Any]]] = {}

    def entry(self, item: T) -> tuple[str, str, Mapping[str, Any]]:
        """Return name, resourceVersion and what is kept of an object."""
        raise NotImplementedError

    def begin_list(self) -> None:
        """Start a complete list."""
        self._list_epoch = self._epoch()
        self._items = {}

    def listed(self, item: T) -> None:
        """Collect one object."""
        name, version, value = self.entry(item)
        self._items[name] = (version, value)

    def end_list(self, resource_version: str) -> None:
        """Replace the kind and declare it complete."""
        listed = CatalogList(self._items, resource_version, self._list_epoch)
        self._items = {}
        self._outbox.replace(self._kind, listed)

    def changed(self, item: T) -> None:
        """Write one object."""
        self._outbox.put(self._kind, *self.entry(item))

    def deleted(self, item: T) -> None:
        """Remove one object."""
        name, version, _ = self.entry(item)
        self._outbox.put(self._kind, name, version, None)


class ClassSink(CatalogSink["JsonObject"]):
    """StorageClasses -> the catalog, whole; claims that waited for a class -> keys."""

    def __init__(self, undecided: Undecided, outbox: Outbox, epoch: Callable[[], str]) -> None:
        super().__init__(KIND_CLASSES, outbox, epoch)
        self._undecided = undecided

    def entry(self, item: JsonObject) -> tuple[str, str, Mapping[str, Any]]:
        """Keep all but the managed fields; list items get their kind back."""
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

    def listed(self, item: JsonObject) -> None:
        """Collect the class and add the claims that waited for it."""
        super().listed(item)
        self._note(item)

    def end_list(self, resource_version: str) -> None:
        """Replace the classes; from now on claims can be decided."""
        names = set(self._items)
        super().end_list(resource_version)
        self._outbox.add(self._undecided.classes_listed(names))

    def changed(self, item: JsonObject) -> None:
        """Write the class and add the claims that waited for it (C-008)."""
        super().changed(item)
        self._note(item)

    def deleted(self, item: JsonObject) -> None:
        """Remove the class."""
        super().deleted(item)
        self._undecided.drop_class(item["metadata"]["name"])

    def _note(self, item: JsonObject) -> None:
        metadata = item["metadata"]
        mode = item.get("volumeBindingMode")
        self._outbox.add(self._undecided.set_class(metadata["name"], metadata["uid"], mode))


class CsiNodeSink(CatalogSink["CsiNode"]):
    """CSINodes -> driver name -> topology keys, in the driver's order."""

    def __init__(self, outbox: Outbox, epoch: Callable[[], str]) -> None:
        super().__init__(KIND_CSINODES, outbox, epoch)

    def entry(self, item: CsiNode) -> tuple[str, str, Mapping[str, Any]]:
        """Keep the keys of each driver; one without keys has an empty list."""
        keys = {driver.name: driver.topology_keys or [] for driver in item.spec.drivers or ()}
        return item.metadata.name, item.metadata.resource_version, keys


class NodeSink(CatalogSink["Node"]):
    """Nodes -> labels; heartbeats that leave the labels as they are cause no write."""

    def __init__(self, outbox: Outbox, epoch: Callable[[], str]) -> None:
        super().__init__(KIND_NODES, outbox, epoch)
        self._seen: dict[str, int] = {}

    def entry(self, item: Node) -> tuple[str, str, Mapping[str, Any]]:
        """Keep the labels."""
        return item.metadata.name, item.metadata.resource_version, item.metadata.labels or {}

    def begin_list(self) -> None:
        """Forget what was seen: the list writes all."""
        super().begin_list()
        self._seen = {}

    def listed(self, item: Node) -> None:
        """Collect one node."""
        super().listed(item)
        self._seen[item.metadata.name] = _digest(item)

    def changed(self, item: Node) -> None:
        """Write the node if its labels changed."""
        digest = _digest(item)
        if self._seen.get(item.metadata.name) != digest:
            self._seen[item.metadata.name] = digest
            super().changed(item)

    def deleted(self, item: Node) -> None:
        """Remove the node."""
        self._seen.pop(item.metadata.name, None)
        super().deleted(item)


class AttachmentSink:
    """VolumeAttachments -> by volume: attachment name -> node; detached volumes -> keys."""

    def __init__(self, undecided: Undecided, outbox: Outbox, epoch: Callable[[], str]) -> None:
        self._undecided = undecided
        self._outbox = outbox
        self._epoch = epoch
        self._list_epoch = ""
        self._nodes: defaultdict[str, dict[str, str]] = defaultdict(dict)
        self._listed: defaultdict[str, dict[str, str]] = defaultdict(dict)

    def begin_list(self) -> None:
        """Start a complete list."""
        self._list_epoch = self._epoch()
        self._listed = defaultdict(dict)

    def listed(self, item: Attachment) -> None:
        """Collect one attachment under its volume."""
        volume = item.spec.source.persistent_volume_name
        if volume:
            self._listed[volume][item.metadata.name] = item.spec.node_name

    def end_list(self, resource_version: str) -> None:
        """Replace all; volumes that lost their last attachment meanwhile get their key."""
        # The list's version, for a volume's entry says as much by what is not in it.
        items = {volume: (resource_version, dict(nodes)) for volume, nodes in self._listed.items()}
        listed = CatalogList(dict(items), resource_version, self._list_epoch)
        self._outbox.replace(KIND_ATTACHMENTS, listed)
        for volume in self._nodes.keys() - self._listed.keys():
            self._outbox.add(self._undecided.volume_detached(volume))
        self._nodes, self._listed = self._listed, defaultdict(dict)

    def changed(self, item: Attachment) -> None:
        """Write the volume's attachments if one is new; its status does not matter."""
        volume, name = item.spec.source.persistent_volume_name, item.metadata.name
        if not volume or self._nodes.get(volume, {}).get(name) == item.spec.node_name:
            return
        self._nodes[volume][name] = item.spec.node_name
        self._write(volume, item.metadata.resource_version)

    def deleted(self, item: Attachment) -> None:
        """Write the volume's attachments; the last one's end may let it be deleted (C-080)."""
        volume = item.spec.source.persistent_volume_name
        if not volume:
            return
        self._nodes[volume].pop(item.metadata.name, None)
        self._write(volume, item.metadata.resource_version)
        if not self._nodes[volume]:
            del self._nodes[volume]
            self._outbox.add(self._undecided.volume_detached(volume))

    def _write(self, volume: str, version: str) -> None:
        self._outbox.put(KIND_ATTACHMENTS, volume, version, dict(self._nodes[volume]) or None)


def _digest(item: Node) -> int:
    return hash(frozenset((item.metadata.labels or {}).items()))

"""Defines the items for which capacity is published, and which of them are wanted (CAP-001).

An item is a pair of a storage class and a segment. Its string form is the object part of a queue
key. Each item has exactly one key, so requests for an item coalesce, at most one call is in flight
for it, and it has a single back-off (CAP-032).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote

from workers.topology.segments import parse_segment, segment_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from workers.topology.terms import Term

_DELETE = "del:"


@dataclass(frozen=True, slots=True, order=True)
class Item:
    """One storage class in one segment, for which one object is published."""

    storage_class: str
    segment: Term

    @property
    def text(self) -> str:
        """The item as a string, for example `fast/topology.kubernetes.io/zone=a,rack=b`.

        The class is the part before the first `/`. The queue shares its turns fairly between
        classes. The text of the empty segment is `fast/`.
        """
        return f"{quote(self.storage_class, safe='')}/{segment_text(self.segment)}"


@dataclass(frozen=True, slots=True, order=True)
class Obsolete:
    """A published object that no longer matches a wanted item; its text is `del:<name>`."""

    name: str

    @property
    def text(self) -> str:
        """The key's text; it never equals an item's text, because a quoted class has no `:`."""
        return f"{_DELETE}{self.name}"


def parse_text(text: str) -> Item | Obsolete:
    """Return the Item or Obsolete with this `text`.

    Raises:
        ValueError: the string has a different form.
    """
    if text.startswith(_DELETE):
        return Obsolete(text.removeprefix(_DELETE))
    storage_class, slash, segment = text.partition("/")
    if not slash:
        raise ValueError(f"capacity item without '/': {text!r}")
    return Item(unquote(storage_class), parse_segment(segment))


@dataclass(frozen=True, slots=True)
class Wanted:
    """The wanted items: every class combined with every segment (CAP-001).

    It holds the classes and the segments, not their product, so the cost of a method depends only
    on the size of its result.
    """

    storage_classes: frozenset[str]
    segments: frozenset[Term]

    def __contains__(self, item: Item) -> bool:
        return item.storage_class in self.storage_classes and item.segment in self.segments

    def __iter__(self) -> Iterator[Item]:
        """Yield the items in a fixed order, so that equal states cause equal work."""
        segments = sorted(self.segments)
        for storage_class in sorted(self.storage_classes):
            for segment in segments:
                yield Item(storage_class, segment)

    def __len__(self) -> int:
        return len(self.storage_classes) * len(self.segments)

    def of_class(self, storage_class: str) -> list[Item]:
        """Return the items of one class for all segments; none for an unknown class (C-104)."""
        if storage_class not in self.storage_classes:
            return []
        return [Item(storage_class, segment) for segment in sorted(self.segments)]

    def of_segments(self, segments: Iterable[Term]) -> list[Item]:
        """Return the items of all classes for these segments; ignores unknown segments (C-104)."""
        known = sorted(self.segments.intersection(segments))
        return [Item(name, segment) for name in sorted(self.storage_classes) for segment in known]


def wanted_items(
    classes: Iterable[Mapping[str, Any]],
    segments: Iterable[Term],
    *,
    driver_name: str,
    for_immediate_binding: bool = False,
) -> Wanted:
    """Return the items for which a driver should have objects (CAP-001).

    A class counts if its volumes bind late and its provisioner is exactly the driver's name (not
    the in-tree name). A class without a binding mode binds late. `allowedTopologies` are not
    considered.

    Args:
        classes: the StorageClass objects, which may belong to any driver.
        segments: the driver's segments, `ClusterTopology.segments` or `[node_segment(...)]`.
        driver_name: the name of the CSI driver.
        for_immediate_binding: the value of `--capacity-for-immediate-binding`.
    """
    names = (
        one["metadata"]["name"]
        for one in classes
        if one.get("provisioner") == driver_name
        and (for_immediate_binding or one.get("volumeBindingMode") != "Immediate")
    )
    return Wanted(frozenset(names), frozenset(segments))

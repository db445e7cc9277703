"""The topology that the cluster's nodes offer to a driver's volumes.

A `ClusterTopology` holds one version of the shared cache: the CSINodes' topology keys and the
Nodes' labels. The object is immutable; when the cache's version changes, the caller builds a new
object. So results can be cached: thousands of nodes are aggregated once per version and set of
keys, not once per claim.
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING

from workers.topology.terms import Term, make_term, sort_distinct

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


class ClusterTopology:
    """The cluster's CSINodes and Nodes at one moment, with cached results. Thread-safe.

    Args:
        csi_nodes: maps the name of each CSINode to its drivers, and each driver's name to its
            topology keys in their original order (an empty list for a driver without keys).
        nodes: maps the name of each Node to its labels.
        version: a value to compare, to find out whether this object is current.
    """

    # No lock: two threads may compute a result at the same time, but both store the same value.

    def __init__(
        self,
        csi_nodes: Mapping[str, Mapping[str, Sequence[str]]],
        nodes: Mapping[str, Mapping[str, str]],
        version: object = None,
    ) -> None:
        self.version = version
        self._csi_nodes = csi_nodes
        self._nodes = nodes
        self._key_sets: dict[str, tuple[tuple[str, ...], ...]] = {}
        self._places: dict[str, tuple[Term, ...]] = {}
        self._terms: dict[tuple[str, ...], tuple[Term, ...]] = {}
        self._segments: dict[str, frozenset[Term]] = {}

    @classmethod
    def of_node(
        cls, node_name: str, driver_name: str, segments: Mapping[str, str]
    ) -> ClusterTopology:
        """Return the topology for node deployment: one static CSINode and Node (P-051, ND-002).

        Args:
            node_name: the value of NODE_NAME.
            driver_name: the only driver of this process.
            segments: the accessible topology that NodeGetInfo returned; empty if there is none.
        """
        keys = {node_name: {driver_name: sorted(segments)}}
        return cls(keys, {node_name: dict(segments)}, version=node_name)

    def has_csi_node(self, node_name: str) -> bool:
        """Return True if a CSINode with that name exists."""
        return node_name in self._csi_nodes

    def keys_of(self, node_name: str, driver_name: str) -> tuple[str, ...]:
        """Return a driver's topology keys on a node, in order; none if the driver is not listed."""
        return tuple(self._csi_nodes.get(node_name, {}).get(driver_name) or ())

    def labels_of(self, node_name: str) -> Mapping[str, str]:
        """Return a Node's labels; empty if there is no such Node."""
        return self._nodes.get(node_name, {})

    def key_sets(self, driver_name: str) -> tuple[tuple[str, ...], ...]:
        """Return the distinct sets of keys registered for a driver, in the order of node names."""
        if driver_name not in self._key_sets:
            found = (self.keys_of(name, driver_name) for name in sorted(self._csi_nodes))
            distinct = {frozenset(keys): keys for keys in reversed(list(found)) if keys}
            self._key_sets[driver_name] = tuple(reversed(distinct.values()))
        return self._key_sets[driver_name]

    def places(self, driver_name: str) -> tuple[Term, ...]:
        """Return the distinct places for all registered sets of keys, sorted (P-321).

        The key sets of all nodes are used. So a node that is outdated, or ahead in an upgrade of
        the driver, can add places but never removes any. (csi-provisioner uses the keys of one
        random node.)
        """
        if driver_name not in self._places:
            found = [self.terms(keys) for keys in self.key_sets(driver_name)]
            self._places[driver_name] = tuple(sort_distinct(chain.from_iterable(found)))
        return self._places[driver_name]

    def terms(self, keys: Iterable[str]) -> tuple[Term, ...]:
        """Return the distinct places that these keys describe, sorted as in P-302 (P-321 step 2).

        A Node counts if it has labels for all keys, even if the driver is not registered there
        (D-028, as in csi-provisioner).
        """
        ordered = tuple(sorted(set(keys)))
        cached = self._terms.get(ordered)
        if cached is None:
            cached = self._terms[ordered] = tuple(self._collect(ordered))
        return cached

    def _collect(self, ordered: tuple[str, ...]) -> list[Term]:
        rows: set[tuple[str, ...]] = set()
        for labels in self._nodes.values():
            row = tuple(labels[key] for key in ordered if key in labels)
            if len(row) == len(ordered):
                rows.add(row)
        return sort_distinct(tuple(zip(ordered, row, strict=True)) for row in rows)

    def segments(self, driver_name: str) -> frozenset[Term]:
        """Return the distinct segments that divide the driver's storage (CAP-020, CAP-023).

        A CSINode counts if it lists the driver and a Node with the same name exists and has a label
        for every key. A driver without keys has one empty segment if any such CSINode lists it.
        """
        cached = self._segments.get(driver_name)
        if cached is None:
            cached = frozenset(self._driver_segments(driver_name))
            self._segments[driver_name] = cached
        return cached

    def _driver_segments(self, driver_name: str) -> Iterable[Term]:
        for name, drivers in self._csi_nodes.items():
            labels = self._nodes.get(name)
            if labels is None or driver_name not in drivers:
                continue
            keys = set(drivers[driver_name] or ())
            if all(key in labels for key in keys):
                yield make_term({key: labels[key] for key in keys})

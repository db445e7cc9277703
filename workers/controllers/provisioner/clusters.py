"""Keeps the cluster's topology, which all threads share, until the shared cache changes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from workers.queue.catalogkinds import KIND_CSINODES, KIND_NODES
from workers.topology.cluster import ClusterTopology

if TYPE_CHECKING:
    from workers.queue.catalog import CatalogReader
    from workers.queue.leases import CatalogState


class Clusters:
    """Builds a ClusterTopology from the shared cache and keeps it until the cache changes."""

    def __init__(self, catalog: CatalogReader) -> None:
        self._catalog = catalog
        self._current = ClusterTopology({}, {}, version=None)
        # The version consists of the ids of these two objects. This reference keeps the objects
        # alive, so that no other object can get the same ids.
        self._source: tuple[object, object] = (None, None)

    def current(self, state: CatalogState | None) -> ClusterTopology:
        """Return the current topology.

        Raises:
            CatalogIncomplete: not all nodes or CSINodes are known.
        """
        csi_nodes = self._catalog.all(KIND_CSINODES, state)
        nodes = self._catalog.all(KIND_NODES, state)
        # The reader returns the same mapping objects until something changes.
        current = self._current
        if current.version != (id(csi_nodes), id(nodes)):
            current = ClusterTopology(csi_nodes, nodes, version=(id(csi_nodes), id(nodes)))
            self._current, self._source = current, (csi_nodes, nodes)
        return current

"""The cluster's topology as this process knows it: one shared value per version of the catalog."""

from __future__ import annotations

from typing import TYPE_CHECKING

from workers.queue.catalogkinds import KIND_CSINODES, KIND_NODES
from workers.topology.cluster import ClusterTopology

if TYPE_CHECKING:
    from workers.queue.catalog import CatalogReader
    from workers.queue.leases import CatalogState


class Clusters:
    """Builds a ClusterTopology from the catalog and keeps it until the catalog changes."""

    def __init__(self, catalog: CatalogReader) -> None:
        self._catalog = catalog
        self._current = ClusterTopology({}, {}, version=None)
        # Kept, so that their identities stay taken while they serve as the version.
        self._source: tuple[object, object] = (None, None)

    def current(self, state: CatalogState | None) -> ClusterTopology:
        """The topology of this moment.

        Raises:
            CatalogIncomplete: nodes or CSINodes are not all known.
        """
        csi_nodes = self._catalog.all(KIND_CSINODES, state)
        nodes = self._catalog.all(KIND_NODES, state)
        # The reader hands out the same mapping until something changed.
        current = self._current
        if current.version != (id(csi_nodes), id(nodes)):
            current = ClusterTopology(csi_nodes, nodes, version=(id(csi_nodes), id(nodes)))
            self._current, self._source = current, (csi_nodes, nodes)
        return current

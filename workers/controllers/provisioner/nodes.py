"""Provides an attempt's topology data, and checks that the claim belongs to this node."""

from __future__ import annotations

from typing import TYPE_CHECKING

from workers.errors import IgnoredError
from workers.nodemode.ownership import selected_node
from workers.topology.cluster import ClusterTopology

if TYPE_CHECKING:
    from workers.controllers.provisioner.work import ClaimWork
    from workers.kube.objects import JsonObject


def cluster(work: ClaimWork) -> ClusterTopology:
    """Return the cluster's current topology, or the local node's in node deployment (P-051)."""
    driver = work.driver
    if driver.node_segments is not None:
        return ClusterTopology.of_node(
            driver.settings.node.node_name, driver.name, driver.node_segments
        )
    return work.own.clusters.current(work.lease.catalog)


def check_owner(work: ClaimWork, claim: JsonObject) -> None:
    """Repeats the check of the claim's node at the start of an attempt (P-055).

    Raises:
        IgnoredError: the claim is assigned to another node.
    """
    node = work.driver.settings.node
    if node.enabled and selected_node(claim) != node.node_name:
        namespace, name = claim["metadata"]["namespace"], claim["metadata"]["name"]
        raise IgnoredError(
            f"not responsible for provisioning of PVC {namespace}/{name} "
            f'because it is not assigned to node "{node.node_name}"'
        )

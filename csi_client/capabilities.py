"""Reads a driver's capabilities as frozen sets of CSI enum value names.

Each service has its own set, because names such as SINGLE_NODE_MULTI_WRITER occur in several
services. As in the Go sidecar, an unknown number is kept as a string of digits, which matches no
name (P-006).
"""

from __future__ import annotations

from csi_client import messages as csi


def plugin_capabilities(response: csi.GetPluginCapabilitiesResponse) -> frozenset[str]:
    """Return the service names, such as `VOLUME_ACCESSIBILITY_CONSTRAINTS`.

    Entries that do not name a service (volume expansion, empty ones) are skipped (P-006).
    """
    types = csi.PluginCapability.Service.Type.DESCRIPTOR.values_by_number
    return frozenset(
        types[entry.service.type].name if entry.service.type in types else str(entry.service.type)
        for entry in response.capabilities
        if entry.HasField("service")
    )


def controller_capabilities(response: csi.ControllerGetCapabilitiesResponse) -> frozenset[str]:
    """Return the RPC names, such as `CREATE_DELETE_VOLUME`; entries without an RPC are skipped."""
    types = csi.ControllerServiceCapability.RPC.Type.DESCRIPTOR.values_by_number
    return frozenset(
        types[entry.rpc.type].name if entry.rpc.type in types else str(entry.rpc.type)
        for entry in response.capabilities
        if entry.HasField("rpc")
    )


def expansion_modes(response: csi.GetPluginCapabilitiesResponse) -> frozenset[str]:
    """Return how volumes can grow: `ONLINE`, `OFFLINE`, both or neither."""
    types = csi.PluginCapability.VolumeExpansion.Type.DESCRIPTOR.values_by_number
    return frozenset(
        types[entry.volume_expansion.type].name
        for entry in response.capabilities
        if entry.HasField("volume_expansion") and entry.volume_expansion.type in types
    )


def group_controller_capabilities(
    response: csi.GroupControllerGetCapabilitiesResponse,
) -> frozenset[str]:
    """Return the RPC names of the group controller; entries without an RPC are skipped."""
    types = csi.GroupControllerServiceCapability.RPC.Type.DESCRIPTOR.values_by_number
    return frozenset(
        types[entry.rpc.type].name if entry.rpc.type in types else str(entry.rpc.type)
        for entry in response.capabilities
        if entry.HasField("rpc")
    )


def node_capabilities(response: csi.NodeGetCapabilitiesResponse) -> frozenset[str]:
    """Return the RPC names of the node service; entries without an RPC are skipped."""
    types = csi.NodeServiceCapability.RPC.Type.DESCRIPTOR.values_by_number
    return frozenset(
        types[entry.rpc.type].name if entry.rpc.type in types else str(entry.rpc.type)
        for entry in response.capabilities
        if entry.HasField("rpc")
    )

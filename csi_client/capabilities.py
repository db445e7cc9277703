"""What a driver says it can do, as frozen sets of the standard's enum value names.

Plugin and controller names are kept apart, because SINGLE_NODE_MULTI_WRITER and the like would
otherwise mean two things. A number this project does not know stays in the set as its digits, as
harmless as it is in the Go sidecar (P-006).
"""

from __future__ import annotations

from csi_client import messages as csi


def plugin_capabilities(response: csi.GetPluginCapabilitiesResponse) -> frozenset[str]:
    """Return the service names, such as `VOLUME_ACCESSIBILITY_CONSTRAINTS`.

    Entries without a service (volume expansion, empty ones) are skipped (P-006).
    """
    types = csi.PluginCapability.Service.Type.DESCRIPTOR.values_by_number
    return frozenset(
        types[entry.service.type].name if entry.service.type in types else str(entry.service.type)
        for entry in response.capabilities
        if entry.HasField("service")
    )


def controller_capabilities(response: csi.ControllerGetCapabilitiesResponse) -> frozenset[str]:
    """Return the RPC names, such as `CREATE_DELETE_VOLUME`; entries without one are skipped."""
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
    """Return the RPC names of the group controller; entries without one are skipped."""
    types = csi.GroupControllerServiceCapability.RPC.Type.DESCRIPTOR.values_by_number
    return frozenset(
        types[entry.rpc.type].name if entry.rpc.type in types else str(entry.rpc.type)
        for entry in response.capabilities
        if entry.HasField("rpc")
    )


def node_capabilities(response: csi.NodeGetCapabilitiesResponse) -> frozenset[str]:
    """Return the RPC names of the node service; entries without one are skipped."""
    types = csi.NodeServiceCapability.RPC.Type.DESCRIPTOR.values_by_number
    return frozenset(
        types[entry.rpc.type].name if entry.rpc.type in types else str(entry.rpc.type)
        for entry in response.capabilities
        if entry.HasField("rpc")
    )

"""Capability sets (P-006)."""

from __future__ import annotations

from csi_client import messages as csi
from csi_client.capabilities import (
    controller_capabilities,
    expansion_modes,
    group_controller_capabilities,
    node_capabilities,
    plugin_capabilities,
)


def test_plugin_names_without_expansion_and_empty_entries() -> None:
    types = csi.PluginCapability.Service.Type
    response = csi.GetPluginCapabilitiesResponse(
        capabilities=[
            csi.PluginCapability(
                service=csi.PluginCapability.Service(type=types.CONTROLLER_SERVICE)
            ),
            csi.PluginCapability(
                service=csi.PluginCapability.Service(type=types.VOLUME_ACCESSIBILITY_CONSTRAINTS)
            ),
            csi.PluginCapability(
                volume_expansion=csi.PluginCapability.VolumeExpansion(type="ONLINE")
            ),
            csi.PluginCapability(),
        ]
    )
    assert plugin_capabilities(response) == {
        "CONTROLLER_SERVICE",
        "VOLUME_ACCESSIBILITY_CONSTRAINTS",
    }


def test_controller_names() -> None:
    response = csi.ControllerGetCapabilitiesResponse(
        capabilities=[
            csi.ControllerServiceCapability(
                rpc=csi.ControllerServiceCapability.RPC(type="CREATE_DELETE_VOLUME")
            ),
            csi.ControllerServiceCapability(),
        ]
    )
    assert controller_capabilities(response) == {"CREATE_DELETE_VOLUME"}


def test_unknown_number_is_kept_as_digits() -> None:
    """A driver of a later CSI version must not break the start."""
    controller = csi.ControllerGetCapabilitiesResponse.FromString(b"\x0a\x04\x0a\x02\x08\x63")
    plugin = csi.GetPluginCapabilitiesResponse.FromString(b"\x0a\x04\x0a\x02\x08\x63")
    assert controller_capabilities(controller) == {"99"}
    assert plugin_capabilities(plugin) == {"99"}


def test_how_volumes_grow() -> None:
    """Expansion modes are kept apart from the services, although both share one list."""
    response = csi.GetPluginCapabilitiesResponse(
        capabilities=[
            csi.PluginCapability(
                volume_expansion=csi.PluginCapability.VolumeExpansion(type="ONLINE")
            ),
            csi.PluginCapability(service=csi.PluginCapability.Service(type="CONTROLLER_SERVICE")),
        ]
    )
    assert expansion_modes(response) == {"ONLINE"}


def test_group_controller_and_node_names() -> None:
    group = csi.GroupControllerServiceCapability
    node = csi.NodeServiceCapability
    name = "CREATE_DELETE_GET_VOLUME_GROUP_SNAPSHOT"
    assert group_controller_capabilities(
        csi.GroupControllerGetCapabilitiesResponse(
            capabilities=[group(rpc=group.RPC(type=name)), group()]
        )
    ) == {name}
    assert node_capabilities(
        csi.NodeGetCapabilitiesResponse(
            capabilities=[node(rpc=node.RPC(type="EXPAND_VOLUME")), node()]
        )
    ) == {"EXPAND_VOLUME"}


def test_unknown_numbers_of_the_other_services() -> None:
    """They are kept as digits too, but an unknown expansion mode is ignored."""
    raw = b"\x0a\x04\x0a\x02\x08\x63"
    group = csi.GroupControllerGetCapabilitiesResponse.FromString(raw)
    assert group_controller_capabilities(group) == {"99"}
    assert node_capabilities(csi.NodeGetCapabilitiesResponse.FromString(raw)) == {"99"}
    plugin = csi.GetPluginCapabilitiesResponse.FromString(b"\x0a\x04\x12\x02\x08\x63")
    assert expansion_modes(plugin) == frozenset()

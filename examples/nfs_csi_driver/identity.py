"""The Identity service (NF-010)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from google.protobuf.wrappers_pb2 import BoolValue

from csi_client import messages as csi
from examples.nfs_csi_driver.errors import RpcError
from examples.nfs_csi_driver.settings import VERSION, Settings

if TYPE_CHECKING:
    from examples.nfs_csi_driver.mounters import Mounter


@dataclass(frozen=True, slots=True)
class IdentityService:
    """The driver's name, services and readiness."""

    settings: Settings
    mounter: Mounter

    def get_plugin_info(self, _: csi.GetPluginInfoRequest) -> csi.GetPluginInfoResponse:
        """Return name and version."""
        return csi.GetPluginInfoResponse(name=self.settings.name, vendor_version=VERSION)

    def get_plugin_capabilities(
        self, _: csi.GetPluginCapabilitiesRequest
    ) -> csi.GetPluginCapabilitiesResponse:
        """Return the controller service, unless this process only serves a node."""
        if self.settings.role == "node":
            return csi.GetPluginCapabilitiesResponse()
        kind = csi.PluginCapability.Service.Type.Value("CONTROLLER_SERVICE")
        service = csi.PluginCapability.Service(type=kind)
        return csi.GetPluginCapabilitiesResponse(
            capabilities=[csi.PluginCapability(service=service)]
        )

    def probe(self, _: csi.ProbeRequest) -> csi.ProbeResponse:
        """Return ready if the mount helper is installed."""
        if not self.mounter.is_usable():
            raise RpcError("FAILED_PRECONDITION", "mount or mount.nfs is not installed")
        return csi.ProbeResponse(ready=BoolValue(value=True))

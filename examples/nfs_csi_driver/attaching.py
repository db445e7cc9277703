"""Attaching, for the article's walk-through: NFS needs none, but calls must succeed (NF-063)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from csi_client import messages as csi
from examples.nfs_csi_driver.errors import invalid, not_found

if TYPE_CHECKING:
    from examples.nfs_csi_driver.controller import VolumeService


@dataclass(frozen=True, slots=True)
class AttachService:
    """The attach calls; served only with --attach."""

    volumes: VolumeService

    def controller_publish_volume(
        self, request: csi.ControllerPublishVolumeRequest
    ) -> csi.ControllerPublishVolumeResponse:
        """Succeed: an NFS export needs no attaching."""
        if not request.volume_id:
            raise invalid("volume id is empty")
        if not request.node_id:
            raise invalid("node id is empty")
        if not request.HasField("volume_capability"):
            raise invalid("volume capability is missing")
        if self.volumes.parse(request.volume_id) is None:
            raise not_found(f"volume {request.volume_id} does not exist")
        if self.volumes.settings.node_id not in {"", request.node_id}:
            raise not_found(f"node {request.node_id} does not exist")
        return csi.ControllerPublishVolumeResponse()

    def controller_unpublish_volume(
        self, request: csi.ControllerUnpublishVolumeRequest
    ) -> csi.ControllerUnpublishVolumeResponse:
        """Succeed: an NFS export needs no detaching."""
        if not request.volume_id:
            raise invalid("volume id is empty")
        return csi.ControllerUnpublishVolumeResponse()

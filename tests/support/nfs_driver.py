"""The NFS CSI driver's services, called directly on the fake mounter, and requests for them."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from csi_client import messages as csi
from examples.nfs_csi_driver.controller import VolumeService
from examples.nfs_csi_driver.errors import RpcError
from examples.nfs_csi_driver.mounters import FakeMounter
from examples.nfs_csi_driver.node import NodeService
from examples.nfs_csi_driver.parameters import RESERVED
from examples.nfs_csi_driver.records import Locks
from examples.nfs_csi_driver.settings import Settings
from examples.nfs_csi_driver.snapshots import SnapshotService

MODES = csi.VolumeCapability.AccessMode.Mode
CLASS = {"server": "nfs1", "share": "/data"}
META = {
    "csi.storage.k8s.io/pvc/name": "claim",
    "csi.storage.k8s.io/pvc/namespace": "team",
    "csi.storage.k8s.io/pv/name": "pvc-1",
}


class Driver:
    """All services of the driver, which share one fake mounter."""

    def __init__(self, root: Path, **settings: Any) -> None:
        usual: dict[str, Any] = {"delete_in_background": False, "node_id": "node-1"}
        self.settings = Settings(state_dir=root, **(usual | settings))
        self.mounter = FakeMounter(root)
        self.volumes = VolumeService(self.settings, self.mounter, Locks())
        self.snapshots = SnapshotService(self.volumes)
        self.node = NodeService(self.volumes)
        self.share = self.mounter.place("nfs1", "data")

    def create(
        self,
        name: str = "pvc-1",
        parameters: Mapping[str, str] | None = None,
        size: int = 1024,
        mode: str = "SINGLE_NODE_WRITER",
        **fields: Any,
    ) -> csi.Volume:
        usual: dict[str, Any] = {"volume_capabilities": [capability(mode)]}
        return self.volumes.create_volume(
            csi.CreateVolumeRequest(
                name=name,
                parameters=CLASS if parameters is None else parameters,
                capacity_range=csi.CapacityRange(required_bytes=size),
                **(usual | fields),
            )
        ).volume

    def delete(self, volume_id: str, **fields: Any) -> None:
        self.volumes.delete_volume(csi.DeleteVolumeRequest(volume_id=volume_id, **fields))

    def snapshot(self, name: str, volume_id: str, **fields: Any) -> csi.Snapshot:
        return self.snapshots.create_snapshot(
            csi.CreateSnapshotRequest(name=name, source_volume_id=volume_id, **fields)
        ).snapshot

    def publish(
        self,
        volume: csi.Volume | str,
        target: Path,
        mode: str = "SINGLE_NODE_WRITER",
        context: Mapping[str, str] | None = None,
        **fields: Any,
    ) -> None:
        own = {} if isinstance(volume, str) else volume.volume_context
        self.node.node_publish_volume(
            csi.NodePublishVolumeRequest(
                volume_id=volume if isinstance(volume, str) else volume.volume_id,
                target_path=str(target),
                volume_capability=capability(mode),
                volume_context=own if context is None else context,
                **fields,
            )
        )

    def unpublish(self, volume: csi.Volume, target: Path) -> None:
        self.node.node_unpublish_volume(
            csi.NodeUnpublishVolumeRequest(volume_id=volume.volume_id, target_path=str(target))
        )

    def names(self) -> list[str]:
        """Return the directories of the share, without the driver's own."""
        return sorted(one.name for one in self.share.iterdir() if one.name != RESERVED)


def capability(mode: str = "SINGLE_NODE_WRITER", *flags: str) -> csi.VolumeCapability:
    return csi.VolumeCapability(
        mount=csi.VolumeCapability.MountVolume(mount_flags=flags),
        access_mode=csi.VolumeCapability.AccessMode(mode=MODES.Value(mode)),
    )


def from_snapshot(snapshot_id: str) -> dict[str, Any]:
    source = csi.VolumeContentSource.SnapshotSource(snapshot_id=snapshot_id)
    return {"volume_content_source": csi.VolumeContentSource(snapshot=source)}


def from_volume(volume_id: str) -> dict[str, Any]:
    source = csi.VolumeContentSource.VolumeSource(volume_id=volume_id)
    return {"volume_content_source": csi.VolumeContentSource(volume=source)}


def refused(code: str) -> AbstractContextManager[Any]:
    return pytest.raises(RpcError, check=lambda error: error.code == code)

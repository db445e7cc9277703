"""The Node service: mounts volumes at pods' targets (NF-030 to NF-044)."""

from __future__ import annotations

import os
import stat
import time
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeoutError
from pathlib import Path
from typing import TYPE_CHECKING, Final

from csi_client import messages as csi
from examples.nfs_csi_driver.errors import RpcError, invalid, not_found
from examples.nfs_csi_driver.mounters import source_of
from examples.nfs_csi_driver.parameters import VolumeId, check_directory, check_share, octal

if TYPE_CHECKING:
    from examples.nfs_csi_driver.controller import VolumeService

TARGET_MODE: Final = 0o750
STATVFS_SECONDS: Final = 10.0
_MODES: Final = csi.VolumeCapability.AccessMode.Mode
READERS: Final = frozenset(
    {_MODES.Value("SINGLE_NODE_READER_ONLY"), _MODES.Value("MULTI_NODE_READER_ONLY")}
)
SINGLE_WRITER: Final = _MODES.Value("SINGLE_NODE_SINGLE_WRITER")
CAPABILITIES: Final = ("GET_VOLUME_STATS", "SINGLE_NODE_MULTI_WRITER")


class NodeService:
    """The mounts of one node."""

    def __init__(self, volumes: VolumeService) -> None:
        self._volumes = volumes
        self._settings, self._mounter = volumes.settings, volumes.mounter
        self._stats: dict[tuple[str, str], tuple[float, csi.NodeGetVolumeStatsResponse]] = {}
        self._pool = ThreadPoolExecutor(4, thread_name_prefix="statvfs")

    def node_get_info(self, _: csi.NodeGetInfoRequest) -> csi.NodeGetInfoResponse:
        """Return the node id, without topology and volume limit."""
        return csi.NodeGetInfoResponse(node_id=self._settings.node_id)

    def node_get_capabilities(
        self, _: csi.NodeGetCapabilitiesRequest
    ) -> csi.NodeGetCapabilitiesResponse:
        """Return no staging capability, so the kubelet publishes directly."""
        rpc = csi.NodeServiceCapability.RPC
        return csi.NodeGetCapabilitiesResponse(
            capabilities=[
                csi.NodeServiceCapability(rpc=rpc(type=rpc.Type.Value(name)))
                for name in CAPABILITIES
            ]
        )

    def node_publish_volume(
        self, request: csi.NodePublishVolumeRequest
    ) -> csi.NodePublishVolumeResponse:
        """Mount the volume's directory at the target (NF-040)."""
        if not request.HasField("volume_capability"):
            raise invalid("Volume capability missing in request")
        if not request.volume_id:
            raise invalid("Volume ID missing in request")
        if not request.target_path:
            raise invalid("Target path not provided")
        if request.volume_capability.HasField("block"):
            raise invalid("block volume capability not supported")
        target = Path(request.target_path)
        with self._volumes.locks.here(f"{request.volume_id} {target}"):
            self._publish(request, target)
        return csi.NodePublishVolumeResponse()

    def _publish(self, request: csi.NodePublishVolumeRequest, target: Path) -> None:
        context = {key.lower(): value for key, value in request.volume_context.items()}
        mode = request.volume_capability.access_mode.mode
        is_read_only = request.readonly or mode in READERS
        options = list(request.volume_capability.mount.mount_flags)
        options += [one for one in context.get("mountoptions", "").split(",") if one]
        options += ["ro"] * (is_read_only and "ro" not in options)
        server, path = self._source(request.volume_id, context)
        source = source_of(server, path)
        permissions = octal(context.get("mountpermissions", ""))
        existing = [one for one in self._mounter.mounts() if one.target == str(target)]
        if existing and not self._is_stale(target):
            if (existing[-1].source, existing[-1].is_read_only) != (source, "ro" in options):
                raise RpcError("ALREADY_EXISTS", f"{target} has another volume or another mode")
            return
        for _ in existing:
            self._mounter.unmount(target)
        if mode == SINGLE_WRITER and self._is_elsewhere(source, target):
            raise RpcError("FAILED_PRECONDITION", "volume is published at another target")
        is_new = not target.exists()
        target.mkdir(parents=True, exist_ok=True, mode=TARGET_MODE)
        try:
            self._mounter.mount(server, path, target, options)
        except BaseException:
            if is_new:
                target.rmdir()
            raise
        if permissions and stat.S_IMODE(target.stat().st_mode) != permissions:
            target.chmod(permissions)

    def _source(self, volume_id: str, context: dict[str, str]) -> tuple[str, str]:
        """Return server and path from the volume's context, else from its id."""
        volume = self._volumes.parse(volume_id) or VolumeId("", "", "")
        server = context.get("server") or volume.server
        if not server:
            raise invalid("server is a required parameter")
        share = check_share(context.get("share") or volume.share)
        known = "" if volume.is_short else volume.sub_dir
        own = context.get("subdir") or (known if not context.get("share") else "")
        directory = check_directory(own.strip("/")) if own else ""
        return server, f"{share}/{directory}".rstrip("/")

    def _is_elsewhere(self, source: str, target: Path) -> bool:
        mounts = self._mounter.mounts()
        return any(one.source == source and one.target != str(target) for one in mounts)

    def _is_stale(self, target: Path) -> bool:
        """Return True if the server no longer knows the directory's handle: mount again."""
        try:
            target.lstat()
        except PermissionError:
            return False
        except OSError:
            return True
        return False

    def node_unpublish_volume(
        self, request: csi.NodeUnpublishVolumeRequest
    ) -> csi.NodeUnpublishVolumeResponse:
        """Unmount everything at the target and remove the empty directory (NF-043)."""
        if not request.volume_id:
            raise invalid("Volume ID missing in request")
        if not request.target_path:
            raise invalid("Target path missing in request")
        target = Path(request.target_path)
        with self._volumes.locks.here(f"{request.volume_id} {target}"):
            self._stats.pop((request.volume_id, str(target)), None)
            try:
                for mount in self._mounter.mounts():
                    if mount.target == str(target):
                        self._mounter.unmount(target)
                if target.exists():
                    target.rmdir()
            except OSError as error:
                text = f'failed to unmount target "{target}": {error}'
                raise RpcError("INTERNAL", text) from error
        return csi.NodeUnpublishVolumeResponse()

    def node_get_volume_stats(
        self, request: csi.NodeGetVolumeStatsRequest
    ) -> csi.NodeGetVolumeStatsResponse:
        """Return free and used space, cached for a while (NF-044)."""
        if not request.volume_id:
            raise invalid("volume ID is required")
        if not request.volume_path:
            raise invalid("volume path is required")
        key = (request.volume_id, request.volume_path)
        until, answer = self._stats.get(key, (0.0, csi.NodeGetVolumeStatsResponse()))
        if time.monotonic() < until:
            return answer
        place = self._mounted_place(request.volume_path)
        try:
            status = self._pool.submit(os.statvfs, place).result(STATVFS_SECONDS)
        except FutureTimeoutError:
            raise RpcError("UNAVAILABLE", f"{request.volume_path} does not answer") from None
        except OSError as error:
            raise not_found(f"path {request.volume_path}: {error}") from error
        answer = _stats(status)
        self._stats[key] = (time.monotonic() + self._settings.stats_cache_seconds, answer)
        return answer

    def _mounted_place(self, path: str) -> str:
        if not any(one.target == path for one in self._mounter.mounts()):
            raise not_found(f"path {path} is not a mounted volume")
        return path


def _stats(status: os.statvfs_result) -> csi.NodeGetVolumeStatsResponse:
    size = status.f_frsize
    return csi.NodeGetVolumeStatsResponse(
        usage=[
            csi.VolumeUsage(
                unit=csi.VolumeUsage.Unit.Value("BYTES"),
                available=status.f_bavail * size,
                total=status.f_blocks * size,
                used=(status.f_blocks - status.f_bfree) * size,
            ),
            csi.VolumeUsage(
                unit=csi.VolumeUsage.Unit.Value("INODES"),
                available=status.f_favail,
                total=status.f_files,
                used=status.f_files - status.f_ffree,
            ),
        ]
    )

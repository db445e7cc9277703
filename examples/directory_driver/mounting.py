"""Mounts volumes for pods: a directory by bind mounts, a block volume by a loop device.

Staging attaches the loop device, publishing mounts. The kernel's mount table is the only record, so
it survives a kill of the driver. An inline volume of a pod exists while it is published.
"""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from csi_client import messages as csi
from examples.directory_driver.storage import DirectoryStore, StorageError, Volume

if TYPE_CHECKING:
    import threading
    from collections.abc import Sequence

CAPABILITIES: Final = (
    "STAGE_UNSTAGE_VOLUME",
    "EXPAND_VOLUME",
    "GET_VOLUME_STATS",
    "SINGLE_NODE_MULTI_WRITER",
)
EPHEMERAL: Final = "csi.storage.k8s.io/ephemeral"
INLINE_BYTES: Final = 2**20
MOUNTS: Final = Path("/proc/self/mountinfo")
BLOCK_FILE: Final = "block"


class Mounting:
    """The Node service; it reports no capability unless the driver runs with `--mount`."""

    _store: DirectoryStore
    _mounts: bool
    _mount_lock: threading.Lock

    def node_get_capabilities(
        self, _: csi.NodeGetCapabilitiesRequest
    ) -> csi.NodeGetCapabilitiesResponse:
        """Return the Node capabilities, none without `--mount`."""
        rpc = csi.NodeServiceCapability.RPC
        return csi.NodeGetCapabilitiesResponse(
            capabilities=[
                csi.NodeServiceCapability(rpc=rpc(type=rpc.Type.Value(name)))
                for name in CAPABILITIES
                if self._mounts
            ]
        )

    def node_stage_volume(self, request: csi.NodeStageVolumeRequest) -> csi.NodeStageVolumeResponse:
        """Bind the directory to the staging path, or attach a loop device; idempotent."""
        self._check(request.volume_id, request.staging_target_path)
        volume = self._store.volume(request.volume_id)
        if not request.HasField("volume_capability"):
            raise StorageError("INVALID_ARGUMENT", "volume capability is missing")
        with self._mount_lock:
            if volume.is_block:
                self._attached(volume)
            else:
                staging = Path(request.staging_target_path)
                staging.mkdir(parents=True, exist_ok=True)
                _bind(self._store.content(volume.volume_id), staging)
        return csi.NodeStageVolumeResponse()

    def node_unstage_volume(
        self, request: csi.NodeUnstageVolumeRequest
    ) -> csi.NodeUnstageVolumeResponse:
        """Undo the staging; OK even if nothing is staged."""
        self._check(request.volume_id, request.staging_target_path)
        with self._mount_lock:
            _unmount(Path(request.staging_target_path))
            for device in _loops(self._store.content(request.volume_id) / BLOCK_FILE):
                _run("losetup", "--detach", device)
        return csi.NodeUnstageVolumeResponse()

    def node_publish_volume(
        self, request: csi.NodePublishVolumeRequest
    ) -> csi.NodePublishVolumeResponse:
        """Bind the staged volume to the pod's path; idempotent."""
        self._check(request.volume_id, request.target_path)
        if not request.HasField("volume_capability"):
            raise StorageError("INVALID_ARGUMENT", "volume capability is missing")
        if request.volume_context.get(EPHEMERAL) == "true":
            self._store.add_volume(_inline(request.volume_id))
        volume = self._store.volume(request.volume_id)
        if volume.is_block != request.volume_capability.HasField("block"):
            raise StorageError("INVALID_ARGUMENT", "the volume has the other access type")
        target = Path(request.target_path)
        with self._mount_lock:
            if volume.is_block:
                source = Path(self._attached(volume))
                target.parent.mkdir(parents=True, exist_ok=True)
                target.touch()
            else:
                source = self._store.content(volume.volume_id)
                target.mkdir(parents=True, exist_ok=True)
            _bind(source, target, read_only=request.readonly)
        return csi.NodePublishVolumeResponse()

    def node_unpublish_volume(
        self, request: csi.NodeUnpublishVolumeRequest
    ) -> csi.NodeUnpublishVolumeResponse:
        """Unmount and delete an inline volume's content; OK even if nothing is published."""
        self._check(request.volume_id, request.target_path)
        target = Path(request.target_path)
        with self._mount_lock:
            _unmount(target)
            if target.is_dir():
                target.rmdir()
            target.unlink(missing_ok=True)
        if any(v.parameters.get(EPHEMERAL) for v in self._store.volumes([request.volume_id])):
            self._store.remove_volume(request.volume_id)
        return csi.NodeUnpublishVolumeResponse()

    def node_expand_volume(
        self, request: csi.NodeExpandVolumeRequest
    ) -> csi.NodeExpandVolumeResponse:
        """Make the loop device take the file's new size; nothing to do for a directory."""
        self._check(request.volume_id, request.volume_path)
        volume = self._store.volume(request.volume_id)
        with self._mount_lock:
            if volume.is_block:
                _run("losetup", "--set-capacity", self._attached(volume))
        return csi.NodeExpandVolumeResponse(capacity_bytes=volume.capacity_bytes)

    def node_get_volume_stats(
        self, request: csi.NodeGetVolumeStatsRequest
    ) -> csi.NodeGetVolumeStatsResponse:
        """Return the size; for a directory, the figures of its file system."""
        self._check(request.volume_id, request.volume_path)
        volume = self._store.volume(request.volume_id)
        if not Path(request.volume_path).exists():
            raise StorageError("NOT_FOUND", f"nothing is at {request.volume_path}")
        unit = csi.VolumeUsage.Unit
        answer = csi.NodeGetVolumeStatsResponse()
        if volume.is_block:
            answer.usage.add(unit=unit.Value("BYTES"), total=volume.capacity_bytes)
            return answer
        found = os.statvfs(request.volume_path)
        size = found.f_frsize
        answer.usage.add(
            unit=unit.Value("BYTES"),
            total=found.f_blocks * size,
            available=found.f_bavail * size,
            used=(found.f_blocks - found.f_bfree) * size,
        )
        answer.usage.add(
            unit=unit.Value("INODES"),
            total=found.f_files,
            available=found.f_favail,
            used=found.f_files - found.f_ffree,
        )
        return answer

    def _check(self, volume_id: str, path: str) -> None:
        if not self._mounts:
            raise StorageError("UNIMPLEMENTED", "this driver was not told to mount")
        if not volume_id or not path:
            raise StorageError("INVALID_ARGUMENT", "volume id or path is missing")

    def _attached(self, volume: Volume) -> str:
        """Return the volume's loop device, backed by a file of the volume's size."""
        file = self._store.content(volume.volume_id) / BLOCK_FILE
        with file.open("ab") as content:
            if content.tell() < volume.capacity_bytes:
                content.truncate(volume.capacity_bytes)
        return next(iter(_loops(file)), "") or _run("losetup", "--find", "--show", str(file))


def _inline(volume_id: str) -> Volume:
    return Volume(volume_id, volume_id, INLINE_BYTES, time.time(), parameters={EPHEMERAL: "true"})


def _bind(source: Path, target: Path, *, read_only: bool = False) -> None:
    if not _is_mounted(target):
        _run("mount", "--bind", str(source), str(target))
        if read_only:
            _run("mount", "-o", "remount,bind,ro", str(target))


def _unmount(target: Path) -> None:
    while _is_mounted(target):
        _run("umount", str(target))


def _is_mounted(target: Path) -> bool:
    return any(line.split()[4] == str(target) for line in MOUNTS.read_text().splitlines())


def _loops(file: Path) -> Sequence[str]:
    listed = _run("losetup", "--associated", str(file)) if file.exists() else ""
    return [line.partition(":")[0] for line in listed.splitlines()]


def _run(*command: str) -> str:
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        raise StorageError("INTERNAL", f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout.strip()

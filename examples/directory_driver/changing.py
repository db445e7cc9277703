"""Expands volumes, changes their parameters, and takes snapshots of several volumes at once."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from csi_client import messages as csi
from examples.directory_driver.storage import DirectoryStore, StorageError, entry_id

if TYPE_CHECKING:
    from collections.abc import Mapping

    from examples.directory_driver.storage import Snapshot, Volume


class Changing:
    """ControllerExpandVolume, ControllerModifyVolume and the group controller's calls."""

    _store: DirectoryStore
    _needs_node_expansion: bool

    def controller_expand_volume(
        self, request: csi.ControllerExpandVolumeRequest
    ) -> csi.ControllerExpandVolumeResponse:
        """Grow to the required size; a volume that is large enough stays as it is."""
        self._require("EXPAND_VOLUME")
        limit = request.capacity_range.limit_bytes

        def grown(volume: Volume) -> Volume:
            size = max(volume.capacity_bytes, request.capacity_range.required_bytes)
            if limit and size > limit:
                raise StorageError("OUT_OF_RANGE", f"a volume of {size} bytes is not possible")
            return replace(volume, capacity_bytes=size)

        size = self._store.change_volume(request.volume_id, grown).capacity_bytes
        return csi.ControllerExpandVolumeResponse(
            capacity_bytes=size, node_expansion_required=self._needs_node_expansion
        )

    def controller_modify_volume(
        self, request: csi.ControllerModifyVolumeRequest
    ) -> csi.ControllerModifyVolumeResponse:
        """Set the mutable parameters."""
        self._require("MODIFY_VOLUME")
        mutable = dict(request.mutable_parameters)
        self._store.change_volume(
            request.volume_id,
            lambda volume: replace(volume, parameters={**volume.parameters, **mutable}),
        )
        return csi.ControllerModifyVolumeResponse()

    def group_controller_get_capabilities(
        self, _: csi.GroupControllerGetCapabilitiesRequest
    ) -> csi.GroupControllerGetCapabilitiesResponse:
        """Return the group capability, if the driver was started with it."""
        name = "CREATE_DELETE_GET_VOLUME_GROUP_SNAPSHOT"
        answer = csi.GroupControllerGetCapabilitiesResponse()
        if self._has(name):
            kinds = csi.GroupControllerServiceCapability.RPC.Type
            answer.capabilities.add().rpc.type = kinds.Value(name)
        return answer

    def create_volume_group_snapshot(
        self, request: csi.CreateVolumeGroupSnapshotRequest
    ) -> csi.CreateVolumeGroupSnapshotResponse:
        """Snapshot each volume under a name derived from the group's; idempotent by name."""
        self._require("CREATE_DELETE_GET_VOLUME_GROUP_SNAPSHOT")
        asked = {
            "group": request.name,
            "source volumes": sorted(request.source_volume_ids),
            "parameters": dict(request.parameters),
        }
        for known in self._store.snapshots():
            if known.asked.get("group") == request.name:
                self._check_asked(f"group {request.name}", known.asked, asked)
        made = [
            self._store.add_snapshot(f"{request.name}-{volume_id}", volume_id, asked)
            for volume_id in request.source_volume_ids
        ]
        group = entry_id("group", request.name)
        return csi.CreateVolumeGroupSnapshotResponse(group_snapshot=_group_message(group, made))

    def delete_volume_group_snapshot(
        self, request: csi.DeleteVolumeGroupSnapshotRequest
    ) -> csi.DeleteVolumeGroupSnapshotResponse:
        """Remove the members; OK even if they no longer exist."""
        self._require("CREATE_DELETE_GET_VOLUME_GROUP_SNAPSHOT")
        for snapshot_id in request.snapshot_ids:
            self._store.remove_snapshot(snapshot_id)
        return csi.DeleteVolumeGroupSnapshotResponse()

    def get_volume_group_snapshot(
        self, request: csi.GetVolumeGroupSnapshotRequest
    ) -> csi.GetVolumeGroupSnapshotResponse:
        """Return the requested members."""
        self._require("CREATE_DELETE_GET_VOLUME_GROUP_SNAPSHOT")
        members = [self._store.snapshot(snapshot_id) for snapshot_id in request.snapshot_ids]
        return csi.GetVolumeGroupSnapshotResponse(
            group_snapshot=_group_message(request.group_snapshot_id, members)
        )

    def _has(self, capability: str) -> bool:
        raise NotImplementedError

    def _require(self, capability: str) -> None:
        raise NotImplementedError

    def _check_asked(self, what: str, known: Mapping[str, Any], asked: Mapping[str, Any]) -> None:
        raise NotImplementedError


def snapshot_message(snapshot: Snapshot, group: str = "") -> csi.Snapshot:
    """Return a snapshot as CSI message, always ready."""
    message = csi.Snapshot(
        snapshot_id=snapshot.snapshot_id,
        source_volume_id=snapshot.source_volume_id,
        size_bytes=snapshot.size_bytes,
        ready_to_use=True,
        group_snapshot_id=group,
    )
    message.creation_time.FromNanoseconds(int(snapshot.created_at * 1e9))
    return message


def _group_message(group: str, members: list[Snapshot]) -> csi.VolumeGroupSnapshot:
    shown = [snapshot_message(member, group) for member in members]
    message = csi.VolumeGroupSnapshot(group_snapshot_id=group, snapshots=shown, ready_to_use=True)
    if shown:
        message.creation_time.CopyFrom(shown[0].creation_time)
    return message

"""The driver's Identity, Controller and Node services.

Methods take and return plain CSI messages and raise `StorageError`; `server` adds gRPC and finds
each method by the snake_case form of its RPC's name.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

from google.protobuf import json_format

from csi_client import messages as csi
from examples.directory_driver.attaching import Attaching, Published
from examples.directory_driver.changing import Changing, snapshot_message
from examples.directory_driver.health import Reporting
from examples.directory_driver.mounting import Mounting
from examples.directory_driver.storage import (
    DirectoryStore,
    StorageError,
    Volume,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from examples.directory_driver.behaviour import Control

DEFAULT_SIZE_BYTES = 2**30
PLUGIN_TYPES = csi.PluginCapability.Service.Type
EXPANSION_TYPES = csi.PluginCapability.VolumeExpansion.Type
GROUP_TYPES = csi.GroupControllerServiceCapability.RPC.Type
CONTROLLER_TYPES = csi.ControllerServiceCapability.RPC.Type


class DirectoryDriver(Attaching, Changing, Mounting, Reporting):
    """The services of one driver.

    Args:
        name: driver name, the answer to GetPluginInfo.
        store: the volumes.
        published: the publications of volumes to nodes.
        control: the control file; here only the capacity is read.
        capabilities: enum value names of plugin services, expansion modes, controller and group
            controller RPCs, mixed.
        segments: topology of this node, and of volumes without a topology requirement.
        mounts: True if the Node service mounts volumes.
        is_strict: answer ALREADY_EXISTS to every different request with a known name, as CSI
            allows; else only to a request that the existing volume or snapshot cannot satisfy.
        health: the file with the conditions of volumes (see `health`); None for no conditions.
    """

    def __init__(
        self,
        name: str,
        store: DirectoryStore,
        control: Control,
        capabilities: Sequence[str],
        *,
        published: Published,
        segments: Mapping[str, str],
        node_id: str,
        needs_node_expansion: bool = False,
        mounts: bool = False,
        is_strict: bool = False,
        health: Path | None = None,
    ) -> None:
        self._name = name
        self._is_strict = is_strict
        self._health = health
        self._store = store
        self._control = control
        self._capabilities = list(dict.fromkeys(capabilities))
        self._segments = dict(segments)
        self._node_id = node_id
        self._published = published
        self._needs_node_expansion = needs_node_expansion
        self._mounts = mounts
        self._mount_lock = threading.Lock()
        self._has_topology = "VOLUME_ACCESSIBILITY_CONSTRAINTS" in self._capabilities

    def get_plugin_info(self, _: csi.GetPluginInfoRequest) -> csi.GetPluginInfoResponse:
        """Return the driver name."""
        return csi.GetPluginInfoResponse(name=self._name, vendor_version="1.0.0")

    def get_plugin_capabilities(
        self, _: csi.GetPluginCapabilitiesRequest
    ) -> csi.GetPluginCapabilitiesResponse:
        """Return the capabilities that are plugin services."""
        return csi.GetPluginCapabilitiesResponse(
            capabilities=[
                csi.PluginCapability(
                    service=csi.PluginCapability.Service(type=PLUGIN_TYPES.Value(name))
                )
                for name in self._capabilities
                if name in PLUGIN_TYPES.DESCRIPTOR.values_by_name
            ]
            + [
                csi.PluginCapability(
                    volume_expansion=csi.PluginCapability.VolumeExpansion(
                        type=EXPANSION_TYPES.Value(name)
                    )
                )
                for name in self._capabilities
                if name in EXPANSION_TYPES.DESCRIPTOR.values_by_name
            ]
        )

    def probe(self, _: csi.ProbeRequest) -> csi.ProbeResponse:
        """Answer without a readiness, which means ready."""
        return csi.ProbeResponse()

    def controller_get_capabilities(
        self, _: csi.ControllerGetCapabilitiesRequest
    ) -> csi.ControllerGetCapabilitiesResponse:
        """Return the capabilities that are controller RPCs."""
        return csi.ControllerGetCapabilitiesResponse(
            capabilities=[
                csi.ControllerServiceCapability(
                    rpc=csi.ControllerServiceCapability.RPC(type=CONTROLLER_TYPES.Value(name))
                )
                for name in self._capabilities
                if name in CONTROLLER_TYPES.DESCRIPTOR.values_by_name
            ]
        )

    def create_volume(self, request: csi.CreateVolumeRequest) -> csi.CreateVolumeResponse:
        """Create the volume, or return the existing one if it fits the request."""
        self._require("CREATE_DELETE_VOLUME")
        if not request.name:
            raise StorageError("INVALID_ARGUMENT", "name is missing")
        if not request.volume_capabilities:
            raise StorageError("INVALID_ARGUMENT", "volume capabilities are missing")
        source = _source_text(request)
        known = self._store.find_volume(request.name)
        if known is not None:
            self._check_compatible(known, request, source)
            return csi.CreateVolumeResponse(volume=self._volume_message(known))
        size = self._size_for(request, self._store.source_size(source))
        segments = self._place(request)
        if size > self._available(segments):
            raise StorageError("RESOURCE_EXHAUSTED", f"no room for {size} bytes")
        volume = Volume(
            volume_id=self._store.volume_id(request.name),
            name=request.name,
            capacity_bytes=size,
            created_at=time.time(),
            source=source,
            is_block=_is_block(request.volume_capabilities),
            segments=segments,
            parameters=dict(request.parameters),
            asked=_asked(request),
        )
        made = self._store.add_volume(volume)
        self._check_compatible(made, request, source)
        return csi.CreateVolumeResponse(volume=self._volume_message(made))

    def delete_volume(self, request: csi.DeleteVolumeRequest) -> csi.DeleteVolumeResponse:
        """Remove the volume; OK even if it does not exist."""
        self._require("CREATE_DELETE_VOLUME")
        if not request.volume_id:
            raise StorageError("INVALID_ARGUMENT", "volume id is missing")
        if nodes := self._published.nodes(request.volume_id):
            raise StorageError("FAILED_PRECONDITION", f"published to {', '.join(nodes)}")
        self._store.remove_volume(request.volume_id)
        return csi.DeleteVolumeResponse()

    def validate_volume_capabilities(
        self, request: csi.ValidateVolumeCapabilitiesRequest
    ) -> csi.ValidateVolumeCapabilitiesResponse:
        """Confirm all capabilities except a different access type."""
        volume = self._store.volume(request.volume_id)
        if not request.volume_capabilities:
            raise StorageError("INVALID_ARGUMENT", "volume capabilities are missing")
        if _is_block(request.volume_capabilities) != volume.is_block:
            return csi.ValidateVolumeCapabilitiesResponse(message="other access type")
        return csi.ValidateVolumeCapabilitiesResponse(
            confirmed=csi.ValidateVolumeCapabilitiesResponse.Confirmed(
                volume_context=request.volume_context,
                volume_capabilities=request.volume_capabilities,
                parameters=request.parameters,
                mutable_parameters=request.mutable_parameters,
            )
        )

    def list_volumes(self, request: csi.ListVolumesRequest) -> csi.ListVolumesResponse:
        """Return one page of the volumes, oldest first."""
        self._require("LIST_VOLUMES")
        volumes = self._store.volumes()
        start, end, token = _page(request.starting_token, request.max_entries, len(volumes))
        return csi.ListVolumesResponse(
            entries=[
                csi.ListVolumesResponse.Entry(
                    volume=self._volume_message(volume),
                    status=csi.ListVolumesResponse.VolumeStatus(
                        published_node_ids=self._published.nodes(volume.volume_id),
                        volume_condition=self._condition(volume.volume_id),
                    ),
                )
                for volume in volumes[start:end]
            ],
            next_token=token,
        )

    def controller_get_volume(
        self, request: csi.ControllerGetVolumeRequest
    ) -> csi.ControllerGetVolumeResponse:
        """Return one volume and the nodes that it is published to."""
        self._require("GET_VOLUME")
        return csi.ControllerGetVolumeResponse(
            volume=self._volume_message(self._store.volume(request.volume_id)),
            status=csi.ControllerGetVolumeResponse.VolumeStatus(
                published_node_ids=self._published.nodes(request.volume_id),
                volume_condition=self._condition(request.volume_id),
            ),
        )

    def get_capacity(self, request: csi.GetCapacityRequest) -> csi.GetCapacityResponse:
        """Return the free bytes of the whole storage or of one segment."""
        self._require("GET_CAPACITY")
        segments = dict(request.accessible_topology.segments)
        answer = csi.GetCapacityResponse(available_capacity=max(0, self._available(segments)))
        maximum = self._control.capacity().maximum_volume_size
        if maximum:
            answer.maximum_volume_size.value = maximum
        return answer

    def create_snapshot(self, request: csi.CreateSnapshotRequest) -> csi.CreateSnapshotResponse:
        """Copy a volume; the same name and source return the same snapshot."""
        self._require("CREATE_DELETE_SNAPSHOT")
        if not request.name or not request.source_volume_id:
            raise StorageError("INVALID_ARGUMENT", "name or source volume id is missing")
        places = [dict(one.segments) for one in request.accessibility_requirements.requisite]
        has_places = self._has("SNAPSHOT_ACCESSIBILITY_CONSTRAINTS")
        if places and not has_places:
            raise StorageError("INVALID_ARGUMENT", "snapshots have no topology")
        asked: dict[str, Any] = {"parameters": dict(request.parameters)}
        if has_places:
            asked["places"] = places
        snapshot = self._store.add_snapshot(request.name, request.source_volume_id, asked, places)
        self._check_asked(f"snapshot {request.name}", snapshot.asked, asked)
        message = snapshot_message(snapshot)
        if has_places:
            for place in snapshot.places:
                message.accessible_topology.add(segments=place)
        return csi.CreateSnapshotResponse(snapshot=message)

    def delete_snapshot(self, request: csi.DeleteSnapshotRequest) -> csi.DeleteSnapshotResponse:
        """Remove the snapshot; OK even if it does not exist."""
        self._require("CREATE_DELETE_SNAPSHOT")
        if not request.snapshot_id:
            raise StorageError("INVALID_ARGUMENT", "snapshot id is missing")
        self._store.remove_snapshot(request.snapshot_id)
        return csi.DeleteSnapshotResponse()

    def list_snapshots(self, request: csi.ListSnapshotsRequest) -> csi.ListSnapshotsResponse:
        """Return one page of the snapshots that match id and source."""
        self._require("LIST_SNAPSHOTS")
        found = [
            snapshot
            for snapshot in self._store.snapshots()
            if request.snapshot_id in {"", snapshot.snapshot_id}
            and request.source_volume_id in {"", snapshot.source_volume_id}
        ]
        start, end, token = _page(request.starting_token, request.max_entries, len(found))
        return csi.ListSnapshotsResponse(
            entries=[
                csi.ListSnapshotsResponse.Entry(snapshot=snapshot_message(snapshot))
                for snapshot in found[start:end]
            ],
            next_token=token,
        )

    def node_get_info(self, _: csi.NodeGetInfoRequest) -> csi.NodeGetInfoResponse:
        """Return the id and the topology of this node."""
        answer = csi.NodeGetInfoResponse(node_id=self._node_id)
        if self._has_topology:
            answer.accessible_topology.segments.update(self._segments)
        return answer

    def _has(self, capability: str) -> bool:
        return capability in self._capabilities

    def _require(self, capability: str) -> None:
        if not self._has(capability):
            raise StorageError("UNIMPLEMENTED", f"this driver lacks {capability}")

    def _size_for(self, request: csi.CreateVolumeRequest, source_bytes: int) -> int:
        required, limit = request.capacity_range.required_bytes, request.capacity_range.limit_bytes
        size = max(required or (source_bytes or DEFAULT_SIZE_BYTES), source_bytes)
        if limit and not required and not source_bytes:
            size = min(size, limit)
        maximum = self._control.capacity().maximum_volume_size
        if required < 0 or (limit and size > limit) or (maximum and size > maximum):
            raise StorageError("OUT_OF_RANGE", f"a volume of {size} bytes is not possible")
        return size

    def _place(self, request: csi.CreateVolumeRequest) -> dict[str, str]:
        """Choose the first preferred topology, else the first requisite, else this node's."""
        if not self._has_topology:
            return {}
        wanted = request.accessibility_requirements
        for topology in [*wanted.preferred, *wanted.requisite]:
            return dict(topology.segments)
        return dict(self._segments)

    def _available(self, segments: Mapping[str, str]) -> int:
        """Return the free bytes of a segment that has its own size, else of the whole storage."""
        capacity = self._control.capacity()
        limits = [(capacity.total_bytes, sum(v.capacity_bytes for v in self._store.volumes()))]
        for key, value in segments.items():
            if (size := capacity.segments.get(f"{key}={value}")) is not None:
                inside = [v for v in self._store.volumes() if v.segments.get(key) == value]
                limits.append((size, sum(v.capacity_bytes for v in inside)))
        return min(total - used for total, used in limits)

    def _check_compatible(
        self, known: Volume, request: csi.CreateVolumeRequest, source: str
    ) -> None:
        limit = request.capacity_range.limit_bytes
        fits = (
            request.capacity_range.required_bytes <= known.capacity_bytes
            and (not limit or known.capacity_bytes <= limit)
            and source == known.source
            and _is_block(request.volume_capabilities) == known.is_block
        )
        if not fits:
            raise StorageError("ALREADY_EXISTS", f"volume {request.name} exists and is different")
        self._check_asked(f"volume {request.name}", known.asked, _asked(request))
        places = [one.segments for one in request.accessibility_requirements.requisite]
        is_reached = any(place.items() <= known.segments.items() for place in places)
        if self._is_strict and known.segments and places and not is_reached:
            message = f"volume {request.name} exists in {known.segments}"
            raise StorageError("ALREADY_EXISTS", message)

    def _check_asked(self, what: str, known: Mapping[str, Any], asked: Mapping[str, Any]) -> None:
        """Refuse a different request for an existing name, unless an older driver recorded it."""
        other = [key for key in known if known[key] != asked.get(key)]
        if self._is_strict and other:
            raise StorageError("ALREADY_EXISTS", f"{what} exists with other {', '.join(other)}")

    def _volume_message(self, volume: Volume) -> csi.Volume:
        message = csi.Volume(
            volume_id=volume.volume_id,
            capacity_bytes=volume.capacity_bytes,
            volume_context={"directory": volume.volume_id},
        )
        kind, _, identifier = volume.source.partition(":")
        if kind == "snapshot":
            message.content_source.snapshot.snapshot_id = identifier
        elif kind == "volume":
            message.content_source.volume.volume_id = identifier
        if self._has_topology and volume.segments:
            message.accessible_topology.add(segments=volume.segments)
        return message


def _source_text(request: csi.CreateVolumeRequest) -> str:
    kind = request.volume_content_source.WhichOneof("type")
    if kind == "snapshot":
        return f"snapshot:{request.volume_content_source.snapshot.snapshot_id}"
    return f"volume:{request.volume_content_source.volume.volume_id}" if kind == "volume" else ""


def _asked(request: csi.CreateVolumeRequest) -> dict[str, Any]:
    """Return what a strict driver compares; the size may be any that fits the volume."""
    return {
        "parameters": dict(request.parameters),
        "mutable parameters": dict(request.mutable_parameters),
        "volume capabilities": [
            json_format.MessageToDict(capability) for capability in request.volume_capabilities
        ],
    }


def _is_block(capabilities: Sequence[csi.VolumeCapability]) -> bool:
    return any(capability.HasField("block") for capability in capabilities)


def _page(starting_token: str, max_entries: int, total: int) -> tuple[int, int, str]:
    """Return first and last index and the next token; tokens are plain indexes."""
    if starting_token and not (starting_token.isdecimal() and int(starting_token) <= total):
        raise StorageError("ABORTED", "unknown starting token")
    if max_entries < 0:
        raise StorageError("INVALID_ARGUMENT", "max_entries is negative")
    start = int(starting_token or 0)
    end = min(total, start + max_entries) if max_entries else total
    return start, end, str(end) if end < total else ""

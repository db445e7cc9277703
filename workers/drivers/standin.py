"""The driver client of a shadow: it asks a driver only for its name and capabilities.

A call that would change the storage system is not sent but gets an invented response: success,
exactly as requested, with `comparing.UNKNOWN` for values that only a driver knows. A call that
would only read is refused, because its response cannot be invented.
"""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any, Final, cast

from csi_client import messages as csi
from csi_client.errors import UNIMPLEMENTED, CsiError
from csi_client.redact import redact
from workers.drivers.operations import OPERATIONS, READING
from workers.drivers.pace import WatchedClient
from workers.engine.shadow.comparing import UNKNOWN
from workers.observability.logging import get_logger

if TYPE_CHECKING:
    from typing import TypeVar

    from google.protobuf.message import Message

    from workers.engine.shadow.recording import Views

    _Answer = TypeVar("_Answer", bound=Message)

# One volume ID that is valid for every migrated driver (P-605 ff.): the PV of a migrated class is
# stored in its in-tree form, which is derived from the ID.
_ID: Final = (
    f"{UNKNOWN}#{UNKNOWN}#{UNKNOWN}/{UNKNOWN}/subscriptions/{UNKNOWN}"
    f"/resourceGroups/{UNKNOWN}/providers/Microsoft.Compute/disks/{UNKNOWN}"
)

_log = get_logger(__name__)

ASKED: Final = frozenset(
    {
        "Identity/Probe",
        "Identity/GetPluginInfo",
        "Identity/GetPluginCapabilities",
        "Controller/ControllerGetCapabilities",
        "GroupController/GroupControllerGetCapabilities",
        "Node/NodeGetCapabilities",
    }
)
"""The only methods that the shadow really calls."""

NOT_SENT: Final = "GRPC call not sent"


class ShadowClient(WatchedClient):
    """A client that calls only the methods in `ASKED`."""

    def __init__(self, *arguments: Any, views: Views, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._views = views

    def _call(
        self,
        method: str,
        request: Message,
        answer_type: type[_Answer],
        timeout_seconds: float | None,
        **options: Any,
    ) -> _Answer:
        """Send, invent or refuse one call; every call passes through here."""
        if method in ASKED:
            return super()._call(method, request, answer_type, timeout_seconds, **options)
        if OPERATIONS.get(method) in READING or method not in OPERATIONS:
            raise CsiError(UNIMPLEMENTED, "a shadow does not ask the driver", rpc=method)
        content = redact(request)
        # This line looks like the log line for a real call (P-012).
        _log.v(5, NOT_SENT, method=f"/csi.v1.{method}", content=content)
        self._views.called(method, json.loads(content))
        return cast("_Answer", answer_to(request) or answer_type())


def answer_to(request: Message) -> Message | None:
    """Return the response of a driver that does exactly what was requested.

    Return None if the response to such a request has no fields.
    """
    if isinstance(request, csi.CreateVolumeRequest):
        return _volume(request)
    if isinstance(request, csi.CreateSnapshotRequest):
        return csi.CreateSnapshotResponse(snapshot=_snapshot(request.source_volume_id))
    if isinstance(request, csi.ControllerExpandVolumeRequest):
        # As with most drivers, the node grows the file system. The kubelet's part is not compared.
        return csi.ControllerExpandVolumeResponse(
            capacity_bytes=request.capacity_range.required_bytes, node_expansion_required=True
        )
    if isinstance(request, csi.CreateVolumeGroupSnapshotRequest):
        return _group(request)
    return None


def _volume(request: csi.CreateVolumeRequest) -> csi.CreateVolumeResponse:
    wanted = request.accessibility_requirements
    places = list(wanted.preferred or wanted.requisite)[:1]
    volume = csi.Volume(
        volume_id=f"{_ID}-{request.name}",
        capacity_bytes=request.capacity_range.required_bytes,
        accessible_topology=places,
    )
    if request.HasField("volume_content_source"):
        volume.content_source.CopyFrom(request.volume_content_source)
    return csi.CreateVolumeResponse(volume=volume)


def _snapshot(volume_id: str) -> csi.Snapshot:
    snapshot = csi.Snapshot(
        snapshot_id=f"{UNKNOWN}-{volume_id}", source_volume_id=volume_id, ready_to_use=True
    )
    snapshot.creation_time.FromNanoseconds(time.time_ns())
    return snapshot


def _group(request: csi.CreateVolumeGroupSnapshotRequest) -> csi.CreateVolumeGroupSnapshotResponse:
    name = f"{UNKNOWN}-{request.name}"
    members = [_snapshot(one) for one in request.source_volume_ids]
    for member in members:
        member.group_snapshot_id = name
    group = csi.VolumeGroupSnapshot(group_snapshot_id=name, snapshots=members, ready_to_use=True)
    group.creation_time.FromNanoseconds(time.time_ns())
    return csi.CreateVolumeGroupSnapshotResponse(group_snapshot=group)

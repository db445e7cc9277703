"""Checks every response from a driver before it is used or stored, with one function per call.

`CsiClient` runs `check` on each decoded response. So no caller sees a response that the API server
would refuse, or that does not identify an object in the storage system. There are two kinds of
mistakes:

- A bad field that identifies or describes the object (ids, members, context, topology, capacity)
  raises `UnusableAnswerError`. The driver may have created something, so the error is not final.
  The error contains the id if the response has one, so that the caller can record or delete the
  object.
- A bad field that only informs (creation time and size of a snapshot) is cleared and logged,
  because the snapshot can be used without it.

Callers themselves compare the response with the request (size, source).

Source: container-storage-interface/spec v1.13, the comments of each message.
"""

from __future__ import annotations

import logging
import re
from typing import TYPE_CHECKING, Any, Final

from csi_client import messages as csi
from csi_client.errors import UnusableAnswerError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from google.protobuf.message import Message

_log: Final = logging.getLogger(__name__)

MOST_ID_BYTES: Final = 4096
"""Longer ids are refused. CSI allows 128 bytes; real drivers use up to a few hundred."""
MOST_SHOWN: Final = 100
"""An error shows at most this many characters of an invalid value."""
MOST_CONTEXT_BYTES: Final = 512 * 1024
"""An object with a larger context would come close to etcd's limit of 1.5 MiB."""

_INT64: Final = range(-(2**63), 2**63)
_NANOSECONDS: Final = 1_000_000_000
# CSI spec: the characters that are not allowed in names.
_CONTROL: Final = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
# CSI spec, GetPluginInfo. The name of a CSIDriver object has the same form.
_DRIVER_NAME: Final = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
# Kubernetes, validation.IsQualifiedName and IsValidLabelValue.
_LABEL: Final = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_PREFIX: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_MOST_PREFIX: Final = 253


class _Problem(Exception):  # noqa: N818 - becomes an UnusableAnswerError in `check`
    def __init__(self, field: str, text: str) -> None:
        super().__init__(f"{field} {text}")


def check(request: Message, answer: Message, *, rpc: str, driver: str) -> None:
    """Check the response to one call; clear unusable fields that only inform.

    Args:
        request: the request of the call.
        answer: the decoded response; changed in place.
        rpc: the full method name, such as `/csi.v1.Controller/CreateVolume`.
        driver: the name or address of the driver, for error messages.

    Raises:
        UnusableAnswerError: a required field is unusable; the message names driver, call and field.
    """
    found = _CHECKS.get(type(answer))
    if found is None:
        return
    try:
        for field in found(request, answer):
            _log.warning(
                "ignoring an unusable field in the driver's response",
                extra={"driver": driver, "method": rpc, "field": field},
            )
    except _Problem as problem:
        raise _unusable(problem, answer, rpc, driver) from None


def check_topology(created: csi.Volume | csi.Snapshot, *, driver: str) -> None:
    """Check the topology of a created volume or snapshot; called only where it is used.

    Raises:
        UnusableAnswerError: a key or value cannot be a node label, so the API server would refuse a
            PersistentVolume with this topology, and no node would match a snapshot's.
    """
    is_volume = isinstance(created, csi.Volume)
    name = "volume" if is_volume else "snapshot"
    try:
        for index, topology in enumerate(created.accessible_topology):
            _segments(topology.segments, f"{name}.accessible_topology[{index}].segments")
    except _Problem as problem:
        answer = csi.CreateVolumeResponse() if is_volume else csi.CreateSnapshotResponse()
        getattr(answer, name).CopyFrom(created)
        rpc = f"/csi.v1.Controller/Create{name.capitalize()}"
        raise _unusable(problem, answer, rpc, driver) from None


def _unusable(problem: _Problem, answer: Message, rpc: str, driver: str) -> UnusableAnswerError:
    made, members = _made(answer)
    return UnusableAnswerError(
        f"driver {driver} answered {rpc.rpartition('/')[2]} with an unusable {problem}. Update the "
        "driver, or report the problem to its maintainers; csi-fleet retries the call",
        rpc=rpc,
        made=made,
        members=members,
    )


def _made(answer: Message) -> tuple[str, tuple[str, ...]]:
    """Return the id of the created object and the ids of a group's members, if they are known."""
    if isinstance(answer, csi.CreateVolumeResponse):
        return answer.volume.volume_id, ()
    if isinstance(answer, csi.CreateSnapshotResponse):
        return answer.snapshot.snapshot_id, ()
    if isinstance(answer, csi.CreateVolumeGroupSnapshotResponse):
        group = answer.group_snapshot
        ids = dict.fromkeys(one.snapshot_id for one in group.snapshots if one.snapshot_id)
        return group.group_snapshot_id, tuple(ids)
    return "", ()


# Checks of single fields.


def _id(value: str, field: str) -> None:
    if not value.strip():
        raise _Problem(field, "(empty)")
    if len(value.encode()) > MOST_ID_BYTES:
        raise _Problem(field, f"({len(value.encode())} bytes; at most {MOST_ID_BYTES})")
    if control := _CONTROL.search(value):
        raise _Problem(field, f"(has the control character U+{ord(control[0]):04X})")


def _is_id(value: str) -> bool:
    try:
        _id(value, "")
    except _Problem:
        return False
    return True


def _same_id(value: str, asked: str, field: str) -> None:
    _id(value, field)
    if value != asked:
        raise _Problem(field, f"({value}, but {asked} was requested)")


def _present(answer: Message, field: str) -> None:
    if not answer.HasField(field):
        raise _Problem(field, "(missing)")


def _not_negative(size: int, field: str) -> None:
    if size < 0:
        raise _Problem(field, f"(negative: {size})")


def _context(context: Mapping[str, str], field: str) -> None:
    size = sum(len(key.encode()) + len(value.encode()) for key, value in context.items())
    if size > MOST_CONTEXT_BYTES:
        raise _Problem(field, f"({size} bytes; at most {MOST_CONTEXT_BYTES})")


def _segments(segments: Mapping[str, str], field: str) -> None:
    for key, value in segments.items():
        prefix, slash, name = key.rpartition("/")
        is_prefixed = len(prefix) <= _MOST_PREFIX and _PREFIX.fullmatch(prefix)
        if not _LABEL.fullmatch(name) or (slash and not is_prefixed):
            raise _Problem(field, f"(key {key[:MOST_SHOWN]!r} cannot be a node's label)")
        if value and not _LABEL.fullmatch(value):
            shown = f"value {value[:MOST_SHOWN]!r} of key {key!r}"
            raise _Problem(field, f"({shown} cannot be a node's label)")


def _time_ignored(item: csi.Snapshot | csi.VolumeGroupSnapshot, field: str) -> Iterable[str]:
    """Clear a creation time that is invalid or does not fit into int64 nanoseconds."""
    stamp = item.creation_time
    moment = stamp.seconds * _NANOSECONDS + stamp.nanos
    if not 0 <= stamp.nanos < _NANOSECONDS or moment not in _INT64:
        item.ClearField("creation_time")
        yield f"{field}.creation_time"


def _ignored(snapshot: csi.Snapshot, field: str) -> Iterable[str]:
    yield from _time_ignored(snapshot, field)
    if snapshot.size_bytes < 0:
        snapshot.ClearField("size_bytes")
        yield f"{field}.size_bytes"
    if snapshot.group_snapshot_id and not _is_id(snapshot.group_snapshot_id):
        snapshot.ClearField("group_snapshot_id")
        yield f"{field}.group_snapshot_id"


# Checks of whole responses, one per call.


def _plugin_info(_: Any, answer: csi.GetPluginInfoResponse) -> Iterable[str]:
    # The client itself reports an empty name, with upstream's message.
    if answer.name and not _DRIVER_NAME.fullmatch(answer.name):
        raise _Problem("name", f"({answer.name[:80]!r} is not a driver name)")
    return ()


def _node_info(_: Any, answer: csi.NodeGetInfoResponse) -> Iterable[str]:
    _segments(answer.accessible_topology.segments, "accessible_topology.segments")
    return ()


def _create_volume(_: Any, answer: csi.CreateVolumeResponse) -> Iterable[str]:
    _present(answer, "volume")
    volume = answer.volume
    _id(volume.volume_id, "volume.volume_id")
    _not_negative(volume.capacity_bytes, "volume.capacity_bytes")
    _context(volume.volume_context, "volume.volume_context")
    return ()


def _publish(_: Any, answer: csi.ControllerPublishVolumeResponse) -> Iterable[str]:
    _context(answer.publish_context, "publish_context")
    return ()


def _expand(_: Any, answer: csi.ControllerExpandVolumeResponse) -> Iterable[str]:
    _not_negative(answer.capacity_bytes, "capacity_bytes")
    return ()


def _capacity(_: Any, answer: csi.GetCapacityResponse) -> Iterable[str]:
    _not_negative(answer.available_capacity, "available_capacity")
    _not_negative(answer.maximum_volume_size.value, "maximum_volume_size")
    return ()


def _list_volumes(_: Any, answer: csi.ListVolumesResponse) -> Iterable[str]:
    """Drop the entries without a usable volume id; the other entries can be used."""
    for index, entry in reversed([*enumerate(answer.entries)]):
        if not _is_id(entry.volume.volume_id):
            del answer.entries[index]
            yield f"entries[{index}].volume.volume_id"


def _get_volume(
    request: csi.ControllerGetVolumeRequest, answer: csi.ControllerGetVolumeResponse
) -> Iterable[str]:
    _present(answer, "volume")
    _same_id(answer.volume.volume_id, request.volume_id, "volume.volume_id")
    return ()


def _list_health(_: Any, answer: csi.ControllerListVolumeHealthResponse) -> Iterable[str]:
    """Drop the entries without a usable volume id; the other entries can be used."""
    for index, entry in reversed([*enumerate(answer.entries)]):
        if not _is_id(entry.volume_id):
            del answer.entries[index]
            yield f"entries[{index}].volume_id"


def _get_health(
    request: csi.ControllerGetVolumeHealthRequest, answer: csi.ControllerGetVolumeHealthResponse
) -> Iterable[str]:
    """Accept a response without a health: it means that no condition is known (VH-022)."""
    if answer.volume_health.volume_id:
        _same_id(answer.volume_health.volume_id, request.volume_id, "volume_health.volume_id")
    return ()


def _create_snapshot(_: Any, answer: csi.CreateSnapshotResponse) -> Iterable[str]:
    _present(answer, "snapshot")
    _id(answer.snapshot.snapshot_id, "snapshot.snapshot_id")
    return _ignored(answer.snapshot, "snapshot")


def _get_snapshot(
    request: csi.GetSnapshotRequest, answer: csi.GetSnapshotResponse
) -> Iterable[str]:
    _present(answer, "snapshot")
    _same_id(answer.snapshot.snapshot_id, request.snapshot_id, "snapshot.snapshot_id")
    return _ignored(answer.snapshot, "snapshot")


def _list_snapshots(
    request: csi.ListSnapshotsRequest, answer: csi.ListSnapshotsResponse
) -> Iterable[str]:
    """Check the snapshots of a list.

    A snapshot without a usable id makes the whole list unusable, because it could be any snapshot.
    If the list has the requested snapshot, other entries do not count: some drivers ignore the
    filter.
    """
    wanted = request.snapshot_id
    asked = [one for one in answer.entries if wanted and one.snapshot.snapshot_id == wanted]
    for index, entry in enumerate(asked or answer.entries):
        _id(entry.snapshot.snapshot_id, f"entries[{index}].snapshot.snapshot_id")
        yield from _ignored(entry.snapshot, f"entries[{index}].snapshot")


def _create_group(
    request: csi.CreateVolumeGroupSnapshotRequest, answer: csi.CreateVolumeGroupSnapshotResponse
) -> Iterable[str]:
    _present(answer, "group_snapshot")
    group, field = answer.group_snapshot, "group_snapshot"
    _id(group.group_snapshot_id, f"{field}.group_snapshot_id")
    missing, ids = dict.fromkeys(request.source_volume_ids), set[str]()
    for index, member in enumerate(group.snapshots):
        name = f"{field}.snapshots[{index}]"
        _id(member.snapshot_id, f"{name}.snapshot_id")
        if member.snapshot_id in ids:
            raise _Problem(f"{name}.snapshot_id", f"({member.snapshot_id} occurs twice)")
        ids.add(member.snapshot_id)
        _id(member.source_volume_id, f"{name}.source_volume_id")
        if member.source_volume_id not in missing:
            text = f"({member.source_volume_id} is not a volume of the request, or occurs twice)"
            raise _Problem(f"{name}.source_volume_id", text)
        del missing[member.source_volume_id]
        if member.group_snapshot_id not in {"", group.group_snapshot_id}:
            text = f"({member.group_snapshot_id} is a different group)"
            raise _Problem(f"{name}.group_snapshot_id", text)
        yield from _ignored(member, name)
    # A group that is not ready may report its members later.
    if missing and (group.ready_to_use or group.snapshots):
        raise _Problem(f"{field}.snapshots", f"(no snapshot of volume {min(missing)})")
    yield from _time_ignored(group, field)


def _get_group(
    request: csi.GetVolumeGroupSnapshotRequest, answer: csi.GetVolumeGroupSnapshotResponse
) -> Iterable[str]:
    _present(answer, "group_snapshot")
    field = "group_snapshot.group_snapshot_id"
    _same_id(answer.group_snapshot.group_snapshot_id, request.group_snapshot_id, field)
    return _time_ignored(answer.group_snapshot, "group_snapshot")


_CHECKS: Final[Mapping[type[Message], Callable[[Any, Any], Iterable[str]]]] = {
    csi.GetPluginInfoResponse: _plugin_info,
    csi.NodeGetInfoResponse: _node_info,
    csi.CreateVolumeResponse: _create_volume,
    csi.ControllerPublishVolumeResponse: _publish,
    csi.ControllerExpandVolumeResponse: _expand,
    csi.ControllerGetVolumeResponse: _get_volume,
    csi.GetCapacityResponse: _capacity,
    csi.ListVolumesResponse: _list_volumes,
    csi.ControllerListVolumeHealthResponse: _list_health,
    csi.ControllerGetVolumeHealthResponse: _get_health,
    csi.CreateSnapshotResponse: _create_snapshot,
    csi.GetSnapshotResponse: _get_snapshot,
    csi.ListSnapshotsResponse: _list_snapshots,
    csi.CreateVolumeGroupSnapshotResponse: _create_group,
    csi.GetVolumeGroupSnapshotResponse: _get_group,
}

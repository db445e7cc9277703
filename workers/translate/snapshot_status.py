"""Computes the new status of a snapshot or its content.

A result of `None` means that nothing changes, so no write is needed. Inputs are never changed.
Times in a snapshot content are in nanoseconds since 1970; times in a snapshot are in RFC 3339 form,
in seconds.
Source: external-snapshotter v8.6, updateSnapshotContentStatus (sidecar), updateSnapshotStatus and
needsUpdateSnapshotStatus (controller).
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final

from workers.translate import quantity
from workers.translate.fields import Json, optional_mapping, value_at
from workers.translate.snapshot_objects import is_created, is_ready

Status = dict[str, Any]

_NANOSECONDS: Final = 1_000_000_000
# The members that are removed after DeleteSnapshot; the error is kept (SNS-040).
_CLEARED: Final = ("snapshotHandle", "readyToUse", "creationTime", "restoreSize")
_GROUP_CLEARED: Final = ("volumeGroupSnapshotHandle", "readyToUse", "creationTime", "error")


def timestamp(seconds: float) -> str:
    """Return a time as the API writes it: `2026-01-02T03:04:05Z`."""
    return datetime.fromtimestamp(int(seconds), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def error_of(message: str, now: float) -> Status:
    """Return the `error` member of a status."""
    return {"time": timestamp(now), "message": message}


def content_status(
    old: Json | None,
    *,
    handle: str,
    is_ready: bool,
    created_nanoseconds: int,
    size_bytes: int,
    group_handle: str = "",
) -> Status | None:
    """Return a content's status after a call that succeeded (SNS-025).

    The error of an earlier call is removed at once; csi-snapshotter keeps it until the snapshot is
    ready (SND-014).

    Args:
        old: the current status; None if there is none.
        handle: the snapshot's handle. Once the status contains a handle, the handle, the
            creation time and the size never change.
        is_ready: whether the driver reports the snapshot as ready.
        created_nanoseconds: the creation time of the snapshot.
        size_bytes: the size of the snapshot; 0 if unknown.
        group_handle: the handle of the snapshot's group, if the driver names one.
    """
    new: Status = dict(old or {})
    fixed = {
        "snapshotHandle": handle,
        "creationTime": created_nanoseconds,
        "restoreSize": size_bytes or None,
        "volumeGroupSnapshotHandle": group_handle or None,
    }
    for name, value in fixed.items():
        if new.get(name) in {None, ""} and value is not None:
            new[name] = value
    new["readyToUse"] = is_ready
    new.pop("error", None)
    return None if new == old else new


def cleared(old: Json | None) -> Status | None:
    """Return a content's status after DeleteSnapshot; None if it had no status (SNS-040)."""
    return None if old is None else {k: v for k, v in old.items() if k not in _CLEARED}


def group_cleared(old: Json | None) -> Status | None:
    """Return a group content's status after DeleteVolumeGroupSnapshot."""
    return None if old is None else {k: v for k, v in old.items() if k not in _GROUP_CLEARED}


def _creation_time(content: Json) -> str | None:
    created = value_at(content, "status", "creationTime")
    if isinstance(created, str):  # group contents have RFC 3339 already
        return created
    return None if created is None else timestamp(int(created) // _NANOSECONDS)


def _is_zero(size: object) -> bool:
    try:
        return quantity.parse(size) == 0
    except quantity.QuantityError:
        return False


def snapshot_status(
    snapshot: Json, content: Json, *, bound_field: str, group_name: str = ""
) -> Status | None:
    """Return the snapshot's new status, derived from its content's status (SNC-070).

    Errors are compared by value; the Go controller compares pointers and always writes (SND-016).

    Args:
        snapshot: the snapshot or group snapshot, read live.
        content: the content of the snapshot.
        bound_field: the status member that names the content.
        group_name: the name of the group snapshot that has the content's group handle, if any.
    """
    old = optional_mapping(snapshot, "status")
    new: Status = dict(old or {})
    ready = is_ready(content)
    if new.get(bound_field) is None:
        new[bound_field] = value_at(content, "metadata", "name")
    created = _creation_time(content)
    if new.get("creationTime") is None and created is not None:
        new["creationTime"] = created
    if new.get("readyToUse") is None or bool(new["readyToUse"]) != ready:
        new["readyToUse"] = ready
        if ready:
            new.pop("error", None)
    _copy_size(new, value_at(content, "status", "restoreSize"))
    _copy_error(new, optional_mapping(content, "status", "error"))
    if new.get("volumeGroupSnapshotName") is None and group_name:
        new["volumeGroupSnapshotName"] = group_name
    return None if new == old else new


def _copy_size(new: Status, size: Any) -> None:
    if size is None:
        return
    known = new.get("restoreSize")
    if known is None or (int(size) > 0 and _is_zero(known)):
        new["restoreSize"] = quantity.canonical(int(size))


def _copy_error(new: Status, error: Json | None) -> None:
    known = new.get("error")
    if error is None:
        new.pop("error", None)
    elif known is None or (known.get("time") and error.get("time")):
        new["error"] = dict(error)


def newly_created(old: Json, new: Json) -> bool:
    """Return True if only the new status reports that the snapshot was taken (SNC-071)."""
    return not is_created(old) and is_created(new)


def newly_ready(old: Json, new: Json) -> bool:
    """Return True if only the new status reports that the snapshot is ready (SNC-071)."""
    return not is_ready(old) and is_ready(new)


def needs_copy(snapshot: Json, content: Json, *, bound_field: str) -> bool:
    """Return True if the content's status must be copied to the snapshot (SNC-075).

    Status members are compared by value, including errors (SND-016).
    """
    status = optional_mapping(content, "status")
    if status is None:
        return False
    return snapshot_status(snapshot, content, bound_field=bound_field) is not None

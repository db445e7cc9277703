"""Maps operations (the names used for limits and timeouts) to gRPC methods.

The drivers file, `pause` and the pace of a driver use operations (`create`, `attach`), whereas gRPC
uses methods. Each kind of key lists its operations (`Kind.operations`).
"""

from __future__ import annotations

from typing import Final

RPCS: Final = {
    "create": "Controller/CreateVolume",
    "delete": "Controller/DeleteVolume",
    "capacity": "Controller/GetCapacity",
    "attach": "Controller/ControllerPublishVolume",
    "detach": "Controller/ControllerUnpublishVolume",
    "expand": "Controller/ControllerExpandVolume",
    "modify": "Controller/ControllerModifyVolume",
    "snapshot": "Controller/CreateSnapshot",
    "delete-snapshot": "Controller/DeleteSnapshot",
    "group-snapshot": "GroupController/CreateVolumeGroupSnapshot",
    "delete-group-snapshot": "GroupController/DeleteVolumeGroupSnapshot",
    "list-volumes": "Controller/ListVolumes",
    "list-snapshots": "Controller/ListSnapshots",
    "get-volume": "Controller/ControllerGetVolume",
    "list-volume-health": "Controller/ControllerListVolumeHealth",
    "get-volume-health": "Controller/ControllerGetVolumeHealth",
    "get-snapshot": "Controller/GetSnapshot",
    "get-group-snapshot": "GroupController/GetVolumeGroupSnapshot",
}
"""The CSI method of each operation."""

OPERATIONS: Final = {method: operation for operation, method in RPCS.items()}
"""The operation of each method that is subject to limits.

The other methods (Probe and those that return names or capabilities) find out whether the driver
answers. So they are never delayed, and their errors change no limit.
"""

READING: Final = frozenset(
    {
        "capacity",
        "list-volumes",
        "list-snapshots",
        "get-volume",
        "list-volume-health",
        "get-volume-health",
        "get-snapshot",
        "get-group-snapshot",
    }
)
"""Operations that change nothing, so two of them may safely run at the same time."""

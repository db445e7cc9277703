"""How do limits and deadlines name the calls of a driver?

The drivers file, `pause` and the pace of a driver speak of operations (`create`, `attach`), gRPC
of methods. Which operation belongs to which kind of key is the kinds' to say (`Kind.operations`).
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
    "get-snapshot": "Controller/GetSnapshot",
    "get-group-snapshot": "GroupController/GetVolumeGroupSnapshot",
}
"""The CSI method of each operation."""

OPERATIONS: Final = {method: operation for operation, method in RPCS.items()}
"""The operation of each guarded method.

The others (Probe, names, capabilities) are asked to find out whether the driver is there, so they
must get through and judge nothing.
"""

READING: Final = frozenset(
    {
        "capacity",
        "list-volumes",
        "list-snapshots",
        "get-volume",
        "get-snapshot",
        "get-group-snapshot",
    }
)
"""Operations that change nothing: two of them side by side do no harm."""

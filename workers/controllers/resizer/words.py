"""The exact names of annotations, conditions, states, reasons and messages (R-030, R-123).

Source: kubernetes-csi/external-resizer, pkg/controller and pkg/modifycontroller; core/v1 types.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

OPERATIONS: Final = ("expand", "modify")
"""The names of the calls, as used in limits and timeouts."""

ANN_RESIZER: Final = "volume.kubernetes.io/storage-resizer"
ANN_NOT_REQUIRED: Final = "volume.kubernetes.io/node-expansion-not-required"
ANN_PRE_RESIZE: Final = "volume.alpha.kubernetes.io/pre-resize-capacity"


class Part(StrEnum):
    """Values of `status.allocatedResourceStatuses.storage` (R-031)."""

    CONTROLLER_IN_PROGRESS = "ControllerResizeInProgress"
    CONTROLLER_INFEASIBLE = "ControllerResizeInfeasible"
    NODE_PENDING = "NodeResizePending"
    NODE_IN_PROGRESS = "NodeResizeInProgress"
    NODE_INFEASIBLE = "NodeResizeInfeasible"


class Condition(StrEnum):
    """The types of a claim's conditions that csi-fleet or kubelet sets (R-030, R-111)."""

    RESIZING = "Resizing"
    FILE_SYSTEM_PENDING = "FileSystemResizePending"
    CONTROLLER_ERROR = "ControllerResizeError"
    NODE_ERROR = "NodeResizeError"
    MODIFYING = "ModifyingVolume"
    MODIFY_ERROR = "ModifyVolumeError"


RESIZE_CONDITIONS: Final = frozenset(
    {
        Condition.RESIZING,
        Condition.FILE_SYSTEM_PENDING,
        Condition.CONTROLLER_ERROR,
        Condition.NODE_ERROR,
    }
)


class ModifyState(StrEnum):
    """Values of `status.modifyVolumeStatus.status` (R-102, R-111)."""

    PENDING = "Pending"
    IN_PROGRESS = "InProgress"
    INFEASIBLE = "Infeasible"


REASON_RESIZING: Final = "Resizing"
REASON_RESIZE_FAILED: Final = "VolumeResizeFailed"
REASON_RESIZED: Final = "VolumeResizeSuccessful"
REASON_FILE_SYSTEM: Final = "FileSystemResizeRequired"
REASON_MODIFY: Final = "VolumeModify"
REASON_MODIFY_FAILED: Final = "VolumeModifyFailed"
REASON_MODIFIED: Final = "VolumeModifySuccessful"
REASON_MODIFY_CANCELED: Final = "VolumeModifyCanceled"

MESSAGE_NODE_PART: Final = (
    "Waiting for user to (re-)start a pod to finish file system resize of volume on node."
)
EVENT_NODE_PART: Final = "Require file system resize of volume on node"
EVENT_RESIZED: Final = "Resize volume succeeded"
EVENT_CANCELED: Final = "Cancelled modify."


def event_source(driver_name: str) -> str:
    """Return the component that events name as their source (R-123)."""
    return f"external-resizer {driver_name}"

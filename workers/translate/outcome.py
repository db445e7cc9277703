"""Maps the gRPC status of a failed CreateVolume to what the driver may still be doing (P-410)."""

from __future__ import annotations

from typing import Final

from workers.errors import State

# gRPC status codes, repeated here so that this module does not need csi_client.
_RESOURCE_EXHAUSTED: Final = 8
_MAY_BE_RUNNING: Final = frozenset({1, 4, 10, 14})
"""CANCELLED, DEADLINE_EXCEEDED, ABORTED, UNAVAILABLE: the driver may still be working."""


def create_volume_state(code: int | None, *, may_reschedule: bool) -> State:
    """Classify a CreateVolume error.

    Args:
        code: the gRPC status code; None if the error has no status.
        may_reschedule: whether topology is on and a node is selected (P-412).

    Returns:
        BACKGROUND if the driver may still create the volume, RESCHEDULE if another node should
        be tried, otherwise FINISHED. An unknown status number counts as FINISHED, as in
        csi-provisioner.
    """
    if code is None or code in _MAY_BE_RUNNING:
        return State.BACKGROUND
    if code == _RESOURCE_EXHAUSTED and may_reschedule:
        return State.RESCHEDULE
    return State.FINISHED

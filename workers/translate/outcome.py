"""What may the storage be doing after CreateVolume failed with a given gRPC status? (P-410)."""

from __future__ import annotations

from typing import Final

from workers.errors import State

# gRPC status numbers; csi_client is not asked for them, so that this table stands alone.
_RESOURCE_EXHAUSTED: Final = 8
_MAY_BE_RUNNING: Final = frozenset({1, 4, 10, 14})
"""CANCELLED, DEADLINE_EXCEEDED, ABORTED, UNAVAILABLE: the driver may still be at work."""


def create_volume_state(code: int | None, *, may_reschedule: bool) -> State:
    """Classify a CreateVolume error.

    Args:
        code: gRPC status number, None when the error carries no status.
        may_reschedule: topology is on and a node is selected (P-412).

    Returns:
        BACKGROUND when a volume may be in the making, RESCHEDULE when another node should be tried,
        otherwise FINISHED; numbers gRPC does not know are final as in the reference.
    """
    if code is None or code in _MAY_BE_RUNNING:
        return State.BACKGROUND
    if code == _RESOURCE_EXHAUSTED and may_reschedule:
        return State.RESCHEDULE
    return State.FINISHED

"""Whose capacity may have changed after a volume was made or removed (CAP-030)?

The answers are items to enqueue, with a short delay so that a burst of volumes asks once (M-014).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from workers.errors import State
from workers.topology.segments import volume_segments

if TYPE_CHECKING:
    from collections.abc import Mapping

    from workers.controllers.capacity.items import Item, Wanted


def after_provision(
    wanted: Wanted, storage_class: str, outcome: State | Mapping[str, Any]
) -> list[Item]:
    """Return the items to refresh after a provisioning attempt.

    Args:
        wanted: the driver's items.
        storage_class: the claim's class; an unknown one refreshes nothing.
        outcome: the new PersistentVolume, or the state of a failed attempt (an ignored claim is
            FINISHED, in node deployment NO_CHANGE, ND-003).

    Returns:
        After success the items of the volume's segments, in every class, or without affinity all
        of its class. After a failure all of the class, because the storage may be full; but nothing
        if the attempt changed nothing.
    """
    if isinstance(outcome, State):
        return [] if outcome is State.NO_CHANGE else wanted.of_class(storage_class)
    segments = volume_segments(outcome)
    return wanted.of_class(storage_class) if segments is None else wanted.of_segments(segments)


def after_delete(wanted: Wanted, volume: Mapping[str, Any]) -> list[Item]:
    """Return the items to refresh after a volume was deleted; a failed deletion refreshes nothing.

    Without affinity nothing is refreshed either: the next poll will see the space.
    """
    return wanted.of_segments(volume_segments(volume) or ())

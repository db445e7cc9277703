"""Finds items whose capacity may have changed after a volume was created or deleted (CAP-030).

The caller enqueues the items with a short delay, so that a burst of volumes causes only one call
(M-014).
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
        storage_class: the claim's class; for an unknown class nothing is refreshed.
        outcome: the new PersistentVolume, or the state of a failed attempt. For an ignored
            claim the state is FINISHED, or NO_CHANGE in node deployment (ND-003).

    Returns:
        After success, the items of every class for the volume's segments or, if the volume has
        no affinity, all items of the claim's class. After a failure, all items of the claim's
        class, because the storage system may be full. For NO_CHANGE, no items.
    """
    if isinstance(outcome, State):
        return [] if outcome is State.NO_CHANGE else wanted.of_class(storage_class)
    segments = volume_segments(outcome)
    return wanted.of_class(storage_class) if segments is None else wanted.of_segments(segments)


def after_delete(wanted: Wanted, volume: Mapping[str, Any]) -> list[Item]:
    """Return the items to refresh after a volume was deleted.

    A failed deletion refreshes nothing. The deletion of a volume without affinity refreshes nothing
    either, because the next poll finds the free space.
    """
    return wanted.of_segments(volume_segments(volume) or ())

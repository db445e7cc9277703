"""Which locks does a reconcile hold while it changes a volume (MR-011)?

The volume's name keeps it from being made or deleted meanwhile; it is held shared by whoever may
stand beside a publication and exclusive by an expansion that may not: the driver expands offline
only, or refused because the volume was published. Expand and modify of one claim are one key, so
they never meet themselves; where two static volumes share a handle, a lock of the resizer's own
keeps their claims apart.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from zlib import crc32

from workers.constants import ANN_PROVISIONED_BY
from workers.controllers.resizer.words import OPERATIONS
from workers.queue.locks import Lock, Mode
from workers.translate.fields import annotations_of, text

if TYPE_CHECKING:
    from collections.abc import Iterable

    from workers.drivers.driver import Driver
    from workers.kube.objects import JsonObject

_OFFLINE: Final = frozenset({"OFFLINE"})


def locks(volume: JsonObject, driver: Driver, *, expands: bool, in_use: bool) -> tuple[Lock, ...]:
    """The locks of one reconcile.

    Args:
        volume: the live volume.
        driver: its driver.
        expands: an expand step is planned.
        in_use: the driver refused to expand while the volume was published.
    """
    is_alone = expands and (in_use or driver.expansion_modes == _OFFLINE)
    mode = Mode.EXCLUSIVE if is_alone else Mode.SHARED
    found = [Lock(text(volume, "metadata", "name"), mode)]
    handle = text(volume, "spec", "csi", "volumeHandle")
    if handle and ANN_PROVISIONED_BY not in annotations_of(volume):
        name = f"{driver.name}#{handle}"
        found.append(Lock(f"resize:{name}"))
        if is_alone:
            found.append(Lock(name))  # shared by publications of the other volume
    return tuple(found)


def places(
    driver: Driver, uid: str, operations: Iterable[str], *, workers: int
) -> tuple[Lock, ...]:
    """One place for each operation whose limit is narrower than the lane (MR-012).

    `limits: {expand: {concurrency: 8}, modify: {concurrency: 1}}` makes a lane of eight in which
    one modifies at a time.

    Args:
        driver: with the limits of the drivers file.
        uid: the claim's; it chooses the place.
        operations: what is about to be called.
        workers: the limit of operations that the file does not name.
    """
    limits = {name: driver.limits.get(name, workers) for name in OPERATIONS}
    lane = max(limits.values())
    return tuple(
        Lock(f"{driver.name}~{name}#{crc32(uid.encode()) % limits[name]}")
        for name in operations
        if limits[name] < lane
    )

"""Chooses the locks that a reconcile holds while it changes a volume (MR-011).

The lock on the volume's name prevents the volume's creation and deletion. The lock is exclusive if
the expansion must not overlap with a publication, that is, if the driver can expand only offline or
has refused because the volume was published. Otherwise the lock is shared. One key covers both the
expansion and the modification of a claim, so the two never conflict. If two static volumes share a
handle, another lock of the resizer prevents changes for both claims at once.
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
    """Return the locks for one reconcile of one volume.

    Args:
        volume: the live PV.
        driver: the driver of the PV.
        expands: whether an expand step is planned.
        in_use: whether the driver refused to expand because the volume was published.
    """
    is_alone = expands and (in_use or driver.expansion_modes == _OFFLINE)
    mode = Mode.EXCLUSIVE if is_alone else Mode.SHARED
    found = [Lock(text(volume, "metadata", "name"), mode)]
    handle = text(volume, "spec", "csi", "volumeHandle")
    if handle and ANN_PROVISIONED_BY not in annotations_of(volume):
        name = f"{driver.name}#{handle}"
        found.append(Lock(f"resize:{name}"))
        if is_alone:
            found.append(Lock(name))  # publications of the other volume share this lock
    return tuple(found)


def places(
    driver: Driver, uid: str, operations: Iterable[str], *, workers: int
) -> tuple[Lock, ...]:
    """Return a lock for each operation whose limit is below that of the driver's queue (MR-012).

    `limits: {expand: {concurrency: 8}, modify: {concurrency: 1}}` lets eight claims run at once,
    but only one of them may be modifying its volume.

    Args:
        driver: the driver, with its limits from the drivers file.
        uid: the claim's uid; it selects one of an operation's locks.
        operations: the operations that are about to be called.
        workers: the limit for operations that the drivers file does not name.
    """
    limits = {name: driver.limits.get(name, workers) for name in OPERATIONS}
    lane = max(limits.values())
    return tuple(
        Lock(f"{driver.name}~{name}#{crc32(uid.encode()) % limits[name]}")
        for name in operations
        if limits[name] < lane
    )

"""The ways in which a lease can end, in the model and in the real queue."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

from tests.support.queue_model import QueueModel
from workers.queue.leases import Lease
from workers.queue.locks import Lock
from workers.queue.workqueue import WorkQueue

InModel: TypeAlias = Callable[[QueueModel, str, int, Lock], None]
ForReal: TypeAlias = Callable[[WorkQueue, Lease, Lock], bool]
BASE_MS, CAP_MS = 1000, 4000


def _release(delay_seconds: float, *, count: bool = False) -> tuple[InModel, ForReal]:
    return (
        lambda model, key, now, _: model.release(
            key, now, delay_seconds=delay_seconds, count=count
        ),
        lambda queue, lease, _: queue.release(lease, delay_seconds=delay_seconds, count=count),
    )


ENDS: Final[Mapping[str, tuple[InModel, ForReal]]] = {
    "done": (
        lambda model, key, now, _: model.done(key, now),
        lambda queue, lease, _: queue.done(lease),
    ),
    "fail": (
        lambda model, key, now, _: model.fail(key, now, BASE_MS, CAP_MS),
        lambda queue, lease, _: (
            queue.fail(lease, base_seconds=BASE_MS / 1000, cap_seconds=CAP_MS / 1000).is_owner
        ),
    ),
    "release": _release(1.5),
    "count": _release(1.5, count=True),
    "park": _release(0),
    "block": (
        lambda model, key, _, lock: model.block(key, lock.name, lock.mode.value),
        lambda queue, lease, lock: queue.block(lease, lock),
    ),
}

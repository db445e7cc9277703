"""What do a finished or failed pass add to the metrics? Upstream's figures (L-095) and ours."""

from __future__ import annotations

import time
from datetime import datetime
from typing import TYPE_CHECKING

from workers.translate.claims import claim_class_name, selected_node

if TYPE_CHECKING:
    from workers.controllers.provisioner.work import ClaimWork, Work
    from workers.kube.objects import JsonObject


def saved(work: ClaimWork, claim: JsonObject) -> None:
    """The PV of a claim is saved."""
    metrics = work.runtime.metrics
    metrics.provisioned(claim, time.monotonic() - work.started)
    seconds = waited_seconds(work, claim)
    if seconds is not None:
        labels = (work.driver.name, claim_class_name(claim))
        metrics.claim_seconds.labels(*labels).observe(seconds)


def failed(work: ClaimWork, claim: JsonObject) -> None:
    """An attempt for a claim failed."""
    work.runtime.metrics.provision_failed(claim)


def deleted(work: Work, volume: JsonObject, started: float) -> None:
    """A volume is gone, in the storage and as object; `started` is monotonic."""
    work.runtime.metrics.deleted(volume, time.monotonic() - started)


def waited_seconds(work: ClaimWork, claim: JsonObject) -> float | None:
    """Seconds the user waited: since the creation, or since late binding chose a node.

    The choice has no time stamp of its own: the first attempt, or the key's arrival in the queue,
    stands for it.
    """
    now = time.time()
    begun = work.record.since if work.record is not None else now
    arrived = now - (time.monotonic() - work.started) - work.lease.waited_seconds
    noticed = min(begun, arrived)
    if not selected_node(claim):
        try:
            noticed = creation(claim["metadata"].get("creationTimestamp") or "", noticed)
        except ValueError:
            return None
    return max(0.0, now - noticed)


def creation(stamp: str, noticed: float) -> float:
    """When an object was made, by its stamp, which has whole seconds, and when we noticed it.

    The stamp alone is half a second early on the average, ten times what a claim takes.

    Raises:
        ValueError: no stamp.
    """
    second = datetime.fromisoformat(stamp).timestamp()
    return min(max(second, noticed), second + 1)

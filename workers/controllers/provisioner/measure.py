"""Records finished and failed reconciles in csi-provisioner's (L-095) and csi-fleet's metrics."""

from __future__ import annotations

import time
from datetime import datetime
from typing import TYPE_CHECKING

from workers.translate.claims import claim_class_name, selected_node

if TYPE_CHECKING:
    from workers.controllers.provisioner.work import ClaimWork, Work
    from workers.kube.objects import JsonObject


def saved(work: ClaimWork, claim: JsonObject) -> None:
    """Records that the PV of a claim was saved."""
    metrics = work.runtime.metrics
    metrics.provisioned(claim, time.monotonic() - work.started)
    seconds = waited_seconds(work, claim)
    if seconds is not None:
        labels = (work.driver.name, claim_class_name(claim))
        metrics.claim_seconds.labels(*labels).observe(seconds)


def failed(work: ClaimWork, claim: JsonObject) -> None:
    """Records that an attempt for a claim failed."""
    work.runtime.metrics.provision_failed(claim)


def deleted(work: Work, volume: JsonObject, started: float) -> None:
    """Records that a volume and its PV were deleted; `started` is monotonic time."""
    work.runtime.metrics.deleted(volume, time.monotonic() - started)


def waited_seconds(work: ClaimWork, claim: JsonObject) -> float | None:
    """Return the seconds since the claim's creation, or since late binding chose a node.

    The choice of a node has no timestamp. Instead, the earlier of two times is used: the first
    attempt, or the key's arrival in the queue.
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
    """Estimates an object's creation time from its timestamp and the time at which it was noticed.

    The timestamp is cut to whole seconds, so it is half a second early on average. That is ten
    times as long as it takes to provision a claim.

    Raises:
        ValueError: the timestamp is missing.
    """
    second = datetime.fromisoformat(stamp).timestamp()
    return min(max(second, noticed), second + 1)

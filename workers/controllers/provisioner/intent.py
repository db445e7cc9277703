"""The write-ahead record of one attempt: enough to finish it after any crash (M-010).

Shape in Redis and, for slow or background attempts, in a ConfigMap (JSON):
`{"key": key text, "driver": name, "claim": claim object, "selected_node": name or "",
"pin": topology pin or null, "stage": "calling" | "background" | "failed", "has_copy": bool,
"since": unix seconds of the first attempt, "source": {"snapshot_id" or "volume_id": handle} the
driver copies from, if any, "store": progress of a plug-in's backoff store}`.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from collections.abc import Mapping

    from workers.kube.objects import JsonObject

STAGE_CALLING = "calling"
STAGE_BACKGROUND = "background"
STAGE_FAILED = "failed"
# Fields of a claim that no later step reads.
_DROPPED_METADATA = ("managedFields",)
_DROPPED_ANNOTATIONS = ("kubectl.kubernetes.io/last-applied-configuration",)


def claim_copy(claim: Mapping[str, Any]) -> JsonObject:
    """The claim without the bulky fields nobody reads; the input stays as it is."""
    metadata = {
        name: value for name, value in claim["metadata"].items() if name not in _DROPPED_METADATA
    }
    if "annotations" in metadata:
        metadata["annotations"] = {
            name: value
            for name, value in (metadata["annotations"] or {}).items()
            if name not in _DROPPED_ANNOTATIONS
        }
    return {**claim, "metadata": metadata}


@dataclass(frozen=True, slots=True)
class Intent:
    """What is known about an attempt that may have left a volume in the storage."""

    key: str
    driver: str
    claim: JsonObject
    selected_node: str
    pin: JsonObject | None
    stage: str
    has_copy: bool
    since: float
    source: JsonObject | None = None
    store: JsonObject | None = None

    @classmethod
    def begin(
        cls,
        *,
        key: str,
        driver: str,
        claim: Mapping[str, Any],
        selected_node: str,
        pin: JsonObject | None,
        previous: Self | None,
        source: JsonObject | None = None,
    ) -> Self:
        """The record written just before CreateVolume; keeps the first attempt's time and copy."""
        return cls(
            key=key,
            driver=driver,
            claim=claim_copy(claim),
            selected_node=selected_node,
            pin=pin,
            stage=STAGE_CALLING,
            has_copy=previous.has_copy if previous else False,
            since=previous.since if previous else time.time(),
            source=source,
        )

    @classmethod
    def from_record(cls, record: Mapping[str, Any] | None, uid: str) -> Self | None:
        """Reads a record back; None if there is none or it belongs to another claim.

        A truncated name can be shared by two claims (D-005): the record of the other one is not
        ours to use.
        """
        if record is None:
            return None
        claim = record.get("claim")
        if not isinstance(claim, dict) or (claim.get("metadata") or {}).get("uid") != uid:
            return None
        return cls(
            key=str(record.get("key", "")),
            driver=str(record.get("driver", "")),
            claim=claim,
            selected_node=str(record.get("selected_node") or ""),
            pin=record.get("pin"),
            stage=str(record.get("stage") or STAGE_CALLING),
            has_copy=bool(record.get("has_copy")),
            since=float(record.get("since") or time.time()),
            source=record.get("source"),
            store=record.get("store"),
        )

    def record(self) -> JsonObject:
        """The JSON form."""
        return {
            "key": self.key,
            "driver": self.driver,
            "claim": self.claim,
            "selected_node": self.selected_node,
            "pin": self.pin,
            "stage": self.stage,
            "has_copy": self.has_copy,
            "since": self.since,
            **({"source": self.source} if self.source else {}),
            **({"store": self.store} if self.store else {}),
        }

    @property
    def is_failed(self) -> bool:
        """The last attempt ended with a final error: nothing is in progress."""
        return self.stage == STAGE_FAILED

    def failed(self) -> Self:
        """The same after a final error of the driver."""
        return replace(self, stage=STAGE_FAILED)

    def with_copy(self) -> Self:
        """The same, known to stand in a ConfigMap too."""
        return replace(self, has_copy=True)

    def with_store(self, store: JsonObject) -> Self:
        """The same with the progress of a backoff store (L-081)."""
        return replace(self, store=store)

    def in_background(self) -> Self:
        """The same after an attempt whose end is not known."""
        return replace(self, stage=STAGE_BACKGROUND)

"""The intent: the write-ahead record with which an attempt is finished after any crash (M-010).

The intent is stored as JSON in Redis and, if the attempt is slow or remains open, in a ConfigMap.
An optional field that is empty is left out. The fields are:

- `key`: the text of the key;
- `driver`: the name of the driver;
- `volume`: the requested name of the volume;
- `claim`: the claim object;
- `selected_node`: the name of the selected node, or "";
- `stage`: one of the stages below;
- `has_copy`: whether there may be a ConfigMap;
- `copy_uid`: the uid of the ConfigMap;
- `is_copied`: whether the ConfigMap is known to hold this intent;
- `since`: the start of the first attempt, in unix seconds;
- `request`: the CreateVolumeRequest as JSON, without secrets;
- `class`: the claim's StorageClass;
- `earlier`: `claim`, `class`, `request` and `selected_node` of an earlier, different request;
- `deadline`: the deadline of the call;
- `epoch`: the epoch of Redis in which the call began;
- `overtaken`: the deadline of in-flight calls of dead workers;
- `problem`: why the intent is stranded;
- `store`: the progress of a plug-in's backoff store.

A driver returns the same volume for a repeated request, and may refuse a different request with
the same name (CSI: ALREADY_EXISTS). So an open call is repeated with its recorded request and name,
even if the class, the attributes class, the nodes or the flags have changed. Secrets are not in the
record: each call reads them again from the place that the recorded class names.

The stages are:

- `calling`: the outcome of the call is not known yet;
- `background`: a call was made, and its outcome is unknown;
- `failed`: the call ended with a final error;
- `saved`: all that remains is to wait for a dead worker's in-flight call;
- `stranded`: the claim is gone, and only an operator can finish the attempt.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Self

from workers import constants as k
from workers.deadlines import NONE, Deadline

if TYPE_CHECKING:
    from collections.abc import Mapping

    from workers.kube.objects import JsonObject
    from workers.queue.leases import Session

STAGE_CALLING = "calling"
STAGE_BACKGROUND = "background"
STAGE_FAILED = "failed"
STAGE_SAVED = "saved"
STAGE_STRANDED = "stranded"
# Metadata fields that no later step reads.
_DROPPED_METADATA = ("managedFields",)
# No later step reads these fields, and a tenant can fill them with any number of entries.
_DROPPED_OF_CLAIMS = ("ownerReferences", "finalizers")
_DROPPED_ANNOTATIONS = ("kubectl.kubernetes.io/last-applied-configuration",)
# A class uses an annotation's value only in the name of a secret, which has at most this length.
_LONGEST_VALUE: Final = 253
_TOO_LONG: Final = " " * (_LONGEST_VALUE + 1)
_NAMED: Final = re.compile(r"annotations\['([^']*)'\]")
# The number of bytes kept of the labels, and of the annotations that neither csi-fleet nor the
# class uses. A tenant can write 256 KiB of them into each claim, and the record of a failing claim
# remains in Redis.
_BUDGET: Final = 4096
_OURS: Final = frozenset(
    {
        k.ANN_STORAGE_PROVISIONER,
        k.ANN_STORAGE_PROVISIONER_BETA,
        k.ANN_STORAGE_CLASS_BETA,
        k.ANN_SELECTED_NODE,
        k.ANN_SELECTED_NODE_ALPHA,
        k.ANN_MIGRATED_TO,
    }
)


def slim_copy(item: Mapping[str, Any]) -> JsonObject:
    """Return a copy of the object without the bulky fields that nothing uses."""
    metadata = {
        name: value for name, value in item["metadata"].items() if name not in _DROPPED_METADATA
    }
    if "annotations" in metadata:
        metadata["annotations"] = {
            name: value
            for name, value in (metadata["annotations"] or {}).items()
            if name not in _DROPPED_ANNOTATIONS
        }
    return {**item, "metadata": metadata}


def kept_claim(claim: Mapping[str, Any], storage_class: Mapping[str, Any]) -> JsonObject:
    """Return the part of a claim that a later attempt reads; it is a few KiB in size."""
    slim = {name: value for name, value in slim_copy(claim).items() if name != "status"}
    metadata = slim["metadata"]
    for name in _DROPPED_OF_CLAIMS:
        metadata.pop(name, None)
    templates = " ".join(map(str, (storage_class.get("parameters") or {}).values()))
    found = metadata.get("annotations") or {}
    # Look up the few names that matter, because a claim may have thousands of annotations.
    named = {
        name: found[name]
        for name in (*_OURS, *_NAMED.findall(templates))
        if len(found.get(name, _TOO_LONG)) <= _LONGEST_VALUE
    }
    if "annotations" in metadata:
        metadata["annotations"] = _within(found) | named
    if "labels" in metadata:
        metadata["labels"] = _within(metadata["labels"] or {})
    return slim


def _within(texts: Mapping[str, str]) -> dict[str, str]:
    """Return as many of the first entries as fit into the budget."""
    kept, left = {}, _BUDGET
    for name, value in texts.items():
        if len(name) + len(value) > left:
            continue
        size = len(name.encode()) + len(value.encode())
        if size <= left:
            kept[name] = value
            left -= size
    return kept


@dataclass(frozen=True, slots=True)
class Request:
    """The part of a request that an intent records in addition to the claim and the class.

    Attributes:
        selected_node: the claim's selected node; "" if there is none.
        message: the CreateVolumeRequest as JSON, without secrets; None for plug-ins.
        timeout_seconds: the call's timeout; 0 for calls without a timeout.
    """

    selected_node: str = ""
    message: JsonObject | None = None
    timeout_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Intent:
    """The record of an attempt that may have left a volume in the storage system."""

    key: str
    driver: str
    claim: JsonObject
    selected_node: str
    stage: str
    has_copy: bool
    since: float
    request: JsonObject | None = None
    earlier: JsonObject | None = None
    store: JsonObject | None = None
    storage_class: JsonObject | None = None
    deadline: Deadline = NONE
    overtaken: Deadline = NONE
    epoch: str = ""
    problem: str = ""
    is_copied: bool = False
    volume: str = ""
    copy_uid: str = ""

    @classmethod
    def begin(
        cls,
        *,
        key: str,
        driver: str,
        volume: str = "",
        claim: Mapping[str, Any],
        storage_class: Mapping[str, Any],
        request: Request,
        previous: Self | None,
        session: Session,
    ) -> Self:
        """Return the intent to record just before CreateVolume.

        The start time of the first attempt is kept.

        A ConfigMap of the previous attempt does not describe the new one, but must still be
        removed.
        """
        return cls(
            key=key,
            driver=driver,
            volume=volume,
            claim=kept_claim(claim, storage_class),
            selected_node=request.selected_node,
            stage=STAGE_CALLING,
            has_copy=previous.has_copy if previous else False,
            copy_uid=previous.copy_uid if previous else "",
            since=previous.since if previous else time.time(),
            request=request.message,
            earlier=previous.before(request) if previous else None,
            storage_class=slim_copy(storage_class),
            deadline=session.deadline(request.timeout_seconds) if request.timeout_seconds else NONE,
            overtaken=session.latest(*previous.deadlines) if previous else NONE,
            epoch=session.epoch,
        )

    @classmethod
    def from_record(cls, record: Mapping[str, Any] | None, uid: str | None = None) -> Self | None:
        """Reads an intent from its record.

        Returns None if there is no record, or if its claim has a uid other than `uid`. Two claims
        can share a truncated volume name (D-005), and one claim must not use the other claim's
        record.
        """
        if record is None:
            return None
        claim = record.get("claim")
        if not isinstance(claim, dict):
            return None
        if uid is not None and (claim.get("metadata") or {}).get("uid") != uid:
            return None
        return cls(
            key=str(record.get("key", "")),
            driver=str(record.get("driver", "")),
            claim=claim,
            selected_node=str(record.get("selected_node") or ""),
            stage=str(record.get("stage") or STAGE_CALLING),
            has_copy=bool(record.get("has_copy")),
            since=float(record.get("since") or time.time()),
            request=record.get("request"),
            earlier=record.get("earlier"),
            store=record.get("store"),
            storage_class=record.get("class"),
            deadline=Deadline.read(record.get("deadline")),
            overtaken=Deadline.read(record.get("overtaken")),
            epoch=str(record.get("epoch") or ""),
            problem=str(record.get("problem") or ""),
            is_copied=bool(record.get("is_copied")),
            copy_uid=str(record.get("copy_uid") or ""),
            volume=str(record.get("volume") or (record.get("request") or {}).get("name") or ""),
        )

    def record(self) -> JsonObject:
        """Return the intent in its JSON form."""
        return {
            "key": self.key,
            "driver": self.driver,
            "claim": self.claim,
            "selected_node": self.selected_node,
            "stage": self.stage,
            "has_copy": self.has_copy,
            "since": self.since,
            **{name: value for name, value in self._optional().items() if value},
        }

    def _optional(self) -> JsonObject:
        return {
            "request": self.request,
            "earlier": self.earlier,
            "store": self.store,
            "class": self.storage_class,
            "deadline": self.deadline.data(),
            "overtaken": self.overtaken.data(),
            "epoch": self.epoch,
            "problem": self.problem,
            "is_copied": self.is_copied,
            "volume": self.volume,
            "copy_uid": self.copy_uid,
        }

    @property
    def claim_version(self) -> int:
        """The claim's resourceVersion when the attempt began; 0 if unknown."""
        version = str(self.claim["metadata"].get("resourceVersion") or "")
        return int(version) if version.isdecimal() else 0

    @property
    def deadlines(self) -> tuple[Deadline, Deadline]:
        """The deadlines of this attempt's call and of overtaken calls; all may still be running."""
        last = self.deadline if self.stage == STAGE_CALLING else NONE
        return last, self.overtaken

    def hold_seconds(self, session: Session, *, is_orphaned: bool) -> float:
        """Return how long the next call must wait for an earlier call that may still be running.

        The next call waits if no claim needs the volume, or if Redis has lost its data since the
        earlier call. If the two calls ran at the same time, one of them could recreate the volume
        after its deletion. If a claim is waiting for the volume, the next call is made at once, and
        `overtaken` delays a later deletion.
        """
        if self.stage == STAGE_SAVED or is_orphaned or self.epoch != session.epoch:
            return session.seconds_left(*self.deadlines)
        return 0.0

    @property
    def is_open(self) -> bool:
        """True if a volume without a PV may exist or may still be created."""
        return not (self.is_failed or self.is_saved)

    @property
    def is_failed(self) -> bool:
        """True if the last attempt ended with a final error, so that no call is in progress."""
        return self.stage == STAGE_FAILED

    @property
    def is_saved(self) -> bool:
        """True if the PV is saved, and only a dead worker's call has not ended yet."""
        return self.stage == STAGE_SAVED

    def before(self, request: Request) -> JsonObject | None:
        """Return the part of this attempt to keep when the next call sends `request`.

        A driver may have created the volume although it returned an error (INTERNAL after its own
        timeout). It then refuses every request except the one that created the volume.
        """
        if self.earlier is not None or self.request in (None, request.message):
            return self.earlier
        return {
            "claim": self.claim,
            "class": self.storage_class,
            "request": self.request,
            "selected_node": self.selected_node,
        }

    def with_earlier(self) -> Self | None:
        """Return this intent with the earlier call as its open call.

        Returns None if there was no earlier call.
        """
        known = self.earlier
        if known is None:
            return None
        return replace(
            self,
            claim=known["claim"],
            storage_class=known["class"],
            request=known["request"],
            selected_node=known["selected_node"],
            earlier=None,
        )

    def failed(self) -> Self:
        """Return this intent marked as failed with a final error from the driver."""
        return replace(self, stage=STAGE_FAILED)

    def copied(self) -> Self:
        """Return this intent marked as copied to a ConfigMap."""
        return replace(self, has_copy=True, is_copied=True)

    def with_store(self, store: JsonObject) -> Self:
        """Return this intent with the given progress of a backoff store (L-081)."""
        return replace(self, store=store)

    def answered(self) -> Self:
        """Return this intent without a deadline, because its call has returned."""
        return replace(self, deadline=NONE)

    def in_background(self) -> Self:
        """Return this intent marked as having a call with an unknown outcome."""
        return replace(self, stage=STAGE_BACKGROUND, is_copied=False)

    def saved(self) -> Self:
        """Return this intent marked as saved: the PV exists, but another call may be in flight."""
        return replace(self, stage=STAGE_SAVED)

    def stranded(self, problem: str) -> Self:
        """Return this intent marked as stranded: only an operator can solve the `problem`."""
        return replace(self, stage=STAGE_STRANDED, problem=problem, is_copied=False)


def deadlines_of(record: Mapping[str, Any] | None) -> tuple[Deadline, ...]:
    """Return the `Intent.deadlines` of a claim's stored record; () if there is no record."""
    intent = Intent.from_record(record)
    return intent.deadlines if intent is not None else ()

"""The write-ahead record of one attempt: enough to finish it after any crash (M-010).

Shape in Redis and, for attempts that are slow or stay without an end, in a ConfigMap (JSON); what
is empty is absent:
`{"key": key text, "driver": name, "volume": the name that was asked for, "claim": claim object,
"selected_node": name or "", "stage": see below, "has_copy": whether there may be a ConfigMap,
"copy_uid": its uid, "is_copied": whether one surely says so, "since": unix seconds of the first
attempt, "request": the CreateVolumeRequest as JSON, without secrets, "class": the StorageClass it
was made from, "earlier": claim, class, request and selected_node of an earlier call with another
request, "deadline": of the call, "epoch": life of Redis in which it began,
"overtaken": deadline of calls of dead processes, "problem": why it is
stranded, "store": progress of a plug-in's backoff store}`.

A driver answers a repeated request with the same volume, and may refuse another request under the
same name (CSI: ALREADY_EXISTS). So an open call is repeated with its recorded request, whatever has
become of class, attributes class, nodes and flags since, and under its recorded name. Secrets are
not in the record: each call reads them again, from where the recorded class says.

Stages: `calling` until the end of the call is known, `background` once it is known to be unknown,
`failed` after a final error, `saved` when only an overtaken call is waited for, `stranded` when
the claim is gone and nothing but an operator can bring the attempt to its end.
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
# Fields of an object that no later step reads.
_DROPPED_METADATA = ("managedFields",)
# A tenant writes as many of them into a claim as it likes.
_DROPPED_OF_CLAIMS = ("ownerReferences", "finalizers")
_DROPPED_ANNOTATIONS = ("kubectl.kubernetes.io/last-applied-configuration",)
# A name of a secret, which is all that a class makes of an annotation, has no more characters.
_LONGEST_VALUE: Final = 253
_TOO_LONG: Final = " " * (_LONGEST_VALUE + 1)
_NAMED: Final = re.compile(r"annotations\['([^']*)'\]")
# Bytes of labels, and of annotations that neither we nor the class know: a tenant may write 256 KiB
# of them into each of its claims, and a record of every claim stays while it fails (SEC-4).
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
    """An object without the bulky fields nobody reads; the input stays as it is."""
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
    """As much of a claim as a later attempt reads: a few KiB (SEC-4)."""
    slim = {name: value for name, value in slim_copy(claim).items() if name != "status"}
    metadata = slim["metadata"]
    for name in _DROPPED_OF_CLAIMS:
        metadata.pop(name, None)
    templates = " ".join(map(str, (storage_class.get("parameters") or {}).values()))
    found = metadata.get("annotations") or {}
    # By the few names that matter, for a claim may have thousands.
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
    """The first of them, as far as the budget goes."""
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
    """What an intent remembers of a request beside claim and class.

    Attributes:
        selected_node: of the claim, "" without.
        message: the CreateVolumeRequest as JSON, without secrets; None for plug-ins.
        timeout_seconds: the call ends by then; 0 for calls without an end of their own.
    """

    selected_node: str = ""
    message: JsonObject | None = None
    timeout_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Intent:
    """What is known about an attempt that may have left a volume in the storage."""

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
        """The record written just before CreateVolume; keeps the first attempt's time.

        Its copy may be there and has to go; it says nothing of this attempt.
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
        """Reads a record back; None if there is none or it belongs to another claim than `uid`.

        A truncated name can be shared by two claims (D-005): the record of the other one is not
        ours to use.
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
        """The JSON form."""
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
        """Of calls that may run and whose end nobody saw."""
        last = self.deadline if self.stage == STAGE_CALLING else NONE
        return last, self.overtaken

    def hold_seconds(self, session: Session, *, is_orphaned: bool) -> float:
        """How long the next call has to wait for one that may still run.

        Redis lost its data since, or the claim is gone: nobody is in a hurry then, and two calls
        side by side could make the volume once more after its deletion. For a claim that waits the
        driver is asked at once; `overtaken` then holds the deletion back.
        """
        if self.stage == STAGE_SAVED or is_orphaned or self.epoch != session.epoch:
            return session.seconds_left(*self.deadlines)
        return 0.0

    @property
    def is_open(self) -> bool:
        """A volume without a PV may be there, or may still be made."""
        return not (self.is_failed or self.is_saved)

    @property
    def is_failed(self) -> bool:
        """The last attempt ended with a final error: nothing is in progress."""
        return self.stage == STAGE_FAILED

    @property
    def is_saved(self) -> bool:
        """The PV is there; only a call of a dead process is waited for."""
        return self.stage == STAGE_SAVED

    def before(self, request: Request) -> JsonObject | None:
        """What to remember of this attempt when `request` is sent next.

        A driver may have made the volume although it answered with an error (INTERNAL after a
        time-out of its own). Then it refuses any other request, and only the first one helps.
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
        """The same with the request of the earlier call in the place of its own; None if none."""
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
        """The same after a final error of the driver."""
        return replace(self, stage=STAGE_FAILED)

    def copied(self) -> Self:
        """The same, known to stand in a ConfigMap too."""
        return replace(self, has_copy=True, is_copied=True)

    def with_store(self, store: JsonObject) -> Self:
        """The same with the progress of a backoff store (L-081)."""
        return replace(self, store=store)

    def answered(self) -> Self:
        """The same after the end of its call: nobody has to wait for its deadline."""
        return replace(self, deadline=NONE)

    def in_background(self) -> Self:
        """The same after an attempt whose end is not known."""
        return replace(self, stage=STAGE_BACKGROUND, is_copied=False)

    def saved(self) -> Self:
        """The same after its PV was saved, while an overtaken call may still run."""
        return replace(self, stage=STAGE_SAVED)

    def stranded(self, problem: str) -> Self:
        """The same once only an operator can help; `problem` says with what."""
        return replace(self, stage=STAGE_STRANDED, problem=problem, is_copied=False)


def deadlines_of(record: Mapping[str, Any] | None) -> tuple[Deadline, ...]:
    """`Intent.deadlines` of a stored record, whosever it is; none without one."""
    intent = Intent.from_record(record)
    return intent.deadlines if intent is not None else ()

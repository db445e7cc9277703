"""Turns a driver's report into what a claim's status holds, without I/O.

Source: external-health-monitor, pkg/csi-handler/pv_checker.go and health_status.go; KEP-1432.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from csi_client import messages as csi
from workers.translate.fields import Json, is_deleting, optional_mapping, text

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from workers.kube.objects import JsonObject

ABNORMAL: Final = "VolumeConditionAbnormal"
NORMAL: Final = "VolumeConditionNormal"
NORMAL_TEXT: Final = "The Volume returns to the healthy state"
UNKNOWN: Final = "UnknownVolumeHealthCondition"
UNKNOWN_TEXT: Final = (
    "The CSI driver reported volume health conditions of a type unknown to this monitor: "
)
NO_REASON: Final = "Unspecified"
"""The reason of an entry that has none; the API server refuses an empty one (VHD-003)."""
_REASON: Final = re.compile(r"[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?")
"""What the API server accepts as a reason; it refuses the whole status for another one."""
_NOT_IN_REASON: Final = re.compile(r"[^A-Za-z0-9_,:]")

MOST_CONDITIONS: Final = 16
"""The API server accepts no more conditions per claim."""
_MOST_REASON: Final = 256
_MOST_MESSAGE: Final = 1024
"""The API server accepts no more bytes of UTF-8."""
_MOST_TYPES: Final = 100
"""Types from this number on are counted together; a metric label must not have any value."""

_TYPES: Final = csi.VolumeHealthErrorType
_STATUSES: Final = {
    _TYPES.DATA_LOSS: "DataLoss",
    _TYPES.INACCESSIBLE: "Inaccessible",
    _TYPES.DEGRADED: "Degraded",
}


class Condition(NamedTuple):
    """One condition as the claim's status holds it."""

    status: str
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Report:
    """What a driver says about one volume.

    Attributes:
        conditions: the conditions, sorted; empty for a healthy volume.
        unknown: descriptions of entries whose type csi-fleet does not know, sorted; at most 16.
        unknown_types: the number of the type of each such entry, or "other" for a high one.
    """

    conditions: tuple[Condition, ...] = ()
    unknown: tuple[str, ...] = ()
    unknown_types: tuple[str, ...] = ()

    @property
    def is_healthy(self) -> bool:
        """Whether nothing is reported."""
        return not self.conditions and not self.unknown

    @property
    def digest(self) -> str:
        """A short hash by which a later poll recognizes the report; empty for a healthy one."""
        content = repr((self.conditions, self.unknown)).encode()
        return "" if self.is_healthy else hashlib.sha256(content).hexdigest()[:8]

    @property
    def summary(self) -> str:
        """Return the conditions as text for an event."""
        return "; ".join(
            one.message or f"{one.status} ({one.reason})" for one in self.conditions
        )  # a message alone is what the Go program wrote


class Owned(NamedTuple):
    """A bound volume of the driver, with its claim."""

    uid: str
    handle: str
    namespace: str
    name: str


def report_of(health: csi.VolumeHealth) -> Report:
    """Read the health of CSI 1.13 (VH-020..023)."""
    found: dict[tuple[str, str], Condition] = {}
    unknown: list[str] = []
    types: list[str] = []
    for entry in health.health_statuses:
        status = _STATUSES.get(entry.status)
        if status is None:
            where = f" (reason: {entry.reason})" if entry.reason else ""
            what = f": {entry.message}" if entry.message else ""
            unknown.append(_cut(f"{entry.status}{where}{what}", _MOST_MESSAGE))
            types.append(str(entry.status) if 0 <= entry.status < _MOST_TYPES else "other")
            continue
        reason = _REASON.search(_NOT_IN_REASON.sub("_", entry.reason)[:_MOST_REASON])
        one = Condition(
            status, reason[0] if reason else NO_REASON, _cut(entry.message, _MOST_MESSAGE)
        )
        found.setdefault(one[:2], one)
    worst = sorted(found.values(), key=lambda one: [*_STATUSES.values()].index(one.status))
    few = tuple(sorted(unknown)[:MOST_CONDITIONS])
    return Report(_sorted(worst[:MOST_CONDITIONS]), few, tuple(types))


def report_of_condition(condition: csi.VolumeCondition) -> Report:
    """Read the VolumeCondition of CSI 1.12 (VHD-010)."""
    if not condition.abnormal:
        return Report()
    return Report((Condition("Degraded", ABNORMAL, _cut(condition.message, _MOST_MESSAGE)),))


def stored(claim: Json) -> tuple[Condition, ...]:
    """Return the conditions in the claim's status, sorted."""
    health = optional_mapping(claim, "status", "healthStatus") or {}
    return _sorted(
        Condition(text(one, "status"), text(one, "reason"), text(one, "message"))
        for one in health.get("healthConditions") or ()
    )


def slim(claim: JsonObject) -> JsonObject:
    """Return the fields of a claim that a poll uses; a poll may keep thousands of claims."""
    metadata = claim["metadata"]
    names = ("namespace", "name", "uid", "resourceVersion")
    return {
        "metadata": {name: metadata[name] for name in names},
        "status": {"healthStatus": (claim.get("status") or {}).get("healthStatus")},
    }


def patch_of(conditions: Sequence[Condition], now: str) -> JsonObject:
    """Return the merge patch of the claim's status; no conditions remove the field (VH-030)."""
    found = [{name: value for name, value in one._asdict().items() if value} for one in conditions]
    health = {"healthConditions": found, "lastTransitionTime": now}
    return {"status": {"healthStatus": health if conditions else None}}


def owned(volumes: Iterable[Json], driver: str) -> list[Owned]:
    """Return the driver's Bound volumes that are not being deleted, sorted by claim (VH-010)."""
    found = []
    for one in volumes:
        source = optional_mapping(one, "spec", "csi")
        claim = optional_mapping(one, "spec", "claimRef")
        if source is None or claim is None or source.get("driver") != driver:
            continue
        handle = text(one, "spec", "csi", "volumeHandle")
        if not handle or is_deleting(one) or text(one, "status", "phase") != "Bound":
            continue
        uid, namespace, name = (text(claim, part) for part in ("uid", "namespace", "name"))
        found.append(Owned(uid, handle, namespace, name))
    return sorted(found)


def _cut(shown: str, most_bytes: int) -> str:
    return shown.encode()[:most_bytes].decode(errors="ignore")


def _sorted(conditions: Iterable[Condition]) -> tuple[Condition, ...]:
    return tuple(sorted(conditions))

"""Decides whether a claim's volume is expanded, and to which size (R-020 to R-034, R-090).

The functions do no I/O. Their decisions depend on the live claim and volume, the reconcile state
and the current time. While a call for one size may be in flight in the driver, no other size is
requested (I-2).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, TypeAlias

from workers.controllers.resizer.results import Result
from workers.controllers.resizer.words import Condition, Part
from workers.migration import plugins

if TYPE_CHECKING:
    from workers.controllers.resizer.claim import ClaimView, Size, VolumeView
    from workers.controllers.resizer.marks import Marks


class Resizer(Enum):
    """The ways in which a volume can be expanded (R-003)."""

    REAL = "real"  # ControllerExpandVolume
    TRIVIAL = "trivial"  # only the node expands
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Policy:
    """The settings on which the decision depends.

    Attributes:
        resizer: how volumes are expanded (R-003).
        recovers: whether the gate RecoverVolumeExpansionFailure is on; legacy mode if not (R-090).
        slow_seconds: the value of `--retry-interval-max`, which is also the pause after an
            infeasible size (R-034).
        exhausted_seconds: if the driver has refused a size three times with RESOURCE_EXHAUSTED, the
            time without a call after which the size may be reduced; None means never (MR-031).
    """

    resizer: Resizer = Resizer.REAL
    recovers: bool = True
    slow_seconds: float = 300.0
    exhausted_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Skip:
    """The decision not to expand or modify now.

    Attributes:
        reason: the reason, for logs and `explain`.
        delay_seconds: how long to wait before checking again; None means to wait for an event.
    """

    reason: str
    delay_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Expand:
    """The decision to expand to `target`.

    Attributes:
        is_new: whether the target differs from `allocatedResources` (R-035).
        is_legacy: whether to expand without the recovery states (R-090).
    """

    target: Size
    is_new: bool
    is_legacy: bool = False


Expansion: TypeAlias = Expand | Skip

_EXHAUSTED_ATTEMPTS = 3
# After one of these results no call can be in flight.
_SETTLED = frozenset({Result.FINAL, Result.INFEASIBLE, Result.UNSENT})


def is_ours(claim: ClaimView, volume: VolumeView, driver_name: str) -> bool:
    """Return True if the volume and the claim refer to each other and to this driver (R-021).

    Unlike in csi-resizer, an annotation cannot give a CSI volume to a different driver (DR-016).
    """
    if volume.claim_namespace != claim.namespace or volume.claim_uid != claim.uid:
        return False
    if volume.has_csi:
        return volume.csi_driver == driver_name
    return plugins.of_driver(driver_name) is not None and claim.resizer == driver_name


def drops_pre_resize(claim: ClaimView, volume: VolumeView) -> bool:
    """Return True if the node has expanded the volume, so the annotation can be removed (R-020/4).

    The annotation records the size that the volume had before the expansion.
    """
    return volume.pre_resize is not None and claim.actual.size_bytes >= volume.capacity.size_bytes


def expansion(
    claim: ClaimView, volume: VolumeView, marks: Marks, policy: Policy, now: float
) -> Expansion:
    """Decide whether to expand one of our volumes, and to which size (R-020/5 to R-020/7)."""
    if policy.resizer is Resizer.NONE:
        return Skip("the driver cannot expand volumes")
    if not claim.is_bound:
        return Skip(f"phase is {claim.phase or 'not set'}")
    if claim.wanted.size_bytes <= claim.actual.size_bytes:
        return Skip("large enough")
    if volume.is_deleting:
        return Skip("the volume is being deleted")
    if claim.is_deleting and not _may_run(claim, marks):
        return Skip("the claim is being deleted")  # starts nothing new (DR-022)
    if not policy.recovers:
        return _legacy(claim, volume)
    target = _target(claim, volume, marks, policy, now)
    if isinstance(target, Skip):
        return target
    is_new = claim.allocated is None or claim.allocated.size_bytes != target.size_bytes
    if claim.part == Part.CONTROLLER_INFEASIBLE and not is_new:
        call = marks.expansion_of(target.size_bytes)
        if call is not None and call.result is Result.INFEASIBLE:
            rest = call.at + policy.slow_seconds - now
            if 0 < rest <= policy.slow_seconds:
                return Skip(skipping(claim), rest)
    return Expand(target, is_new)


def skipping(claim: ClaimView) -> str:
    """Return the reason to show while an infeasible size is not being retried (R-034)."""
    return (
        f"skipping volume expansion for pvc {claim.path}, because expansion previously failed "
        "with infeasible error"
    )


def _may_run(claim: ClaimView, marks: Marks) -> bool:
    """Return True if a call for the allocated size may be in flight."""
    if claim.part != Part.CONTROLLER_IN_PROGRESS:
        return False
    call = marks.expansion_of(claim.allocated.size_bytes if claim.allocated else None)
    return call is None or call.result not in _SETTLED


def _target(
    claim: ClaimView, volume: VolumeView, marks: Marks, policy: Policy, now: float
) -> Size | Skip:
    allocated = claim.allocated or claim.wanted
    if volume.capacity.size_bytes < claim.wanted.size_bytes:
        if claim.part in {Part.NODE_PENDING, Part.NODE_IN_PROGRESS}:
            if volume.capacity.size_bytes >= allocated.size_bytes:
                return Skip("waits for the node to finish the part before")
            return allocated
        if claim.part == Part.NODE_INFEASIBLE:
            return allocated
        if _may_run(claim, marks) and not _is_exhausted(claim, marks, policy, now):
            return allocated
        return claim.wanted  # no call is assumed to be in flight
    if claim.part in {Part.NODE_PENDING, Part.NODE_IN_PROGRESS}:
        return Skip("waits for the node")
    if claim.part == Part.NODE_INFEASIBLE:
        return claim.wanted if policy.resizer is Resizer.TRIVIAL else allocated
    is_known = claim.part in {Part.CONTROLLER_IN_PROGRESS, Part.CONTROLLER_INFEASIBLE}
    if is_known or (not claim.part and claim.allocated is not None):
        return allocated
    if Condition.FILE_SYSTEM_PENDING in claim.conditions:
        return Skip("waits for the node")
    return claim.wanted  # R-033, last row: an old API server stores no states


def _is_exhausted(claim: ClaimView, marks: Marks, policy: Policy, now: float) -> bool:
    """Return True if RESOURCE_EXHAUSTED responses allow a smaller size (MR-031).

    There must be enough such responses, and no call may still be in flight.
    """
    if policy.exhausted_seconds is None or claim.allocated is None:
        return False
    call = marks.expansion_of(claim.allocated.size_bytes)
    return (
        call is not None
        and call.exhausted >= _EXHAUSTED_ATTEMPTS
        and claim.wanted.size_bytes < claim.allocated.size_bytes
        and now - call.at >= policy.exhausted_seconds
    )


def _legacy(claim: ClaimView, volume: VolumeView) -> Expansion:
    """Decide whether to expand, without the recovery states (R-090)."""
    is_pending = Condition.FILE_SYSTEM_PENDING in claim.conditions
    if volume.capacity.size_bytes >= claim.wanted.size_bytes and is_pending:
        return Skip("waits for the node")
    return Expand(claim.wanted, is_new=True, is_legacy=True)

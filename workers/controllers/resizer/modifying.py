"""Decides whether to apply a different class to a claim's volume (R-100 to R-115).

The functions do no I/O. Their decisions depend on the live claim, the reconcile state and the
current time. No other class is requested while the driver may still be applying one (I-2). The
driver may also be executing a dead worker's call; such a call can still be in flight after a later
call has ended (MR-010).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from workers.controllers.resizer.decide import Skip
from workers.controllers.resizer.results import Result
from workers.controllers.resizer.words import Condition, ModifyState

if TYPE_CHECKING:
    from collections.abc import Mapping

    from workers.controllers.resizer.claim import ClaimView, VolumeView
    from workers.controllers.resizer.marks import Marks


@dataclass(frozen=True, slots=True)
class Modify:
    """The decision to apply `class_name`.

    Attributes:
        is_again: whether `modifyVolumeStatus` already names the class. If so, its modification may
            be in progress, and nothing is written before the call (R-103).
    """

    class_name: str
    is_again: bool


@dataclass(frozen=True, slots=True)
class Cancel:
    """The decision to clean up: the user withdrew the class before it was applied (R-105)."""


Modification: TypeAlias = Modify | Cancel | Skip


def modification(
    claim: ClaimView,
    volume: VolumeView,
    marks: Marks,
    *,
    driver_name: str,
    slow_seconds: float,
    now: float,
    overtaken_seconds: float,
) -> Modification:
    """Decide whether to change one of our volumes, and to which class (R-100)."""
    if volume.csi_driver != driver_name:
        return Skip("not a csi volume of the driver")
    if not claim.is_bound:
        return Skip(f"phase is {claim.phase or 'not set'}")
    if volume.is_deleting:
        return Skip("the volume is being deleted")
    may_run = claim.modify_state == ModifyState.IN_PROGRESS and _may_run(claim, marks)
    if claim.is_deleting and not may_run:
        return Skip("the claim is being deleted")  # starts nothing new (DR-022)
    if claim.modify_state is None and claim.wanted_class == claim.current_class:
        return Skip("the class is applied")
    rest = _rest(claim, marks, slow_seconds, now)
    if rest > 0:
        return Skip(skipping(claim), rest)
    if not claim.wanted_class and claim.modify_state != ModifyState.IN_PROGRESS:
        if _is_rolled_back(claim):
            return Skip("the class was taken back")
        return Cancel()
    if claim.modify_state == ModifyState.IN_PROGRESS and (may_run or not claim.wanted_class):
        found = Modify(claim.modify_target, is_again=True)
    else:
        found = Modify(claim.wanted_class, is_again=False)
    # The same class is requested without waiting, because repeated and reordered calls have the
    # same result.
    if marks.modification_of(found.class_name) is None and overtaken_seconds:
        return Skip("an overtaken call for another class may still be running", overtaken_seconds)
    return found


def skipping(claim: ClaimView) -> str:
    """Return the reason to show while an infeasible class is not being retried (R-114)."""
    return (
        f"skipping volume modification for pvc {claim.path}, because modification previously "
        "failed with infeasible error"
    )


def parameters(
    attributes_class: Mapping[str, str],
    claim: ClaimView,
    volume: VolumeView,
    *,
    with_metadata: bool,
) -> dict[str, str]:
    """Return the mutable parameters for the request (R-104); `attributes_class` is not modified."""
    found = dict(attributes_class)
    if with_metadata:
        found["csi.storage.k8s.io/pvc/name"] = claim.name
        found["csi.storage.k8s.io/pvc/namespace"] = claim.namespace
        found["csi.storage.k8s.io/pv/name"] = volume.name
    return found


def _may_run(claim: ClaimView, marks: Marks) -> bool:
    """Return True if a call for the class may be in flight (R-101, MR-021).

    This is also assumed if no result is recorded.
    """
    call = marks.modification_of(claim.modify_target)
    return call is None or call.result is Result.UNCERTAIN


def _rest(claim: ClaimView, marks: Marks, slow_seconds: float, now: float) -> float:
    """Return the seconds until an infeasible class may be requested again (R-114, DR-023)."""
    if claim.modify_state != ModifyState.INFEASIBLE or claim.wanted_class != claim.modify_target:
        return 0.0
    call = marks.modification_of(claim.modify_target)
    if call is None or call.result is not Result.INFEASIBLE:
        return 0.0
    rest = call.at + slow_seconds - now
    return rest if rest <= slow_seconds else 0.0


def _is_rolled_back(claim: ClaimView) -> bool:
    """Return True if no condition is left to clear (DR-024)."""
    return not claim.conditions & {Condition.MODIFYING, Condition.MODIFY_ERROR}

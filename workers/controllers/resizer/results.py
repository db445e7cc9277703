"""Classifies the result of a call to the driver for the requested size or class (R-050)."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Final

from csi_client import errors

if TYPE_CHECKING:
    from csi_client.errors import CsiError


class Result(StrEnum):
    """The result of the last call for one target.

    OK: the call succeeded. UNCERTAIN: the call may be in flight, so the same target is requested
    again. FINAL: the call failed and has ended, so a different target may follow. INFEASIBLE: the
    call failed and has ended, and the same target cannot succeed for now. UNSENT: no call has been
    made since the target was recorded (MR-032).
    """

    OK = "ok"
    UNCERTAIN = "uncertain"
    FINAL = "final"
    INFEASIBLE = "infeasible"
    UNSENT = "unsent"

    @property
    def may_run(self) -> bool:
        """True if a call for the target may be in flight."""
        return self is Result.UNCERTAIN


_INFEASIBLE: Final = frozenset({errors.INVALID_ARGUMENT, errors.OUT_OF_RANGE, errors.NOT_FOUND})


def is_uncertain(error: CsiError) -> bool:
    """Return True if the call may be in flight (R-050, R-111).

    In addition to the codes of R-050, this includes unreadable responses and broken streams:
    whatever code the transport reports for them, it says nothing about the storage system.
    """
    return not error.is_final or error.code == errors.RESOURCE_EXHAUSTED


def expand_result(error: CsiError) -> Result:
    """Classify the error from a failed ControllerExpandVolume."""
    if is_uncertain(error):
        return Result.UNCERTAIN
    return Result.INFEASIBLE if error.code in _INFEASIBLE else Result.FINAL


def modify_result(error: CsiError) -> Result:
    """Classify a failed ControllerModifyVolume; only INVALID_ARGUMENT is infeasible."""
    if is_uncertain(error):
        return Result.UNCERTAIN
    return Result.INFEASIBLE if error.code == errors.INVALID_ARGUMENT else Result.FINAL


def is_in_use(error: CsiError) -> bool:
    """Return True if the driver refused because the volume is published (R-050, R-083)."""
    return error.code == errors.FAILED_PRECONDITION and not error.from_transport

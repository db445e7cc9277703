"""What does the end of a driver call mean for the size or class that was asked for (R-050)?"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Final

from csi_client import errors

if TYPE_CHECKING:
    from csi_client.errors import CsiError


class Result(StrEnum):
    """What is known of the last call for one target.

    OK: done. UNCERTAIN: it may still run, so the same target is asked for again. FINAL: it failed
    for good, another target may follow. INFEASIBLE: final, and the same target is hopeless for now.
    UNSENT: nothing reached the driver since the target was written down (MR-032).
    """

    OK = "ok"
    UNCERTAIN = "uncertain"
    FINAL = "final"
    INFEASIBLE = "infeasible"
    UNSENT = "unsent"

    @property
    def may_run(self) -> bool:
        """Whether a call for the target may still be at work."""
        return self is Result.UNCERTAIN


_INFEASIBLE: Final = frozenset({errors.INVALID_ARGUMENT, errors.OUT_OF_RANGE, errors.NOT_FOUND})


def is_uncertain(error: CsiError) -> bool:
    """Whether the call may still run (R-050, R-111).

    Beyond the codes of R-050: an answer that could not be read, and a stream that broke under the
    call, say nothing about the storage whatever code the transport gave them.
    """
    return not error.is_final or error.code == errors.RESOURCE_EXHAUSTED


def expand_result(error: CsiError) -> Result:
    """The class of a failed ControllerExpandVolume."""
    if is_uncertain(error):
        return Result.UNCERTAIN
    return Result.INFEASIBLE if error.code in _INFEASIBLE else Result.FINAL


def modify_result(error: CsiError) -> Result:
    """The class of a failed ControllerModifyVolume; only INVALID_ARGUMENT is infeasible."""
    if is_uncertain(error):
        return Result.UNCERTAIN
    return Result.INFEASIBLE if error.code == errors.INVALID_ARGUMENT else Result.FINAL


def is_in_use(error: CsiError) -> bool:
    """Whether the driver refuses because the volume is published (R-050, R-083)."""
    return error.code == errors.FAILED_PRECONDITION and not error.from_transport

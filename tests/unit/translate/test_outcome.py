"""What the storage may still be doing after CreateVolume failed."""

from __future__ import annotations

import pytest

from workers.errors import State
from workers.translate.outcome import create_volume_state

CODES = {
    "Canceled": 1, "Unknown": 2, "InvalidArgument": 3, "DeadlineExceeded": 4, "NotFound": 5,
    "AlreadyExists": 6, "PermissionDenied": 7, "ResourceExhausted": 8, "FailedPrecondition": 9,
    "Aborted": 10, "OutOfRange": 11, "Unimplemented": 12, "Internal": 13, "Unavailable": 14,
    "DataLoss": 15, "Unauthenticated": 16, "Code(99)": 99,
}  # fmt: skip
MAY_RUN = {"Canceled", "DeadlineExceeded", "Unavailable", "Aborted"}


def expected(name, topology, node):
    if name in MAY_RUN:
        return State.BACKGROUND
    if name == "ResourceExhausted" and topology and node:
        return State.RESCHEDULE
    return State.FINISHED


@pytest.mark.parametrize(
    ("name", "topology", "node"),
    [
        pytest.param(name, topology, node, id=f"T-055 C-049 {name} topology={topology} node={node}")
        for name in CODES
        for topology in (True, False)
        for node in (True, False)
    ],
)
def test_classification(name, topology, node):
    """P-410, C-049: only (topology, node, ResourceExhausted) reschedules."""
    state = create_volume_state(CODES[name], may_reschedule=topology and node)
    assert state is expected(name, topology, node)


@pytest.mark.parametrize("may_reschedule", [True, False])
def test_t055_error_without_status_may_be_running(may_reschedule):
    assert create_volume_state(None, may_reschedule=may_reschedule) is State.BACKGROUND

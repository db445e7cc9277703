"""How long did a user wait? The figures behind `csi_fleet_claim_to_volume_seconds`."""

from __future__ import annotations

import pytest

from workers.controllers.provisioner.measure import creation

STAMP, SECOND = "2026-01-02T03:04:05Z", 1767323045.0


@pytest.mark.parametrize(
    ("noticed", "begun"),
    [
        pytest.param(SECOND + 0.9, SECOND + 0.9, id="within the second of the stamp: at once"),
        pytest.param(SECOND + 9, SECOND + 1, id="noticed late: the waiting counts"),
        pytest.param(SECOND - 3, SECOND, id="our clock is behind"),
    ],
)
def test_a_claim_is_as_old_as_stamp_and_arrival_allow(noticed, begun):
    """By the stamp alone a claim of 50 ms would count as half a second on the average."""
    assert creation(STAMP, noticed) == begun


def test_no_stamp_is_no_time():
    with pytest.raises(ValueError, match="does not match"):
        creation("", 1.0)

"""Node deployment: the gate, the wait and the race (T-150 to T-156, C-128 to C-136)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.nodemode.ownership import (
    Gate,
    Race,
    is_enough,
    node_gate,
    owner_delay_seconds,
    race,
)

IMMEDIATE = {"volumeBindingMode": "Immediate"}
LATE = {"volumeBindingMode": "WaitForFirstConsumer"}
ALLOWED = IMMEDIATE | {"allowedTopologies": [{}]}


def claim(node=None, uid="u"):
    annotations = None if node is None else {"volume.kubernetes.io/selected-node": node}
    return {"metadata": {"uid": uid, "annotations": annotations}}


def gate(found, storage_class, *, flag=True, allowed=True):
    return node_gate(
        found, storage_class, "foo", immediate_binding=flag, is_allowed=lambda: allowed
    )


@pytest.mark.parametrize(
    ("found", "storage_class", "options", "expected"),
    [
        pytest.param(claim("foo"), LATE, {}, Gate.OWNED, id="T-150 C-128 own node late"),
        pytest.param(claim("foo"), IMMEDIATE, {}, Gate.OWNED, id="T-150 C-128 own node immediate"),
        pytest.param(claim("bar"), IMMEDIATE, {}, Gate.NOT_OWNED, id="T-151 C-128 other node"),
        pytest.param(claim(), LATE, {}, Gate.NOT_OWNED, id="C-128 none and late"),
        pytest.param(claim(), {}, {}, Gate.NOT_OWNED, id="T-152 class without binding mode"),
        pytest.param(claim(), IMMEDIATE, {}, Gate.ELECT, id="T-153 C-129 none and immediate"),
        pytest.param(claim(""), IMMEDIATE, {}, Gate.ELECT, id="empty annotation"),
        pytest.param(claim(), IMMEDIATE, {"flag": False}, Gate.NOT_OWNED, id="recorded nodedep-05"),
        pytest.param(claim(), ALLOWED, {}, Gate.ELECT, id="T-155 C-131 our node allowed"),
        pytest.param(
            claim(), ALLOWED, {"allowed": False}, Gate.NOT_OWNED, id="T-155 C-131 not allowed"
        ),
        pytest.param(
            claim(), IMMEDIATE, {"allowed": False}, Gate.ELECT, id="not asked without topologies"
        ),
    ],
)
def test_gate(found, storage_class, options, expected):
    """P-052, P-053, ND-003: the claim, its class and the options decide."""
    assert gate(found, storage_class, **options) is expected


@pytest.mark.parametrize(
    ("current", "expected"),
    [
        pytest.param(claim(), Race.OPEN, id="T-156 nobody yet"),
        pytest.param(claim("foo"), Race.OURS, id="own node already set"),
        pytest.param(claim("bar"), Race.TAKEN, id="C-132 C-133 another node"),
        pytest.param(claim(uid="v"), Race.REPLACED, id="C-134 replaced"),
        pytest.param(claim("foo", uid="v"), Race.REPLACED, id="C-134 replaced and ours"),
        pytest.param(None, Race.GONE, id="C-134 deleted"),
    ],
)
def test_race(current, expected):
    """P-054 steps 2 and 4: the current claim decides whether this node has won."""
    assert race("u", current, "foo") is expected


@pytest.mark.parametrize(
    ("requested", "available", "expected"),
    [
        pytest.param(100, [100], True, id="T-153 C-129 just enough"),
        pytest.param(100, [99], False, id="T-154 C-130 one byte too little"),
        pytest.param(100, [1, 200], True, id="any topology"),
        pytest.param(100, [], False, id="no answer"),
        pytest.param(0, [], True, id="zero needs no question"),
    ],
)
def test_is_enough(requested, available, expected):
    """P-060, ND-006: one sufficient capacity is enough."""
    assert is_enough(requested, available) is expected


def test_is_enough_stops_asking_at_the_first_yes():
    """Each number costs a call to the driver."""
    answers = iter([5, 6])
    assert is_enough(5, answers)
    assert next(answers) == 6


@pytest.mark.parametrize(
    ("attempts", "draw", "expected"),
    [
        pytest.param(0, 0.0, 20.0, id="first, longest"),
        pytest.param(0, 0.75, 5.0, id="first"),
        pytest.param(1, 0.5, 30.0, id="doubled"),
        pytest.param(5, 0.0, 60.0, id="capped"),
        pytest.param(5, 0.5, 50.0, id="jitter below the cap"),
        pytest.param(10**6, 0.0, 60.0, id="many attempts"),
    ],
)
def test_owner_delay(attempts, draw, expected):
    """ND-004: the base is 20 s and the cap is 60 s."""
    assert owner_delay_seconds(20, 60, attempts, lambda: draw) == expected


def test_c136_hundred_draws_stay_within_bounds():
    """C-136: the test uses the real random source."""
    first = [owner_delay_seconds(20, 60, 0) for _ in range(100)]
    assert all(0 < delay <= 20 for delay in first)
    assert len(set(first)) > 1
    assert all(0 <= owner_delay_seconds(20, 60, n) <= 60 for n in range(100))


@given(
    st.floats(0, 1e6),
    st.floats(0, 1e6),
    st.integers(0, 5000),
    st.floats(0, 1, exclude_max=True),
)
def test_owner_delay_is_never_negative_nor_above_the_cap(base, cap, attempts, draw):
    """ND-004: this holds even if the cap is below the base."""
    assert 0 <= owner_delay_seconds(base, cap, attempts, lambda: draw) <= cap

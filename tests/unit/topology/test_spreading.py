"""The start index of immediate binding must equal csi-provisioner's, bit by bit."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.topology.spreading import fnv1_32, split_name, start_index


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("testset", 1633848515),
        ("testpvc", 1684622678),
        ("web", 1181096325),
        ("data", 1959470013),
        ("pvc", 964120306),
        ("", 2166136261),
    ],
)
def test_hash_fixed_points(text, expected):
    """P-325: these are the check values of the specification."""
    assert fnv1_32(text) == expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        pytest.param("testpvc", ("testpvc", 0), id="no dash"),
        pytest.param("my-data", ("my-data", 0), id="no number keeps the whole name"),
        pytest.param("testset-2", ("testset", 2), id="one dash"),
        pytest.param("testpvcA-testset-1", ("testset", 1), id="claim template and set"),
        pytest.param("x-y-007", ("y", 7), id="leading zeros"),
        pytest.param("data-2024", ("data", 2024), id="D-027 any trailing number"),
        pytest.param("a-4294967295", ("a", 4294967295), id="largest ordinal"),
        pytest.param("a-4294967296", ("a-4294967296", 0), id="does not fit 32 bits"),
        pytest.param("a-" + "0" * 60 + "5", ("a", 5), id="many leading zeros"),
        pytest.param("a-" + "9" * 200, ("a-" + "9" * 200, 0), id="very long number"),
        pytest.param("a-+1", ("a-+1", 0), id="sign"),
        pytest.param("a-", ("a-", 0), id="nothing after the dash"),
        pytest.param("a-\u0663", ("a-\u0663", 0), id="digit of another script"),
        pytest.param("7", ("7", 0), id="number without dash"),
        pytest.param("-7", ("", 7), id="nothing before the dash"),
    ],
)
def test_split_name(name, expected):
    """P-325 steps 1 and 2: the name is split into the part to hash and the ordinal."""
    assert split_name(name) == expected


@pytest.mark.parametrize(
    ("name", "count", "expected"),
    [
        pytest.param("testpvcA-testset-1", 4, 0, id="T-122 first"),
        pytest.param("testset-2", 4, 1, id="T-122 second"),
        pytest.param("testpvc-testset-3", 4, 2, id="T-122 third"),
        pytest.param("testpvc-testset-4", 4, 3, id="T-122 fourth"),
        pytest.param("testpvc", 3, 2, id="T-123"),
        pytest.param("data-web-0", 4, 1, id="recorded topo-hash-5"),
        pytest.param("x-y-007", 4, 1, id="recorded topo-hash-7"),
        pytest.param("web-1", 3, 1, id="recorded topo-24"),
    ],
)
def test_start_index(name, count, expected):
    """P-325 step 4: the sum of hash and ordinal, modulo the number of terms."""
    assert start_index(name, count) == expected


@given(st.text(alphabet="abc-", max_size=8), st.integers(0, 2**32 - 2), st.integers(1, 50))
def test_neighbours_of_a_set_take_neighbouring_terms(prefix, ordinal, count):
    """P-325: ordinals n and n + 1 differ by one term, except where the 32-bit sum wraps."""
    first = start_index(f"{prefix}-web-{ordinal}", count)
    second = start_index(f"{prefix}-web-{ordinal + 1}", count)
    assert second == (first + 1) % count or fnv1_32("web") + ordinal + 1 == 2**32


@given(st.from_regex(r"[a-z]{1,6}", fullmatch=True), st.integers(0, 999), st.integers(1, 50))
def test_claims_of_one_pod_meet(name, ordinal, count):
    """P-325: the part before the set's name does not count."""
    data, logs = f"data-{name}-{ordinal}", f"logs-{name}-{ordinal}"
    assert start_index(data, count) == start_index(logs, count)

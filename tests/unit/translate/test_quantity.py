"""Kubernetes quantities: the whole grammar, exact arithmetic, canonical text."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.errors import AttemptError, State
from workers.translate.quantity import MAX_BYTES, QuantityError, canonical, parse


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("0", 0),
        ("1", 1),
        ("+1", 1),
        ("-1", -1),
        ("1500m", 2),
        ("-1500m", -2),
        ("1n", 1),
        ("1u", 1),
        ("1000000000n", 1),
        ("2000000u", 2),
        ("1k", 10**3),
        ("1M", 10**6),
        ("5G", 5 * 10**9),
        ("1T", 10**12),
        ("1P", 10**15),
        ("9E", 9 * 10**18),
        ("1Ki", 2**10),
        ("1Mi", 2**20),
        ("1Gi", 2**30),
        ("1.5Gi", 1610612736),
        ("1Ti", 2**40),
        ("1Pi", 2**50),
        ("7Ei", 7 * 2**60),
        ("1.", 1),
        (".5Ki", 512),
        ("0.1Ki", 103),
        ("1e3", 1000),
        ("1E3", 1000),
        ("1e+3", 1000),
        ("1500e-3", 2),
        ("1e-9999999999", 1),
        ("0e9999999999", 0),
        ("0.000000000000000001Ei", 2),
        (f"{MAX_BYTES}", MAX_BYTES),
        (123, 123),
    ],
)
def test_quantity_means_bytes_rounded_up(text, size_bytes):
    """P-138: rounding never makes the volume smaller than requested."""
    assert parse(text) == size_bytes


@pytest.mark.parametrize(
    "text",
    [
        "", " ", "1 ", " 1", "Gi", ".", "-", "1.2.3", "1K", "1ki", "1KI", "1gi", "1mi", "1ei", "1e",
        "1E+", "1e1.5", "1e3Gi", "0x10", "1_000", "1,5Gi", "\u0661Gi", "1Gi\n", "NaN", "Infinity",
        "1" * 300, "9" * 5000, None, True, 1.5, [], {},
    ],
)  # fmt: skip
def test_what_is_no_quantity_is_refused_clearly(text):
    """A malformed size raises AttemptError, never ValueError, and does not block the worker."""
    with pytest.raises(AttemptError, match=r"^quantity ") as caught:
        parse(text)
    assert caught.value.state is State.NO_CHANGE
    assert len(caught.value.message) < 200


@pytest.mark.parametrize("text", ["8Ei", "10E", "9223372036854775808", "1e19", "1e9999999", 2**63])
def test_sizes_beyond_63_bits_are_refused(text):
    """csi-provisioner silently caps them and then requests another size than the user."""
    with pytest.raises(QuantityError, match=f"larger than {MAX_BYTES} bytes"):
        parse(text)


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [
        (0, "0"),
        (100, "100"),
        (999, "999"),
        (1000, "1k"),
        (1001, "1001"),
        (1023, "1023"),
        (1024, "1Ki"),
        (1073741824, "1Gi"),
        (1610612736, "1536Mi"),
        (1000000, "1000000"),
        (2000000000, "1953125Ki"),
        (1073741825, "1073741825"),
        (2**60, "1Ei"),
        (MAX_BYTES, "9223372036854775807"),
    ],
)
def test_bytes_are_written_in_binary_canonical_form(size_bytes, text):
    """P-172: the API server stores exactly this form."""
    assert canonical(size_bytes) == text


@pytest.mark.parametrize("size_bytes", [-1, MAX_BYTES + 1])
def test_sizes_a_volume_cannot_have_are_refused(size_bytes):
    with pytest.raises(QuantityError, match="outside"):
        canonical(size_bytes)


@given(st.integers(0, MAX_BYTES) | st.integers(0, 2**33).map(lambda units: units * 2**30))
def test_canonical_text_reads_back_as_the_same_size(size_bytes):
    """Whatever size a driver returns, the PV states exactly that size."""
    assert parse(canonical(min(size_bytes, MAX_BYTES))) == min(size_bytes, MAX_BYTES)


@given(
    st.integers(0, 10**6),
    st.integers(0, 999),
    st.sampled_from(["Ki", "Mi", "Gi", "k", "M", "G", "", "m"]),
)
def test_decimal_fractions_are_never_rounded_down(whole, thousandths, suffix):
    unit = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "k": 10**3, "M": 10**6, "G": 10**9, "": 1}
    parsed = parse(f"{whole}.{thousandths:03}{suffix}")
    scaled = whole * 1000 + thousandths
    if suffix == "m":
        assert (parsed - 1) * 1_000_000 < scaled <= parsed * 1_000_000
    else:
        assert (parsed - 1) * 1000 < scaled * unit[suffix] <= parsed * 1000


@given(st.text(max_size=40) | st.from_regex(r"[+-]?[0-9.]{1,12}[numkMGTPEKi]{0,3}", fullmatch=True))
def test_any_text_gives_a_number_or_an_attempt_error(text):
    with contextlib.suppress(AttemptError):
        assert abs(parse(text)) <= MAX_BYTES

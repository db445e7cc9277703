"""Values are parsed as Go parses them."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.config import flagvalues


@pytest.mark.parametrize(("text", "seconds"), [
    ("0", 0), ("-0", 0), ("5s", 5), ("1h30m", 5400), ("1h15m30.918273645s", 4530.918273645),
    ("1.5h", 5400), (".5s", 0.5), ("1.s", 1), ("100ns", 1e-7), ("3us", 3e-6), ("3µs", 3e-6),
    ("3μs", 3e-6), ("12ms", 0.012), ("-2m", -120), ("+2m", 120), ("2m1m", 180),
    ("9223372036s", 9223372036),
])  # fmt: skip
def test_duration(text, seconds):
    assert flagvalues.parse_duration(text) == pytest.approx(seconds, abs=1e-9)


@pytest.mark.parametrize(("text", "message"), [
    ("", "invalid duration"), ("3", "missing unit"), ("-", "invalid duration"),
    ("s", "invalid duration"), (".s", "invalid duration"), ("1d", 'unknown unit "d"'),
    ("1 s", "unknown unit"), (" 1s", "invalid duration"), ("1S", 'unknown unit "S"'),
    ("\u0661s", "invalid duration"), ("1h-2m", "unknown unit"), ("9223372037s", "invalid duration"),
    ("1.2.3s", "missing unit"),
])  # fmt: skip
def test_bad_duration(text, message):
    with pytest.raises(ValueError, match=message):
        flagvalues.parse_duration(text)


@given(st.integers(0, 2**62))
def test_duration_of_whole_units_is_the_sum_of_its_parts(nanoseconds):
    hours, rest = divmod(nanoseconds, 3600 * 10**9)
    seconds, rest = divmod(rest, 10**9)
    text = f"{hours}h{seconds}s{rest}ns"
    assert flagvalues.parse_duration(text) == pytest.approx(nanoseconds / 1e9, rel=1e-15)


@given(st.text(max_size=12))
def test_parsers_know_only_value_errors(text):
    for parser in (
        flagvalues.parse_duration, flagvalues.parse_int, flagvalues.parse_uint,
        flagvalues.parse_float, flagvalues.parse_bool, flagvalues.parse_labels,
        flagvalues.parse_gates, flagvalues.parse_quantity, flagvalues.parse_vmodule,
        flagvalues.parse_keys, flagvalues.parse_listen_address,
    ):  # fmt: skip
        with contextlib.suppress(ValueError):
            parser(text)


@pytest.mark.parametrize(("text", "number"), [
    ("0", 0), ("10", 10), ("-1", -1), ("+7", 7), ("0x1F", 31), ("0b101", 5), ("0o17", 15),
    ("017", 15), ("1_000", 1000), ("-0x10", -16), ("9223372036854775807", 2**63 - 1),
])  # fmt: skip
def test_int(text, number):
    assert flagvalues.parse_int(text) == number


@pytest.mark.parametrize("text", ["", " 1", "1 ", "1.0", "0x", "08", "1__0", "_1", "٣", "1e3"])
def test_bad_int(text):
    with pytest.raises(ValueError, match="invalid syntax"):
        flagvalues.parse_int(text)


def test_int_beyond_64_bits():
    with pytest.raises(ValueError, match="value out of range"):
        flagvalues.parse_int("9223372036854775808")
    assert flagvalues.parse_uint("18446744073709551615") == 2**64 - 1


@pytest.mark.parametrize("text", ["1", "t", "T", "TRUE", "true", "True"])
def test_true(text):
    assert flagvalues.parse_bool(text) is True
    assert flagvalues.parse_bool({"1": "0"}.get(text, "false")) is False


@pytest.mark.parametrize("text", ["yes", "on", "tRUE", "", " true"])
def test_no_bool(text):
    with pytest.raises(ValueError, match=r"strconv\.ParseBool"):
        flagvalues.parse_bool(text)


@pytest.mark.parametrize(("text", "address"), [
    (":8080", ("", 8080)), ("localhost:1", ("localhost", 1)), ("[::1]:8080", ("::1", 8080)),
    ("0.0.0.0:0", ("0.0.0.0", 0)),
])  # fmt: skip
def test_listen_address(text, address):
    assert flagvalues.parse_listen_address(text) == address


@pytest.mark.parametrize("text", ["8080", "", "::1:80", "a:http", "a:65536", "a:-1", "a:"])
def test_bad_listen_address(text):
    with pytest.raises(ValueError, match="address"):
        flagvalues.parse_listen_address(text)


@pytest.mark.parametrize(("text", "keys"), [
    ("", ()), ("team", ("team",)), ("b,a,b", ("b", "a")), (" a , x.y/b_c.d ,", ("a", "x.y/b_c.d")),
])  # fmt: skip
def test_keys(text, keys):
    assert flagvalues.parse_keys(text) == keys


@pytest.mark.parametrize("text", [
    "-a", "a-", "a b", "/a", "a/", "x/y/z", "X.y/a", ".x/a", "ä", "*", "x.y/*", "a" * 64,
    "a" * 254 + "/b", "a\nb",
])  # fmt: skip
def test_what_is_no_key_of_a_label(text):
    with pytest.raises(ValueError, match="is not the key of a label or annotation"):
        flagvalues.parse_keys(f"good,{text}")

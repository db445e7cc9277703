"""Parses flag values as Go programs do, with one pure function per kind of value.

Every function raises `ValueError` with the message of Go's own parser, because users search for
that message. The grammars are those of strconv, time and component-base, not Python's: `1h30m` is a
duration, `t` is true, `0x10` is sixteen and ` 1` is an error.
"""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Final

_TRUE: Final = frozenset({"1", "t", "T", "TRUE", "true", "True"})
_FALSE: Final = frozenset({"0", "f", "F", "FALSE", "false", "False"})

# Go's time.Duration is a signed 64-bit count of nanoseconds.
_UNIT_NANOSECONDS: Final = {
    "ns": 1,
    "us": 10**3,
    "\u00b5s": 10**3,  # micro sign
    "\u03bcs": 10**3,  # Greek letter mu
    "ms": 10**6,
    "s": 10**9,
    "m": 60 * 10**9,
    "h": 3600 * 10**9,
}
_INT64_MAX: Final = 2**63 - 1
_DURATION_PART: Final = re.compile(r"([0-9]*)(\.[0-9]*)?([^0-9.]*)")
_INTEGER: Final = re.compile(
    r"[+-]?(0[xX](_?[0-9a-fA-F])+|0[bB](_?[01])+|0[oO]?(_?[0-7])+|0|[1-9](_?[0-9])*)"
)
_DECIMAL: Final = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
_KEY_NAME: Final = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_DOMAIN: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_QUANTITY: Final = re.compile(
    r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)(([numkMGTPE]|[KMGTPE]i)?|[eE][+-]?[0-9]+)"
)


def parse_bool(text: str) -> bool:
    """Read a boolean as strconv.ParseBool does.

    Raises:
        ValueError: the string is not one of 1 t T TRUE true True 0 f F FALSE false False.
    """
    if text in _TRUE:
        return True
    if text in _FALSE:
        return False
    raise ValueError(f'strconv.ParseBool: parsing "{text}": invalid syntax')


def parse_duration(text: str) -> float:
    """Read a Go duration; return it in seconds.

    `1h30m` -> 5400.0, `500ms` -> 0.5, `0` -> 0.0, `-1.5s` -> -1.5. The number is exact to the
    nanosecond, and Go's range (about 292 years) applies.

    Raises:
        ValueError: there is no number, no unit or an unknown unit, or the value is out of range.
    """
    sign = -1 if text.startswith("-") else 1
    rest = text[1:] if text[:1] in {"+", "-"} else text
    if rest == "0":
        return 0.0
    if not rest:
        raise ValueError(f'time: invalid duration "{text}"')
    nanoseconds = Decimal(0)
    while rest:
        match = _DURATION_PART.match(rest)
        number, fraction, unit = match.groups() if match else ("", None, "")
        digits = number + (fraction or "")
        if digits in {"", "."}:
            raise ValueError(f'time: invalid duration "{text}"')
        if not unit:
            raise ValueError(f'time: missing unit in duration "{text}"')
        if unit not in _UNIT_NANOSECONDS:
            raise ValueError(f'time: unknown unit "{unit}" in duration "{text}"')
        nanoseconds += int(Decimal(digits) * _UNIT_NANOSECONDS[unit])
        rest = rest[len(digits) + len(unit) :]
    if nanoseconds > _INT64_MAX:
        raise ValueError(f'time: invalid duration "{text}"')
    return sign * float(nanoseconds / 10**9)


def parse_int(text: str) -> int:
    """Read a signed integer as strconv.ParseInt(text, 0, 64) does: `10`, `0x1f`, `017`, `1_000`.

    Raises:
        ValueError: the string is not an integer, or does not fit in 64 bits.
    """
    return _integer("ParseInt", text, -(2**63), _INT64_MAX)


def parse_uint(text: str) -> int:
    """Read an unsigned integer as strconv.ParseUint(text, 0, 64) does.

    Raises:
        ValueError: the string has a sign, is not an integer, or does not fit in 64 bits.
    """
    if text[:1] in {"+", "-"}:
        raise ValueError(f'strconv.ParseUint: parsing "{text}": invalid syntax')
    return _integer("ParseUint", text, 0, 2**64 - 1)


def parse_float(text: str) -> float:
    """Read a decimal number, such as `5`, `2.5` or `1e3`.

    Raises:
        ValueError: the string is not a decimal number. Go's `inf`, `nan` and hexadecimal floats
            are refused, because no flag needs them.
    """
    if not _DECIMAL.fullmatch(text):
        raise ValueError(f'strconv.ParseFloat: parsing "{text}": invalid syntax')
    return float(text)


def parse_labels(text: str) -> dict[str, str]:
    """Read `k1:v1,k2:v2` (`--leader-election-labels`).

    Raises:
        ValueError: an item does not have exactly one colon, or the string is empty.
    """
    labels: dict[str, str] = {}
    for item in text.split(","):
        parts = item.split(":")
        if len(parts) != 2:
            raise ValueError(f"malformed item in list of labels: {item}")
        labels[parts[0]] = parts[1]
    return labels


def parse_keys(text: str) -> tuple[str, ...]:
    """Read `key,example.org/key`, the keys of labels or annotations; empty items are skipped.

    Raises:
        ValueError: an item is not a key that Kubernetes allows.
    """
    keys = tuple(dict.fromkeys(filter(None, map(str.strip, text.split(",")))))
    for key in keys:
        prefix, slash, name = key.rpartition("/")
        is_prefix = bool(_DOMAIN.fullmatch(prefix)) and len(prefix) <= 253
        if not _KEY_NAME.fullmatch(name) or bool(slash) != is_prefix:
            raise ValueError(
                f"{key!r} is not the key of a label or annotation, such as team or example.org/team"
            )
    return keys


def parse_gates(text: str) -> dict[str, bool]:
    """Read `Name=bool,Name=bool` (`--feature-gates`); empty items are skipped.

    Raises:
        ValueError: an item has no `=`, or its value is not a boolean.
    """
    gates: dict[str, bool] = {}
    for item in filter(None, text.split(",")):
        name, equals, value = item.partition("=")
        if not equals:
            raise ValueError("malformed pair, expect string=bool")
        name, value = name.strip(), value.strip()
        try:
            gates[name] = parse_bool(value)
        except ValueError as error:
            raise ValueError(f"invalid value of {name}: {value}, err: {error}") from error
    return gates


def parse_quantity(text: str) -> str:
    """Check a Kubernetes quantity such as `0`, `512` or `4Ki` and return it unchanged.

    Raises:
        ValueError: the string is not a quantity.
    """
    if not _QUANTITY.fullmatch(text):
        raise ValueError(
            "quantities must match the regular expression "
            "'^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
        )
    return text


def parse_vmodule(text: str) -> str:
    """Check `pattern=N,pattern=N` (`--vmodule`) and return it unchanged.

    Raises:
        ValueError: an item does not consist of a pattern, `=` and a number.
    """
    for item in filter(None, text.split(",")):
        pattern, _, level = item.partition("=")
        if not pattern or not level:
            raise ValueError(f'"{item}" does not have the pattern=N format')
        if not (level.isascii() and level.isdigit()):
            raise ValueError(f'parsing verbosity in "{item}": invalid syntax')
    return text


def parse_listen_address(text: str) -> tuple[str, int]:
    """Split a Go listen address: `:8080`, `host:port`, `[::1]:port`; host "" means every address.

    Raises:
        ValueError: there is no port, the port is outside 0..65535, or an IPv6 address has no
            brackets.
    """
    host, colon, port = text.rpartition(":")
    if not colon:
        raise ValueError(f"address {text}: missing port in address")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ValueError(f"address {text}: too many colons in address")
    if not (port.isascii() and port.isdigit()) or int(port) > 65535:
        raise ValueError(f'address {text}: invalid port "{port}"')
    return host, int(port)


def _integer(function: str, text: str, low: int, high: int) -> int:
    if not _INTEGER.fullmatch(text):
        raise ValueError(f'strconv.{function}: parsing "{text}": invalid syntax')
    digits = text.lstrip("+-")
    # Go reads a number with a leading zero as octal; Python's base 0 refuses such a number.
    octal = len(digits) > 1 and digits[0] == "0" and digits[1] in "01234567_"
    value = int(text, 8 if octal else 0)
    if not low <= value <= high:
        raise ValueError(f'strconv.{function}: parsing "{text}": value out of range')
    return value

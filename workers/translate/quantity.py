"""Parses Kubernetes quantities into bytes, and writes bytes as quantities.

The grammar is the API server's: a signed decimal number and one suffix of `Ki Mi Gi Ti Pi Ei`,
`n u m k M G T P E` or a decimal exponent `e3`, `E-2`. Arithmetic is exact (integers and fractions),
never floating point. Source: apimachinery, pkg/api/resource/quantity.go ParseQuantity,
CanonicalizeBytes.
"""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Final

from workers.errors import AttemptError, State
from workers.translate.go_text import quote

MAX_BYTES: Final = 2**63 - 1
"""CSI and Kubernetes both represent sizes as signed 64-bit integers."""

_MAX_TEXT: Final = 256
"""The maximum number of characters; a longer number cannot be a size and would only cost time."""

_MAX_EXPONENT: Final = 300
"""Larger exponents are reduced to this one: with it, every nonzero number of _MAX_TEXT digits
already overflows or rounds up to one byte.
"""

_QUANTITY: Final = re.compile(
    r"(?P<sign>[+-]?)"
    r"(?P<number>[0-9]+(?:\.[0-9]*)?|\.[0-9]+)"
    r"(?P<suffix>[KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]+|)",
)
_BINARY: Final = {f"{letter}i": 1024**power for power, letter in enumerate("KMGTPE", start=1)}
_DECIMAL: Final = {
    "": 0,
    "n": -9,
    "u": -6,
    "m": -3,
    "k": 3,
    "M": 6,
    "G": 9,
    "T": 12,
    "P": 15,
    "E": 18,
}
_BINARY_SUFFIXES: Final = ("", *_BINARY)


class QuantityError(AttemptError):
    """A quantity is malformed or too large; nothing was sent to the driver."""

    def __init__(self, message: str) -> None:
        super().__init__(message, State.NO_CHANGE)


def _shown(text: str) -> str:
    return quote(text if len(text) <= 64 else f"{text[:61]}...")


def _scale(suffix: str) -> Fraction:
    if suffix in _BINARY:
        return Fraction(_BINARY[suffix])
    exponent = _DECIMAL[suffix] if suffix in _DECIMAL else int(suffix[1:])
    return Fraction(10) ** max(-_MAX_EXPONENT, min(exponent, _MAX_EXPONENT))


def parse(text: object) -> int:
    """Return the quantity in whole bytes; fractions are rounded away from zero (P-138).

    Worked example: `1500m` -> 2, `1.5Gi` -> 1610612736, `1e3` -> 1000.

    Args:
        text: the quantity as the API server sent it; a JSON number is accepted too.

    Raises:
        QuantityError: the string is not a quantity, or is outside the signed 64-bit range.
    """
    if isinstance(text, int) and not isinstance(text, bool):
        text = str(text) if abs(text) <= MAX_BYTES else "9" * 20
    if not isinstance(text, str):
        raise QuantityError(f"quantity is {type(text).__name__}, expected a string")
    match = _QUANTITY.fullmatch(text) if len(text) <= _MAX_TEXT else None
    if match is None:
        raise QuantityError(f"quantity {_shown(text)} is malformed, expected for example 10Gi")
    amount = Fraction(match["number"].rstrip(".")) * _scale(match["suffix"])
    size_bytes = -(-amount.numerator // amount.denominator)
    if size_bytes > MAX_BYTES:
        raise QuantityError(f"quantity {_shown(text)} is larger than {MAX_BYTES} bytes")
    return -size_bytes if match["sign"] == "-" else size_bytes


def canonical(size_bytes: int) -> str:
    """Write a number of bytes in binary-SI canonical form (P-172).

    Worked example: 100 -> `100`, 1000 -> `1k`, 1073741824 -> `1Gi`, 1610612736 -> `1536Mi`,
    1000000 -> `1000000` (no multiple of 1024, so plain digits).

    Raises:
        QuantityError: the number is negative or outside the signed 64-bit range.
    """
    if not 0 <= size_bytes <= MAX_BYTES:
        raise QuantityError(f"size of {size_bytes} bytes is outside 0..{MAX_BYTES}")
    if size_bytes < 1024:
        return "1k" if size_bytes == 1000 else str(size_bytes)
    power = 0
    while size_bytes % 1024 == 0:
        size_bytes //= 1024
        power += 1
    return f"{size_bytes}{_BINARY_SUFFIXES[power]}"

"""Prints and parses values as Go does, so that messages look familiar to users."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

_ESCAPES: Final = {
    '"': '\\"',
    "\\": "\\\\",
    "\a": "\\a",
    "\b": "\\b",
    "\f": "\\f",
    "\n": "\\n",
    "\r": "\\r",
    "\t": "\\t",
    "\v": "\\v",
}
_TRUE: Final = frozenset({"1", "t", "T", "TRUE", "true", "True"})
_FALSE: Final = frozenset({"0", "f", "F", "FALSE", "false", "False"})


def _escape(character: str) -> str:
    if character in _ESCAPES:
        return _ESCAPES[character]
    if character.isprintable():
        return character
    code = ord(character)
    if code < 0x80:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def quote(text: str) -> str:
    r"""Quote like Go's `%q`: `a"b` -> `"a\"b"`. Source: Go, strconv.Quote."""
    return f'"{"".join(map(_escape, text))}"'


def quote_list(texts: Iterable[str]) -> str:
    """Quote a list as Go's `%q` quotes a slice of strings: `["a" "b"]` (P-135)."""
    return f"[{' '.join(map(quote, texts))}]"


def parse_bool(text: str) -> bool:
    """Read a boolean as Go's strconv.ParseBool does (P-214).

    Raises:
        ValueError: the string is not a boolean; the message is Go's, `strconv.ParseBool: parsing
            "x": invalid syntax`.
    """
    if text in _TRUE:
        return True
    if text in _FALSE:
        return False
    raise ValueError(f"strconv.ParseBool: parsing {quote(text)}: invalid syntax")

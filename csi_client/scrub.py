"""Secrets are taken out of texts that a driver wrote (SEC-7).

Drivers echo credentials in their error messages, which become events on the user's object: as they
are, without the newline that a file brought, one field of a JSON document, quoted, escaped, cut
off, as hex, in an address or in an authorization header. So the pieces of every secret are looked
for, in every spelling, and what decodes to something with a piece in it goes as a whole.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, quote_plus

from csi_client.redact import STRIPPED, secret_values

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from google.protobuf.message import Message

MIN_PIECE: Final = 4
"""Shorter pieces go only where they stand as a word: `1` would tear holes into every sentence."""

MIN_WORD: Final = 2
"""A single character is no secret."""

MIN_PREFIX: Final = 6
"""At least so much, and at least half of a piece, counts as the piece cut off."""

_MAX_DEPTH: Final = 5
_SETTING: Final = re.compile(r"^\s*[\w.-]+\s*[:=]\s*(?P<value>\S.*)$")
_BASE64: Final = re.compile(r"[A-Za-z0-9+/_-]{6,}={0,2}")
_HEX: Final = re.compile(r"(?:0x)?(?P<digits>(?:[0-9a-fA-F]{2}){4,})")


def scrub(text: str, request: Message) -> str:
    """Replace every spelling of the request's secrets in `text` by `STRIPPED`."""
    pieces = {piece for value in secret_values(request) for piece in _pieces(value, 0)}
    if not pieces or not text:
        return text
    long = [piece for piece in pieces if len(piece) >= MIN_PIECE]
    text = _BASE64.sub(lambda match: _unless_coded(match, _from_base64(match.group()), long), text)
    text = _HEX.sub(lambda match: _unless_coded(match, [_from_hex(match["digits"])], long), text)
    for form in sorted({form for piece in long for form in _spellings(piece)}, key=len)[::-1]:
        text = _without(text, form)
    short = [re.escape(p) for p in pieces if MIN_WORD <= len(p) < MIN_PIECE]
    return re.sub(rf"(?<!\w)(?:{'|'.join(short)})(?!\w)", STRIPPED, text) if short else text


def _pieces(value: str, depth: int) -> Iterator[str]:
    """The value, its lines, the values of its settings and the leaves of its JSON, stripped."""
    whole = value.strip()
    yield whole
    if depth < _MAX_DEPTH:
        for leaf in _json_leaves(whole):
            yield from _pieces(leaf, depth + 1)
    lines = whole.splitlines()
    for line in lines if len(lines) > 1 else []:
        yield line.strip()
        if setting := _SETTING.match(line):
            yield setting["value"].strip().strip("\"'")


def _json_leaves(text: str) -> Iterator[str]:
    if text[:1] not in {"{", "["}:
        return
    try:
        document = json.loads(text)
    except ValueError:
        return
    yield from _leaves(document)


def _leaves(document: Any) -> Iterator[str]:
    if isinstance(document, dict):
        document = list(document.values())
    if isinstance(document, list):
        for part in document:
            yield from _leaves(part)
    elif isinstance(document, str):
        yield document


def _spellings(piece: str) -> set[str]:
    """As it is, in a URL, escaped as in JSON or Go."""
    escaped = json.dumps(piece, ensure_ascii=False)[1:-1]
    return {piece, quote(piece, safe=""), quote_plus(piece), escaped, json.dumps(piece)[1:-1]}


def _without(text: str, form: str) -> str:
    """The text without the form, be it whole or cut off at its end."""
    start = form[: max(MIN_PREFIX, (len(form) + 1) // 2)]
    kept, position = [], 0
    while (found := text.find(start, position)) >= 0:
        end = found + len(start)
        while end - found < len(form) and text[end : end + 1] == form[end - found]:
            end += 1
        kept += [text[position:found], STRIPPED]
        position = end
    return "".join([*kept, text[position:]])


def _unless_coded(match: re.Match[str], decoded: Iterable[bytes], pieces: list[str]) -> str:
    """The match as it is, unless it decodes to something that holds a piece."""
    for data in decoded:
        plain = data.decode("utf-8", "replace")
        if any(_without(plain, piece) != plain for piece in pieces):
            return STRIPPED
    return match.group()


def _from_base64(token: str) -> Iterator[bytes]:
    """What the token may mean; a cut off one is padded."""
    body = token.rstrip("=").replace("-", "+").replace("_", "/")
    # Text right before the token may look like part of it: every alignment is tried.
    for skipped in range(4):
        rest = body[skipped:]
        rest = rest[: len(rest) - (len(rest) % 4 == 1)]
        try:
            yield base64.b64decode(rest + "=" * (-len(rest) % 4))
        except (binascii.Error, ValueError):
            continue


def _from_hex(digits: str) -> bytes:
    return bytes.fromhex(digits)

"""Removes secrets from a driver's messages.

Drivers repeat credentials in their error messages, and these become events on the user's object.
Known spellings of a secret are replaced: verbatim, without a trailing newline, one field of a JSON
document, quoted, escaped, truncated, as hex or base64, in a URL or in an authorization header. The
rest of the message is then decoded in every known way, and compared without regard to case and
punctuation. If half of a secret, or `RUN` characters of a long one, is still found, the whole
message is hidden.

A user can choose the secrets, and a driver can choose the message, so the work is bounded: if there
are more secrets than `MAX_SECRETS` and `MAX_PIECES` allow, the message is hidden unread. A long
message is truncated.
"""

from __future__ import annotations

import base64
import binascii
import html
import json
import re
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, quote_plus, unquote

from csi_client.redact import STRIPPED, secret_values

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from google.protobuf.message import Message

MIN_PIECE: Final = 4
"""Shorter pieces are replaced only as whole words: `on`, for example, is part of many words."""

MIN_WORD: Final = 2
"""A single character does not count as a secret."""

MIN_PREFIX: Final = 6
"""A prefix with this many characters and half of a piece counts as the truncated piece."""

RUN: Final = 32
"""This many consecutive characters of a longer piece count as the whole piece."""

MIN_TIGHT: Final = 8
"""The value that replaces MIN_PREFIX where only letters and digits are compared."""

MAX_TEXT: Final = 1024
"""A text is truncated to this many characters if the request had secrets."""

MAX_SECRETS: Final = 16 * 1024
"""The largest number of characters in all secrets of a request; above it, no text is shown."""

MAX_PIECES: Final = 200
"""The largest number of lines, key=value pairs and JSON leaves; above it, no text is shown."""

MAX_CODED: Final = 8
"""The largest number of pieces found in encoded words; above it, no text is shown."""

TOO_MUCH: Final = "(the driver's text is not shown: it may contain one of too many secrets)"
UNSURE: Final = "(the driver's text is not shown: it contains a secret in some encoding)"

_MAX_DEPTH: Final = 5
_SETTING: Final = re.compile(r"^\s*[\w.-]+\s*[:=]\s*(?P<value>\S.*)$")
_BASE64: Final = re.compile(r"[A-Za-z0-9+/_-]{6,}={0,2}")
_HEX: Final = re.compile(r"(?:0x)?(?P<digits>(?:[0-9a-fA-F]{2}){4,})")
_BYTES: Final = re.compile(r"(?:\\x[0-9a-fA-F]{2}|\\[0-7]{3})+")
_BYTE: Final = re.compile(r"\\x([0-9a-fA-F]{2})|\\([0-7]{3})")
_LETTER: Final = re.compile(r"\\u([0-9a-fA-F]{4})|\\U([0-9a-fA-F]{8})|\\(.)", re.DOTALL)
_BLANKS: Final = {"n": "\n", "r": "\r", "t": "\t", "a": "", "b": "", "f": "", "v": "", "0": ""}
_NUMBERS: Final = re.compile(r"\d{1,3}(?:[\s,;]+\d{1,3}){3,}")
_BETWEEN_HEX: Final = re.compile(r"[\s:,;-]|0x")


def scrub(text: str, request: Message) -> str:
    """Return `text` with every spelling of the request's secrets replaced by `STRIPPED`."""
    values = list(secret_values(request))
    if not text or not any(values):
        return text
    if sum(map(len, values)) > MAX_SECRETS:
        return TOO_MUCH
    pieces: set[str] = set()
    size = 0
    for value in values:
        for piece in _pieces(value, 0):
            size += len(piece)
            pieces.add(piece)
            if len(pieces) > MAX_PIECES or size > 4 * MAX_SECRETS:
                return TOO_MUCH
    shown = _scrubbed(text[:MAX_TEXT], pieces)
    return shown if len(text) <= MAX_TEXT or shown == UNSURE else f"{shown} ... (cut)"


def _scrubbed(text: str, pieces: set[str]) -> str:
    long = [piece for piece in pieces if len(piece) >= MIN_PIECE]
    coded = [*_BASE64.findall(text), *(one["digits"] for one in _HEX.finditer(text))]
    seen = "\0".join(data.decode("utf-8", "replace") for one in coded for data in _decoded(one))
    found = [piece for piece in long if _start(piece) in seen]
    if len(found) > MAX_CODED:
        return UNSURE
    if found:
        text = _BASE64.sub(lambda match: _unless_coded(match, match.group(), found), text)
        text = _HEX.sub(lambda match: _unless_coded(match, match["digits"], found), text)
    for form in sorted({form for piece in long for form in _spellings(piece)}, key=len)[::-1]:
        text = _without(text, form)
    short = [re.escape(p) for p in pieces if MIN_WORD <= len(p) < MIN_PIECE]
    if short:
        text = re.sub(rf"(?<!\w)(?:{'|'.join(short)})(?!\w)", STRIPPED, text)
    return UNSURE if _is_left(text, long) else text


def _is_left(text: str, pieces: list[str]) -> bool:
    """Return True if some decoding of the text contains enough characters of any piece."""
    rest = text.replace(STRIPPED, "\0")
    loose = "\0".join(_readings(rest)).casefold()
    tight = _tight(loose)
    tight += "\0" + tight[::-1]
    return any(
        piece.casefold() in loose
        or _shares(loose, piece.casefold(), MIN_PREFIX)
        or _shares(tight, _tight(piece.casefold()), MIN_TIGHT)
        for piece in pieces
    )


def _tight(text: str) -> str:
    return re.sub(r"[^\w\0]|_", "", text)


def _shares(text: str, piece: str, least: int) -> bool:
    """Return True if the text contains half of the piece, or `RUN` characters of a long piece."""
    if len(piece) < least:
        return False
    length = max(least, min(RUN, (len(piece) + 1) // 2))
    # A common run of `length` characters always contains at least one of these blocks completely.
    block = (length + 1) // 2
    tried = 0
    for at in range(0, len(piece) - block + 1, block):
        place = text.find(piece[at : at + block])
        while place >= 0:
            if _run(text, place, piece, at) >= length:
                return True
            tried += 1
            if tried > RUN:  # so many partial matches: the text was made to cost time
                return True
            place = text.find(piece[at : at + block], place + 1)
    return False


def _run(text: str, place: int, piece: str, at: int) -> int:
    """Return the length of the common run around these two positions; bounded by `RUN`."""
    before, limit = 0, min(RUN, at, place)
    while before < limit and text[place - before - 1] == piece[at - before - 1]:
        before += 1
    after, limit = 0, min(2 * RUN, len(piece) - at, len(text) - place)
    while after < limit and text[place + after] == piece[at + after]:
        after += 1
    return before + after


def _readings(text: str) -> Iterator[str]:
    """Yield the text, and the results of decoding it or parts of it."""
    yield text
    for _ in range(2):
        text = _unescaped(unquote(html.unescape(text), errors="replace"))
    yield text
    for match in _NUMBERS.finditer(text):
        numbers = [int(one) for one in re.findall(r"\d+", match.group())]
        yield bytes(one for one in numbers if one < 256).decode("utf-8", "replace")
    joined = re.sub(r"\s+", "", text)
    for word in _BASE64.findall(joined):
        for data in _from_base64(word):
            yield data.decode("utf-8", "replace")
    for digits in re.findall(r"[0-9a-fA-F]{8,}", _BETWEEN_HEX.sub("", text)):
        for at in (0, 1):
            rest = digits[at:]
            yield bytes.fromhex(rest[: len(rest) // 2 * 2]).decode("utf-8", "replace")


def _unescaped(text: str) -> str:
    """Resolve the backslash escapes of Go, JSON, Python and shells."""
    text = _BYTES.sub(_bytes, text)
    text = _LETTER.sub(_letter, text)
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _bytes(match: re.Match[str]) -> str:
    pairs = _BYTE.findall(match.group())
    return bytes(int(a, 16) if a else int(b, 8) & 255 for a, b in pairs).decode("utf-8", "replace")


def _letter(match: re.Match[str]) -> str:
    four, eight, other = match.groups()
    if other is not None:
        return _BLANKS.get(other, other)
    number = int(four or eight, 16)
    return chr(number) if number < 0x110000 else ""


def _pieces(value: str, depth: int) -> Iterator[str]:
    """Yield the value, its lines, its key=value pairs' values and its JSON leaves, stripped."""
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
        yield from _leaves(document)
    except (ValueError, RecursionError):
        return


def _leaves(document: Any) -> Iterator[str]:
    if isinstance(document, dict):
        document = list(document.values())
    if isinstance(document, list):
        for part in document:
            yield from _leaves(part)
    elif isinstance(document, str):
        yield document


def _spellings(piece: str) -> set[str]:
    """Return the piece verbatim, as it appears in a URL, and escaped as in JSON or Go."""
    escaped = json.dumps(piece, ensure_ascii=False)[1:-1]
    return {piece, quote(piece, safe=""), quote_plus(piece), escaped, json.dumps(piece)[1:-1]}


def _without(text: str, form: str) -> str:
    """Return the text with every occurrence of the form replaced, even a truncated one."""
    start = _start(form)
    kept, position = [], 0
    while (found := text.find(start, position)) >= 0:
        end = found + len(start)
        while end - found < len(form) and text[end : end + 1] == form[end - found]:
            end += 1
        kept += [text[position:found], STRIPPED]
        position = end
    return "".join([*kept, text[position:]])


def _start(form: str) -> str:
    """Return the shortest prefix that counts as the truncated form."""
    return form[: max(MIN_PREFIX, min(RUN, (len(form) + 1) // 2))]


def _unless_coded(match: re.Match[str], word: str, pieces: list[str]) -> str:
    """Return the match unchanged, or `STRIPPED` if a decoding of it contains a piece."""
    for data in _decoded(word):
        plain = data.decode("utf-8", "replace")
        if any(_start(piece) in plain for piece in pieces):
            return STRIPPED
    return match.group()


def _decoded(word: str) -> Iterable[bytes]:
    """Yield the results of decoding the word as base64 and as hex."""
    yield from _from_base64(word)
    if len(word) % 2 == 0 and re.fullmatch(r"[0-9a-fA-F]+", word):
        yield bytes.fromhex(word)


def _from_base64(token: str) -> Iterator[bytes]:
    """Yield the possible decodings of a base64 token; an incomplete token is padded."""
    body = token.rstrip("=").replace("-", "+").replace("_", "/")
    # Characters directly before the token may look like base64, so every alignment is tried.
    for skipped in range(4):
        rest = body[skipped:]
        rest = rest[: len(rest) - (len(rest) % 4 == 1)]
        try:
            yield base64.b64decode(rest + "=" * (-len(rest) % 4))
        except (binascii.Error, ValueError):
            continue

"""Formats the records of Python's logging in klog's layouts.

Text: `W1102 15:04:05.000123      17 claims.py:88] "CreateVolume failed" claim="default/data"`
JSON: `{"ts":1730559845000.123,"caller":"claims.py:88","level":"warning","msg":"...","claim":"..."}`

Source: k8s.io/klog text.go and component-base logs/json; `level` in JSON is an addition of
csi-fleet.
"""

from __future__ import annotations

import json
import logging
import os
import re
import time
import traceback
from collections.abc import Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from math import isfinite
from typing import TYPE_CHECKING, Any, Final

from workers.errors import ProvisionerError

if TYPE_CHECKING:
    from collections.abc import Iterator

STRIPPED: Final = "***stripped***"
"""The text with which upstream's protosanitizer replaces a secret."""

OWN_PACKAGES: Final = ("workers", "watcher", "csi_client")
"""The names of csi-fleet's loggers start with these words; all other loggers belong to libraries.
"""

_SECRET_NAME: Final = re.compile(
    r"secret|passw|token|credential|authorization|api_?key", re.IGNORECASE
)
_SECRET_REFERENCE: Final = re.compile(r"name(space)?s?$|_?ref$", re.IGNORECASE)
# The match extends to the last `@`, because a password may contain one. The scheme before `://` is
# not matched, because that would take quadratic time for a long string.
_URL_LOGIN: Final = re.compile(r"://[^/\s]*@")
_QUERY_LOGIN: Final = re.compile(r"(?P<name>\bsentinel_password=)[^&\s]+")
_BEARER: Final = re.compile(r"(?P<word>\bbearer\s+)[A-Za-z0-9._~+/-]+=*", re.IGNORECASE)

# Characters that JSON does not escape but that a terminal interprets or treats as the end of a
# line.
_CONTROL: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]"
)

# Exceptions from these packages mean that something outside csi-fleet failed, not that csi-fleet
# has a bug.
_OUTSIDE: Final = frozenset({"csi_client", "grpc", "kombu", "kubernetes", "redis"})

# The attributes that a record has without `extra`.
_RECORD_FIELDS: Final = frozenset(logging.LogRecord("", 0, "", 0, "", None, None).__dict__) | {
    "message",
    "asctime",
    "taskName",
}

# Verbosity 5 is DEBUG (10) and verbosity 0 is INFO (20), so each step of verbosity lowers Python's
# log level by 2.
_LEVELS_A_VERBOSITY: Final = 2
_FIELD_ORDER: Final = ("key", "claim", "volume", "driver", "attempt")
_bound: ContextVar[dict[str, Any]] = ContextVar("log_fields")


@dataclass(frozen=True, slots=True)
class Line:
    """The content of a log line, with `fields` in the order in which they are shown."""

    seconds: float
    caller: str
    level: str
    verbosity: int
    message: str
    fields: dict[str, Any]
    stack: str


@contextmanager
def log_fields(**fields: Any) -> Iterator[None]:
    """Add fields to every line that this thread (or asyncio task) logs inside the block."""
    token = _bound.set(_bound.get({}) | fields)
    try:
        yield
    finally:
        _bound.reset(token)


def level_of(verbosity: int) -> int:
    """Return Python's log level for a klog verbosity: INFO for 0, DEBUG for 5."""
    return max(1, logging.INFO - _LEVELS_A_VERBOSITY * verbosity)


class KlogFormatter(logging.Formatter):
    """Formats the records of csi-fleet and of libraries as klog lines without secrets.

    Args:
        is_json: True for JSON, False for text.
    """

    def __init__(self, *, is_json: bool) -> None:
        super().__init__()
        self._render = render_json if is_json else render_text

    def format(self, record: logging.LogRecord) -> str:
        """Return one line; in text format, a traceback follows on indented lines."""
        return self._render(read(record))


def read(record: logging.LogRecord) -> Line:
    """Return the content of a record, with the fields of `log_fields` and without secrets."""
    given = {n: value for n, value in record.__dict__.items() if n not in _RECORD_FIELDS}
    fields = _bound.get({}) | given
    if record.name.partition(".")[0] in OWN_PACKAGES:
        fields |= fields.pop("fields", {})
    else:
        fields["logger"] = record.name
    error = record.exc_info[1] if record.exc_info else None
    stack = ""
    if error is not None:
        fields.setdefault("err", error)
        if not is_operational(error):
            stack = "".join(traceback.format_exception(error)).rstrip()
    known = {name: fields[name] for name in _FIELD_ORDER if name in fields}
    return Line(
        record.created,
        f"{record.filename}:{record.lineno}",
        _severity(record.levelno),
        max(0, (logging.INFO - record.levelno) // _LEVELS_A_VERBOSITY),
        strip_text(record.getMessage()),
        {name: _strip(name, value) for name, value in (known | fields).items()},
        strip_text(stack),
    )


def _severity(level: int) -> str:
    if level >= logging.ERROR:
        return "error"
    return "warning" if level >= logging.WARNING else "info"


def is_operational(error: BaseException) -> bool:
    """Return True if something outside this program failed; a traceback would not help."""
    if isinstance(error, (ProvisionerError, OSError, EOFError)):
        return True
    return any(kind.__module__.partition(".")[0] in _OUTSIDE for kind in type(error).__mro__)


def strip_text(text: str) -> str:
    """Replace the logins in URLs, and bearer tokens, with `STRIPPED`."""
    text = _URL_LOGIN.sub(f"://{STRIPPED}@", text)
    text = _QUERY_LOGIN.sub(rf"\g<name>{STRIPPED}", text)
    return _BEARER.sub(rf"\g<word>{STRIPPED}", text)


def render_text(line: Line) -> str:
    """Return a line in klog's text format; a traceback follows on indented lines."""
    moment = time.strftime("%m%d %H:%M:%S", time.localtime(line.seconds))
    head = (
        f"{line.level[0].upper()}{moment}.{int(line.seconds % 1 * 1e6):06d} {os.getpid():7d} "
        f"{line.caller}] {_dump(line.message)}"
    )
    fields = [f"{name}={_text_value(value)}" for name, value in line.fields.items()]
    text = " ".join([head, *fields])
    return text + "\n\t" + _spell(line.stack).replace("\n", "\n\t") if line.stack else text


def render_json(line: Line) -> str:
    """Return a line in klog's JSON format; `ts` is in milliseconds."""
    head: dict[str, Any] = {
        "ts": round(line.seconds * 1000, 3),
        "caller": line.caller,
        "level": line.level,
    }
    if line.level == "info":
        head["v"] = line.verbosity
    head["msg"] = line.message
    tail = {"stacktrace": line.stack} if line.stack else {}
    return _dump(head | line.fields | head | tail)


def _strip(name: str, value: Any) -> Any:
    if _SECRET_NAME.search(name) and not _SECRET_REFERENCE.search(name):
        return STRIPPED if value else value
    if isinstance(value, BaseException):
        value = _one_line(value)
    if isinstance(value, Mapping):
        return {strip_text(str(key)): _strip(str(key), inner) for key, inner in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_strip("", inner) for inner in value]
    if value is None or isinstance(value, int) or (isinstance(value, float) and isfinite(value)):
        return value
    # Infinity is also converted to a string, because JSON cannot express it.
    return strip_text(value if isinstance(value, str) else _text_of(value))


def _one_line(error: BaseException) -> str:
    text = " ".join(_text_of(error).split()) or type(error).__name__
    # Most built-in errors mean little without the name of their class: KeyError('x') prints 'x'.
    named = type(error).__module__ == "builtins" and not isinstance(error, OSError)
    return f"{type(error).__name__}: {text}" if named else text


def _text_of(value: object) -> str:
    try:
        return str(value)
    except Exception:  # noqa: BLE001 - an error in a foreign class must not lose the line
        return f"<{type(value).__name__} without a text>"


def _text_value(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return str(value)
    return _dump(value if isinstance(value, str) else _dump(value))


def _dump(value: Any) -> str:
    return _spell(json.dumps(value, ensure_ascii=False, separators=(",", ":")))


def _spell(text: str) -> str:
    """Escape control and text direction characters, so that no value can manipulate a terminal."""
    return _CONTROL.sub(lambda found: f"\\u{ord(found.group()):04x}", text)

"""What does one log line look like? Pure functions from a structlog event to klog's layouts.

Text: `W1102 15:04:05.000123      17 claims.py:88] "CreateVolume failed" claim="default/data"`
JSON: `{"ts":1730559845000.123,"caller":"claims.py:88","level":"warning","msg":"...","claim":"..."}`

Source: k8s.io/klog text.go and component-base logs/json; `level` in JSON is our addition.
"""

from __future__ import annotations

import json
import logging
import os
import re
import sys
import time
import traceback
from collections.abc import Mapping
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, Final

from workers.errors import ProvisionerError

if TYPE_CHECKING:
    from collections.abc import Callable

    from structlog.typing import EventDict

STRIPPED: Final = "***stripped***"
"""What upstream's protosanitizer writes in place of a secret."""

OWN_PACKAGES: Final = ("workers", "watcher", "csi_client")
"""Loggers of these names are ours; all others belong to libraries."""

DEBUG_VERBOSITY: Final = 5
"""What `-v` shows the DEBUG lines of our packages: every CSI message (P-012)."""

_SECRET_NAME: Final = re.compile(
    r"secret|passw|token|credential|authorization|api_?key", re.IGNORECASE
)
_SECRET_REFERENCE: Final = re.compile(r"name(space)?s?$|_?ref$", re.IGNORECASE)
_URL_LOGIN: Final = re.compile(r"(?P<scheme>\b[a-z][a-z0-9+.-]*://)[^/@\s]*@", re.IGNORECASE)
_BEARER: Final = re.compile(r"(?P<word>\bbearer\s+)[A-Za-z0-9._~+/-]+=*", re.IGNORECASE)

# Exceptions of these libraries mean that something outside failed, not that we erred.
_OUTSIDE: Final = frozenset({"csi_client", "grpc", "kombu", "kubernetes", "redis", "urllib3"})

# What a record has without `extra`.
_RECORD_FIELDS: Final = frozenset(logging.LogRecord("", 0, "", 0, "", None, None).__dict__) | {
    "message",
    "asctime",
    "taskName",
}

_OWN_FRAMES: Final = ("structlog", "logging", "workers.observability.log")
_LETTERS: Final = {"info": "I", "warning": "W", "error": "E"}
_FIELD_ORDER: Final = ("key", "claim", "volume", "driver", "attempt")
_LINE_FIELDS: Final = frozenset({"ts", "caller", "level", "event", "v", "stack"})


class Stamp:
    """Adds the time and the place of the call."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock

    def __call__(self, _: Any, __: str, event: EventDict) -> EventDict:
        """Add `ts` (seconds) and `caller` unless a library's record brought them."""
        event.setdefault("ts", self._clock())
        if "caller" not in event:
            event["caller"] = _caller()
        return event


def take_record(_: Any, __: str, event: EventDict) -> EventDict:
    """Turn a library's logging record into an event with our fields."""
    record: logging.LogRecord = event.pop("_record")
    event.pop("_from_structlog", None)
    event["ts"] = record.created
    event["caller"] = f"{record.filename}:{record.lineno}"
    if record.name.partition(".")[0] not in OWN_PACKAGES:
        event["logger"] = record.name
    event.update({n: v for n, v in record.__dict__.items() if n not in _RECORD_FIELDS})
    if record.levelno < logging.INFO:
        event["v"] = DEBUG_VERBOSITY
    if record.levelno >= logging.ERROR:
        event["level"] = "error"
    else:
        event["level"] = "warning" if record.levelno >= logging.WARNING else "info"
    return event


def add_severity(_: Any, method: str, event: EventDict) -> EventDict:
    """Add `level` from the method's name."""
    event.setdefault("level", method if method in _LETTERS else "info")
    return event


def fold_exception(_: Any, __: str, event: EventDict) -> EventDict:
    """Turn `exc_info` into the one-line `err`, and a mistake of ours into `stack` as well."""
    found = event.pop("exc_info", None)
    error = found[1] if isinstance(found, tuple) else found
    if not isinstance(error, BaseException):
        return event
    event.setdefault("err", error)
    if not is_operational(error):
        event["stack"] = "".join(traceback.format_exception(error)).rstrip()
    return event


def is_operational(error: BaseException) -> bool:
    """Whether something outside this program failed, so that a traceback explains nothing."""
    if isinstance(error, (ProvisionerError, OSError, EOFError)):
        return True
    return any(kind.__module__.partition(".")[0] in _OUTSIDE for kind in type(error).__mro__)


def strip_secrets(_: Any, __: str, event: EventDict) -> EventDict:
    """Strip fields named like a secret, logins in URLs and bearer tokens, at any depth."""
    return {name: _strip(name, value) for name, value in event.items()}


def strip_text(text: str) -> str:
    """Strip logins in URLs and bearer tokens from a text."""
    text = _URL_LOGIN.sub(rf"\g<scheme>{STRIPPED}@", text)
    return _BEARER.sub(rf"\g<word>{STRIPPED}", text)


def render_text(_: Any, __: str, event: EventDict) -> str:
    """Klog's text line; a `stack` follows on indented lines."""
    seconds = event["ts"]
    moment = time.strftime("%m%d %H:%M:%S", time.localtime(seconds))
    head = (
        f"{_LETTERS[event['level']]}{moment}.{int(seconds % 1 * 1e6):06d} {os.getpid():7d} "
        f"{event['caller']}] {_quote(event['event'])}"
    )
    fields = [f"{name}={_text_value(event[name])}" for name in _field_names(event)]
    line = " ".join([head, *fields])
    if "stack" in event:
        line += "\n\t" + event["stack"].replace("\n", "\n\t")
    return line


def render_json(_: Any, __: str, event: EventDict) -> str:
    """Klog's JSON line; `ts` in milliseconds."""
    line: dict[str, Any] = {
        "ts": round(event["ts"] * 1000, 3),
        "caller": event["caller"],
        "level": event["level"],
    }
    if event["level"] == "info":
        line["v"] = event.get("v", 0)
    line["msg"] = event["event"]
    line |= {name: event[name] for name in _field_names(event)}
    if "stack" in event:
        line["stacktrace"] = event["stack"]
    return json.dumps(line, ensure_ascii=False, separators=(",", ":"), default=_plain)


def _caller() -> str:
    frame = sys._getframe(1)  # noqa: SLF001  the documented way, and the cheap one
    while frame.f_back and str(frame.f_globals.get("__name__", "")).startswith(_OWN_FRAMES):
        frame = frame.f_back
    return f"{PurePath(frame.f_code.co_filename).name}:{frame.f_lineno}"


def _field_names(event: Mapping[str, Any]) -> list[str]:
    """Well-known fields first, the rest in the order they were given."""
    known = [name for name in _FIELD_ORDER if name in event]
    return known + [n for n in event if n not in _LINE_FIELDS and n not in _FIELD_ORDER]


def _strip(name: str, value: Any) -> Any:
    if _SECRET_NAME.search(name) and not _SECRET_REFERENCE.search(name):
        return STRIPPED if value else value
    if isinstance(value, BaseException):
        value = _one_line(value)
    if isinstance(value, str):
        return strip_text(value)
    if isinstance(value, Mapping):
        return {str(key): _strip(str(key), inner) for key, inner in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_strip("", inner) for inner in value]
    return value


def _one_line(error: BaseException) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    # The text of most built-in errors means little without the class: KeyError('x') prints 'x'.
    named = type(error).__module__ == "builtins" and not isinstance(error, OSError)
    return f"{type(error).__name__}: {text}" if named else text


def _text_value(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return str(value)
    return _quote(value if isinstance(value, str) else _dump(value))


def _dump(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=_plain)


def _quote(text: Any) -> str:
    return json.dumps(str(text), ensure_ascii=False)


def _plain(value: Any) -> str:
    return str(value)

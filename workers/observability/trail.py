"""Collects short notes about this thread's current reconcile, for `csi-fleet explain`.

The notes are sent to Redis with the call that releases the lease, so they need no extra request.
They contain calls, codes and the error messages that events also show, so they contain no secrets.
"""

from __future__ import annotations

import time
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

    from workers.observability.logging import FleetLogger

# Maximum number of notes per reconcile; Redis also limits the history of a key (`lib.lua`,
# TRAIL_NOTES).
MAX_NOTES: Final = 16
MAX_TEXT: Final = 400
# The beginning of a note about a request that the API server refused.
REFUSED: Final = "the API server refused: "
# The beginning of a note about a bug in csi-fleet.
UNEXPECTED: Final = "csi-fleet failed with an unexpected"


@dataclass(slots=True)
class _Notes:
    lines: list[tuple[float, str]] = field(default_factory=list)


_current: ContextVar[_Notes | None] = ContextVar("trail", default=None)


@contextmanager
def collect() -> Iterator[None]:
    """Collect the notes that this thread makes inside the block."""
    token = _current.set(_Notes())
    try:
        yield
    finally:
        _current.reset(token)


def note(event: str, detail: str = "") -> None:
    """Add a note to the current reconcile; outside a reconcile, do nothing.

    Args:
        event: one word: `rpc`, `api`, `error` or `end`.
        detail: one line; it is cut to 400 characters.
    """
    notes = _current.get()
    if notes is None:
        return
    text = " ".join(f"{event} {detail}".split())[:MAX_TEXT]
    notes.lines.append((time.monotonic(), text))
    del notes.lines[:-MAX_NOTES]


def last(event: str) -> str:
    """Return the current reconcile's newest note with this event; "" if there is none."""
    notes = _current.get()
    for _, text in reversed(notes.lines if notes is not None else ()):
        if text.startswith(f"{event} "):
            return text.removeprefix(f"{event} ")
    return ""


def refused(error: Exception) -> None:
    """Note that the API server refused a request; the message names the missing permission."""
    note("error", f"{REFUSED}{error}")


def tell_refused(log: FleetLogger, error: Exception) -> None:
    """Note and log a refusal that neither an event nor the caller reports."""
    log.warning("the API server refused", err=error)
    refused(error)


def collected() -> list[str]:
    """Return each note as `<age in ms> <event> <detail>`, oldest first, for the queue's scripts."""
    notes = _current.get()
    if notes is None:
        return []
    now = time.monotonic()
    return [f"{round((now - at) * 1000)} {text}" for at, text in notes.lines]

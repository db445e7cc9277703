"""Collects short notes on the current reconcile of this thread, for `csi-fleet explain`.

The notes are sent to Redis with the call that releases the lease, so they cost no extra request.
They contain calls, codes and error texts that events show too, so no secret.
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

# Per reconcile; Redis limits the history of a key too (`lib.lua`, TRAIL_NOTES).
MAX_NOTES: Final = 16
MAX_TEXT: Final = 400
# Start of the note on a request that the API server refused.
REFUSED: Final = "the API server refused: "
# Start of the note on a bug in csi-fleet.
UNEXPECTED: Final = "csi-fleet failed with an unexpected"


@dataclass(slots=True)
class _Notes:
    lines: list[tuple[float, str]] = field(default_factory=list)


_current: ContextVar[_Notes | None] = ContextVar("trail", default=None)


@contextmanager
def collect() -> Iterator[None]:
    """Collect the notes of this thread inside the block."""
    token = _current.set(_Notes())
    try:
        yield
    finally:
        _current.reset(token)


def note(event: str, detail: str = "") -> None:
    """Add a note to the current reconcile; outside of a reconcile do nothing.

    Args:
        event: one word: `rpc`, `api`, `error`, `end`.
        detail: one line, cut to 400 characters.
    """
    notes = _current.get()
    if notes is None:
        return
    text = " ".join(f"{event} {detail}".split())[:MAX_TEXT]
    notes.lines.append((time.monotonic(), text))
    del notes.lines[:-MAX_NOTES]


def last(event: str) -> str:
    """Return the text of the newest note of this event in the current reconcile; "" if none."""
    notes = _current.get()
    for _, text in reversed(notes.lines if notes is not None else ()):
        if text.startswith(f"{event} "):
            return text.removeprefix(f"{event} ")
    return ""


def refused(error: Exception) -> None:
    """Note that the API server refused a request; the text names the missing permission."""
    note("error", f"{REFUSED}{error}")


def tell_refused(log: FleetLogger, error: Exception) -> None:
    """As `refused`, and log it: for failures whose event or caller does not show the cause."""
    log.warning("the API server refused", err=error)
    refused(error)


def collected() -> list[str]:
    """Return `<age in ms> <event> <detail>` of each note, oldest first, for the queue's scripts."""
    notes = _current.get()
    if notes is None:
        return []
    now = time.monotonic()
    return [f"{round((now - at) * 1000)} {text}" for at, text in notes.lines]

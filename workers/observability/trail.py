"""What happened in the pass that this thread is running? Short notes for `csi-fleet explain`.

A pass collects notes while it runs; they reach Redis with the call that ends its lease, so they
cost no round trip. Notes name calls, codes and error texts that events show too: no secret.
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

# Per pass; the whole trail of a key is bounded in Redis too (`lib.lua`, TRAIL_NOTES).
MAX_NOTES: Final = 16
MAX_TEXT: Final = 400
# Begins the note of a request that the API server refused.
REFUSED: Final = "the API server refused: "
# Begins the note of a mistake of ours.
UNEXPECTED: Final = "csi-fleet failed with an unexpected"


@dataclass(slots=True)
class _Notes:
    lines: list[tuple[float, str]] = field(default_factory=list)


_current: ContextVar[_Notes | None] = ContextVar("trail", default=None)


@contextmanager
def collect() -> Iterator[None]:
    """Collect the notes of this thread until the end of the block."""
    token = _current.set(_Notes())
    try:
        yield
    finally:
        _current.reset(token)


def note(event: str, detail: str = "") -> None:
    """Remember one event of the present pass; nothing outside of one.

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


def refused(error: Exception) -> None:
    """A request that the API server refused; its text names the right that lacks."""
    note("error", f"{REFUSED}{error}")


def tell_refused(log: FleetLogger, error: Exception) -> None:
    """The same in the log too: for those whose event or caller does not say why."""
    log.warning("the API server refused", err=error)
    refused(error)


def collected() -> list[str]:
    """Return `<age in ms> <event> <detail>` of each note, oldest first, for the queue's scripts."""
    notes = _current.get()
    if notes is None:
        return []
    now = time.monotonic()
    return [f"{round((now - at) * 1000)} {text}" for at, text in notes.lines]

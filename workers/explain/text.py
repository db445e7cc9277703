"""Formats an explanation in human-readable form and for programs."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

from workers.explain.commands import needs_nobody
from workers.explain.moves import move_of
from workers.explain.timeline import Entry
from workers.explain.words import duration, moment, rfc3339

if TYPE_CHECKING:
    from workers.explain.facts import Cause
    from workers.queue.inspect import KeyState

# If more attempts than this failed with the same error, those in the middle are left out.
SHOWN_ATTEMPTS: Final = 3


def as_json(
    kind: str, name: str, cause: Cause, state: KeyState | None, entries: list[Entry]
) -> dict[str, Any]:
    """Return the explanation for `-o json` and `-o yaml`."""
    queue: dict[str, Any] = {}
    if state is not None:
        queue = {
            "key": state.key.text,
            "position": state.position,
            "waiting": state.waiting,
            "failures": state.fails,
            "next_attempt": rfc3339(state.due),
            "worker": state.lease[0] if state.lease else "",
            "in_use": state.in_use,
            "limit": state.limits.concurrency if state.limits else 0,
        }
    return {
        "object": kind,
        "name": name,
        "cause": cause.code,
        "problem": cause.is_problem,
        "text": cause.text,
        "advice": cause.advice,
        "move": move_of(cause),
        "commands": list(cause.commands),
        "until": rfc3339(cause.until),
        "queue": queue,
        "timeline": [{"at": rfc3339(entry.at), "text": entry.text} for entry in entries],
    }


def folded(entries: list[Entry]) -> list[Entry]:
    """Return the history; of many attempts with the same error, the middle ones are left out."""
    starts = [at for at, entry in enumerate(entries) if entry.text.startswith("taken by worker")]
    parts = [entries[a:b] for a, b in pairwise([*starts, len(entries)])]
    kinds = [tuple(one.text for one in part if one.text.startswith("error: ")) for part in parts]
    if len(parts) <= SHOWN_ATTEMPTS or len(set(kinds)) != 1 or not kinds[0]:
        return entries
    left_out = len(parts) - 2
    note = Entry(parts[-2][-1].at, f"... {left_out} more attempts failed with the same error")
    return [*entries[: starts[1]], note, *parts[-1]]


def next_lines(cause: Cause) -> list[str]:
    """Return the commands to run next, one per line, or a line that says that nobody has to act."""
    if cause.commands:
        return ["  Run next:", *(f"    {command}" for command in cause.commands)]
    return ["  Run next: nothing, nobody has to act."] if needs_nobody(cause) else []


def as_lines(title: str, cause: Cause, entries: list[Entry], now: float) -> list[str]:
    """Return the explanation as lines of plain text."""
    lines = [title, "", f"  {cause.text}"]
    if cause.advice and cause.advice not in cause.commands:
        lines.append(f"  -> {cause.advice}")
    lines.append(f"  Whose move: {move_of(cause)}.")
    lines += next_lines(cause)
    if entries:
        lines += ["", "What happened:"]
    before = None
    for entry in folded(entries):
        gap = f" (+{duration(entry.at - before)})" if before and entry.at - before >= 1 else ""
        lines.append(f"  {moment(entry.at)}  {entry.text}{gap}")
        before = entry.at
    if entries:
        lines.append(f"  {moment(now)}  now")
    return lines

"""Formats times and names in human-readable form."""

from __future__ import annotations

import difflib
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

WHEN_REJECTED: Final = (
    "Remove the cause of the rejection (a webhook, a policy, a quota or a missing permission). "
)
"""The general advice if the API server rejects an object of csi-fleet."""
_LATEST: Final = 32_503_680_000.0


def duration(seconds: float) -> str:
    """Format a duration: `0.4 s`, `12 s`, `3 min 5 s`, `2 h 10 min`, `3 d 4 h`."""
    if seconds < 10:
        return f"{max(0.0, seconds):.1f} s"
    whole = round(seconds)
    for size, name, part, part_name in ((86400, "d", 3600, "h"), (3600, "h", 60, "min")):
        if whole >= size:
            rest = whole % size // part
            return f"{whole // size} {name}" + (f" {rest} {part_name}" if rest else "")
    if whole >= 60:
        return f"{whole // 60} min" + (f" {whole % 60} s" if whole % 60 else "")
    return f"{whole} s"


def moment(at: float) -> str:
    """Format a time in UTC: `14:03:05Z` today, else with the date; limited to the year 3000."""
    when = datetime.fromtimestamp(min(max(at, 0.0), _LATEST), UTC)
    if when.date() == datetime.now(UTC).date():
        return when.strftime("%H:%M:%SZ")
    return when.strftime("%Y-%m-%d %H:%M:%SZ")


def rfc3339(at: float) -> str | None:
    """Format a time for programs: `2026-03-01T14:03:05.123Z`; None for 0, which means no time."""
    if at <= 0:
        return None
    when = datetime.fromtimestamp(min(at, _LATEST), UTC)
    return when.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def named(names: Iterable[str]) -> list[str]:
    """Sort drivers' names and drop empty ones, which mean work without a driver."""
    return sorted({name for name in names if name})


def nearest(name: str, known: Iterable[str]) -> str:
    """Return ` Did you mean "x"?` if a known name is similar, else ""."""
    found = closest(name, known)
    return f' Did you mean "{found}"?' if found else ""


def closest(name: str, known: Iterable[str]) -> str:
    """Return the known name that is most similar to a name; "" if none is similar."""
    found = difflib.get_close_matches(name, list(known), n=1, cutoff=0.75)
    return found[0] if found else ""


def stamp(text: str) -> float:
    """Convert an API timestamp to Unix time; 0 if it is invalid."""
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        return 0.0

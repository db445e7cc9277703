"""`csi-fleet shadow report`: shows how far a shadow agrees with the sidecar beside it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from workers.cli import terminal
from workers.cli.knowndrivers import served
from workers.engine.shadow.comparing import Verdict
from workers.errors import ConfigError
from workers.explain.words import moment, rfc3339
from workers.queue.shadows import SYSTEM, Shadows

if TYPE_CHECKING:
    from collections.abc import Iterator

    from workers.cli.tools import Tools

UNFORESEEN: Final = "unforeseen"
_HEAD: Final = ("DRIVER", "AGREES", "DIFFERS", "AGREEMENT", "UNFORESEEN", "FAILED", "GONE", "OPEN")
_SHOWN_DIFFERENCES: Final = 20


def run(tools: Tools) -> int:
    """Run the command; return 0 if all shadows have compared something and found no difference."""
    if tools.settings.arguments != ("report",):
        raise ConfigError(
            "the word `report` is missing. Run `csi-fleet shadow report`, or add "
            "--driver=NAME for a single driver"
        )
    driver = tools.settings.tool.driver
    report = gather(Shadows(tools.redis), driver)
    if driver not in ("", SYSTEM) and not any(one["counts"] for one in report.values()):
        served(tools, driver)  # nothing was compared: raises if the name is unknown
    if tools.is_data:
        tools.write("ShadowReport", {"drivers": {k: _as_fields(v) for k, v in report.items()}})
    else:
        show(report)
    problems = list(_problems(report))
    if not tools.is_data:
        terminal.write_lines((f"! {line}" for line in problems), style="bold yellow")
    return 1 if problems else 0


def _problems(report: dict[str, dict[str, Any]]) -> Iterator[str]:
    """Yield the reasons why this report does not justify moving a driver."""
    if not report:
        yield "nothing was compared"
    for name, one in report.items():
        if one["agreement"] is None:
            yield f"driver {name}: nothing was compared"
        elif differs := one["counts"].get(Verdict.DIFFERS):
            yield f"driver {name}: {differs} decisions differ"


def gather(shadows: Shadows, driver: str = "") -> dict[str, dict[str, Any]]:
    """Return each driver's counts, agreement, differences and waiting changes.

    The agreement is between 0 and 1, or None if nothing was compared.
    """
    names = [driver] if driver else shadows.drivers()
    found = {name: shadows.report(name) for name in names}
    for name, one in found.items():
        one["waiting"] = shadows.waiting(name)
        agrees, differs = (one["counts"].get(name, 0) for name in (Verdict.AGREES, Verdict.DIFFERS))
        one["agreement"] = agrees / (agrees + differs) if agrees + differs else None
    return found


def show(report: dict[str, dict[str, Any]]) -> None:
    """Print the report."""
    if not report:
        terminal.write(
            "no shadow has compared anything in this Redis. Check that --shadow is set and "
            "that the shadow uses this Redis"
        )
        return
    rows = []
    for name, one in report.items():
        counts, share = one["counts"], one["agreement"]
        rows.append(
            (
                name,
                counts.get(Verdict.AGREES, 0),
                counts.get(Verdict.DIFFERS, 0),
                "-" if share is None else f"{100 * share:.1f} %",
                counts.get(UNFORESEEN, 0),
                counts.get(Verdict.FAILED, 0),
                counts.get(Verdict.GONE, 0),
                one["open"],
            )
        )
    terminal.write_table("Shadow", _HEAD, rows)
    for name, one in report.items():
        for note in one["differences"][:_SHOWN_DIFFERENCES]:
            said = "; ".join(note["found"]) or note["verdict"]
            terminal.write(f"{moment(note['at'])} {name} {note['verdict']} {note['path']}: {said}")
    for name, one in report.items():
        for record in one["waiting"][:_SHOWN_DIFFERENCES]:
            asked = ", ".join(call["method"] for call in record["calls"]) or "no call"
            terminal.write(
                f"{moment(record['at'])} {name} open {record['path']}: {_what(record)} ({asked})"
            )


def _as_fields(one: dict[str, Any]) -> dict[str, Any]:
    """Return a driver's report as data, for programs."""
    timed = {
        name: [note | {"at": rfc3339(note["at"])} for note in one[name]]
        for name in ("differences", "waiting")
    }
    return one | timed


def _what(record: dict[str, Any]) -> str:
    """Describe the expected change that the sidecar has not made yet."""
    if record["wanted"] is None:
        return "not deleted yet"
    return "not created yet" if record["base"] is None else "not changed yet"

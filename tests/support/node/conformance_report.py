"""Reads the suite's report: state, name and reason of each test, as text and as a page."""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from tests.support.controlplane_binaries import KUBERNETES_VERSION
from tests.support.fleet import ROOT

PAGE = ROOT / "docs/conformance.md"
_NAME = re.compile(r"External Storage \[Driver: [^]]+\] \[Testpattern: ([^]]*)\] (.+)")


@dataclass(frozen=True, slots=True, order=True)
class Row:
    """One test of the driver: what it does, and with which kind of volume."""

    state: str
    test: str
    pattern: str
    reason: str = ""


def read_report(path: Path) -> list[Row]:
    """Return every test that was selected, in the order of state and name."""
    rows = []
    for suite in json.loads(path.read_text()):
        for spec in suite["SpecReports"] or ():
            failure = spec.get("Failure", {}).get("Message", "")
            is_left_out = spec["State"] == "skipped" and not failure  # excluded by --only or --skip
            if spec["LeafNodeType"] != "It" or is_left_out:
                continue
            name = " ".join([*(spec.get("ContainerHierarchyTexts") or []), spec["LeafNodeText"]])
            match = _NAME.fullmatch(name)
            pattern, test = match.groups() if match else ("", name)
            state = spec["State"] if spec["State"] in {"passed", "skipped"} else "failed"
            rows.append(Row(state, test, pattern.strip(), " ".join(failure.split())))
    return sorted(rows)


def summary(rows: Sequence[Row]) -> str:
    """Return a text for a terminal: the failed tests, and one line of counts."""
    failed = [row for row in rows if row.state == "failed"]
    lines = [f"FAILED {row.pattern}: {row.test}\n    {row.reason[:600]}" for row in failed]
    return "\n".join([*lines, _counts(rows)])


def write_section(driver: str, title: str, rows: Sequence[Row]) -> None:
    """Update one driver's part of the page; the rest is written by hand."""
    begin, end = f"<!-- begin {driver} -->", f"<!-- end {driver} -->"
    before, _, rest = PAGE.read_text().partition(begin)
    _, _, after = rest.partition(end)
    PAGE.write_text(f"{before}{begin}\n{_section(title, rows)}{end}{after}")


def _section(title: str, rows: Sequence[Row]) -> str:
    of = {state: [row for row in rows if row.state == state] for state in ("passed", "failed")}
    reasons: defaultdict[str, list[Row]] = defaultdict(list)
    for row in rows:
        if row.state == "skipped":
            reasons[_without_names(row.reason)].append(row)
    lines = [
        f"## {title}",
        "",
        f"Kubernetes {KUBERNETES_VERSION}, {datetime.now(UTC):%Y-%m-%d}: {_counts(rows)}.",
        "",
        *_table("Failed", "Reason", [(_told(row), row.reason[:300]) for row in of["failed"]]),
        *_table("Passed", "With", _by_test(of["passed"])),
        *_table(
            "Skipped because",
            "Tests",
            [(why, f"{len(those)}: {_suites(those)}") for why, those in sorted(reasons.items())],
        ),
    ]
    return "\n".join(lines)


def _table(left: str, right: str, cells: Sequence[tuple[str, str]]) -> list[str]:
    if not cells:
        return [f"{left}: none.", ""]
    escaped = [tuple(cell.replace("|", r"\|") for cell in pair) for pair in cells]
    return [f"| {left} | {right} |", "|---|---|", *(f"| {a} | {b} |" for a, b in escaped), ""]


def _by_test(rows: Sequence[Row]) -> list[tuple[str, str]]:
    patterns: defaultdict[str, list[str]] = defaultdict(list)
    for row in rows:
        patterns[row.test].append(row.pattern)
    return [(test, "; ".join(sorted(found))) for test, found in sorted(patterns.items())]


def _told(row: Row) -> str:
    return f"{row.test} ({row.pattern})"


def _without_names(reason: str) -> str:
    """Return the common part of the reasons for which tests were skipped; quoted names differ."""
    return re.sub(r'"[^"]*"', "...", reason).removesuffix(" - skipping")


def _suites(rows: Sequence[Row]) -> str:
    """Return the suites' own names: the first word of a test."""
    return ", ".join(sorted({row.test.split()[0] for row in rows}))


def _counts(rows: Sequence[Row]) -> str:
    counts = Counter(row.state for row in rows)
    return ", ".join(f"{counts[state]} {state}" for state in ("passed", "failed", "skipped"))

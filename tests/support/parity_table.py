"""Writes docs/parity.md, which shows where each rule of the specification is implemented and
tested.

`python -m tests.support.parity_table` reads docs/spec and the recorded cases, scans sources and
tests, and writes the document. docs/not-covered.yaml lists cases that are deliberately left out,
with the reason.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

import yaml

from tests.support.citations import Places, source_citations, test_citations
from tests.support.spec_ids import SpecId, read_spec

ROOT = Path(__file__).parents[2]
DOCUMENT = ROOT / "docs" / "parity.md"
NOT_COVERED = ROOT / "docs" / "not-covered.yaml"

# If there are more places than this, the cell contains their number instead of a list.
_LISTED = 6

_HEAD = """\
# Parity with the specification

Written by `python -m tests.support.parity_table`; do not edit. Rules: [spec](spec/README.md).
A rule's tests are those whose docstring cites it (with their number per file), a case's tests those
whose node id names it. "Recorded" are the reference's recorded cases that refer to the id. Tests
are under `tests/`.
"""


def read_not_covered() -> dict[str, str]:
    """Return the reasons why no test covers a case, by the case's id."""
    reasons: dict[str, str] | None = yaml.safe_load(NOT_COVERED.read_text(encoding="utf-8"))
    return reasons or {}


def render(ids: Sequence[SpecId], sources: Places, tests: Places, reasons: dict[str, str]) -> str:
    """Return the document's text: a summary, then a table per section in the specification's
    order."""
    lines = [_HEAD, *_summary(ids, sources, tests, reasons)]
    for (document, section), group in groupby(ids, key=lambda i: (i.document, i.section)):
        members = list(group)
        lines += ["", f"## {document}: {section}", ""]
        rules = [i for i in members if not i.is_case]
        cases = [i for i in members if i.is_case]
        if rules:
            lines += ["| Rule | Text | Source | Tests | Recorded |", "|---|---|---|---|---|"]
            lines += [_rule_row(i, sources, tests) for i in rules]
        if cases:
            lines += ["| Case | Text | Tests | Recorded |", "|---|---|---|---|"]
            lines += [_case_row(i, tests, reasons) for i in cases]
    return "\n".join(lines) + "\n"


def _summary(
    ids: Sequence[SpecId], sources: Places, tests: Places, reasons: dict[str, str]
) -> list[str]:
    lines = [
        "| Kind | Ids | Cited in source | Tested | Left out with a reason |",
        "|---|---|---|---|---|",
    ]
    kinds = Counter(i.name.partition("-")[0] for i in ids)
    for kind, total in kinds.items():
        names = [i.name for i in ids if i.name.partition("-")[0] == kind]
        in_source, tested = (sum(name in places for name in names) for places in (sources, tests))
        left_out = sum(name in reasons for name in names)
        lines.append(f"| {kind} | {total} | {in_source} | {tested} | {left_out} |")
    return lines


def _rule_row(rule: SpecId, sources: Places, tests: Places) -> str:
    files = Counter(node.partition("::")[0] for node in tests.get(rule.name, ()))
    counted = [f"{path} ({number})" for path, number in sorted(files.items())]
    cells = [_cell(sorted(sources.get(rule.name, ()))), _cell(counted), _cell(rule.recorded)]
    return f"| {rule.name} | {rule.text} | {' | '.join(cells)} |"


def _case_row(case: SpecId, tests: Places, reasons: dict[str, str]) -> str:
    covering = _cell(sorted(tests.get(case.name, ())))
    if case.name in reasons:
        covering = f"none: {reasons[case.name]}"
    return f"| {case.name} | {case.text} | {covering or '**missing**'} | {_cell(case.recorded)} |"


def _cell(places: list[str] | tuple[str, ...]) -> str:
    shown = list(places[:_LISTED])
    if len(places) > _LISTED:
        shown.append(f"and {len(places) - _LISTED} more")
    return ", ".join(shown)


def current() -> str:
    """Return the document as it should be now."""
    return render(read_spec(), source_citations(ROOT), test_citations(ROOT), read_not_covered())


def main() -> None:
    """Write the document."""
    DOCUMENT.write_text(current(), encoding="utf-8")


if __name__ == "__main__":
    main()

"""Reads the rules and cases of the specification, and the recorded cases that refer to them."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
SPEC = ROOT / "docs" / "spec"
PARITY = ROOT / "tests" / "parity"

RULE_PREFIXES = (
    *("P", "L", "F", "CAP", "CL", "SN", "ND", "RB", "M", "S", "D"),
    *("A", "DA", "MA"),
    *("R", "DR", "MR"),
    *("SNA", "SNC", "SNS", "SNG", "SND", "SNQ"),
    *("LP", "LPD", "NR", "NRD"),
    *("DV", "DVD"),
    *("VH", "VHD"),
)
CASE_PREFIXES = ("T", "C", "TA", "TR", "SNT", "LPT", "NRT", "DVT", "VHT")
CASE_FOLDERS = (
    *("cases", "cases-attacher", "cases-resizer", "cases-snapshots", "cases-data-sources"),
    "cases-found",
)

_PREFIX = "|".join((*RULE_PREFIXES, *CASE_PREFIXES))
_ID = rf"(?:{_PREFIX})-\d{{3}}"
# "P-600..P-614" and "P-600..614" name all ids in between; ids of other documents (TA-, SNC-) do not
# match.
_CITED = re.compile(rf"(?<![A-Za-z0-9-])({_ID})(?!\d)(?:\.\.(?:(?:{_PREFIX})-)?(\d{{3}})(?!\d))?")
_DEFINED = re.compile(rf"^(?:\* |- |\| )?(?:\*\*)?({_ID})(?!\d)(?:\*\*)?(.*)$")
_HEADING = re.compile(r"^#{2,3} (.+)$")
_WORDS = 64


@dataclass(frozen=True, slots=True)
class SpecId:
    """One rule or test case of the specification.

    Attributes:
        name: the id, for example `P-600` or `T-180`.
        document: file name without suffix.
        section: heading the id stands under.
        text: its first words.
        recorded: recorded cases that refer to it, sorted.
    """

    name: str
    document: str
    section: str
    text: str
    recorded: tuple[str, ...]

    @property
    def is_case(self) -> bool:
        """Return True if this is a test case, not a rule."""
        return self.name.partition("-")[0] in CASE_PREFIXES


def cited(text: str) -> set[str]:
    """Return all ids that a text names, with ranges expanded: `P-600..P-602` is three ids."""
    found = set()
    for first, last in _CITED.findall(text):
        prefix, _, start = first.rpartition("-")
        numbers = range(int(start), int(last or start) + 1)
        found |= {f"{prefix}-{number:03}" for number in numbers}
    return found


@cache
def read_spec() -> tuple[SpecId, ...]:
    """Parse the documents of docs/spec and the references of the recorded cases."""
    recorded = recorded_references()
    return tuple(
        SpecId(name, path.stem, section, text, tuple(recorded.get(name, ())))
        for path in sorted(SPEC.glob("*.md"))
        for name, section, text in _definitions(path)
    )


def recorded_references() -> dict[str, list[str]]:
    """Return the recorded cases that name an id in `spec_refs`, by id."""
    references: defaultdict[str, list[str]] = defaultdict(list)
    for folder in CASE_FOLDERS:
        for path in sorted((PARITY / folder).glob("*.json")):
            case = json.loads(path.read_text(encoding="utf-8"))
            for name in case["spec_refs"]:
                references[name].append(case["id"])
    return references


def _definitions(path: Path) -> list[tuple[str, str, str]]:
    """Return (id, section, first words) of each line that starts with an id."""
    found = []
    section = ""
    for line in path.read_text(encoding="utf-8").splitlines():
        if heading := _HEADING.match(line):
            section = heading[1]
        elif defined := _DEFINED.match(line):
            found.append((defined[1], section, _first_words(defined[2])))
    return found


def _first_words(text: str) -> str:
    """Return plain words that are short enough for a table cell."""
    words = re.sub(r"[`*|\t]|\[[RQD]\]", " ", text).split()
    line = " ".join(words)
    return line if len(line) <= _WORDS else line[:_WORDS].rsplit(" ", 1)[0] + " ..."

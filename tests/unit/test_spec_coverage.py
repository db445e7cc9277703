"""Every test case of the specification has a test, and docs/parity.md is up to date."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support import parity_table
from tests.support.citations import source_citations
from tests.support.citations import test_citations as covered_by
from tests.support.spec_ids import cited, read_spec, recorded_references

# Sections whose cases must all be covered or excused, by document.
DUE = {
    "provisioning": (
        "Basics and parameters",
        "Access modes and volume mode",
        "Secrets",
        "Response handling",
        "Claim gates",
        "VolumeAttributesClass",
        "Snapshot restore",
        "Clone",
        "Topology",
        "Node deployment",
        "Delete",
        "Migration",
        "Start-up and sweep",
    ),
    "controllers": (
        "8.1 Claim decision and provisioning",
        "8.2 Saving the PV",
        "8.3 Deletion and finalizers",
        "8.4 Metrics and events",
        "8.5 Capacity",
        "8.6 Cloning and snapshot finalizers",
        "8.7 Node deployment",
        "8.8 Process",
    ),
    "resizing": (
        "11.1 Entry",
        "11.2 Target and states",
        "11.3 Errors",
        "11.4 Annotation, block, capability, migration",
        "11.5 Offline",
        "11.6 Modify",
        "11.7 Start-up, both together",
    ),
    "snapshotting": ("Controller", "Deletion", "Sidecar", "Active-active and crash"),
    "attaching": ("11.1", "11.2", "11.3", "11.4", "11.5", "11.6", "11.7"),
    "node-side": ("1.6 Tests", "2.6 Tests"),
    "data-sources": ("4. Tests",),
    "volume-health": ("6. Tests",),
}

REGENERATE = "run: python -m tests.support.parity_table"


def test_due_cases_are_covered_or_excused() -> None:
    """A case without a test is a behaviour that could be lost unnoticed."""
    covered, excused = covered_by(parity_table.ROOT), parity_table.read_not_covered()
    missing = [
        f"{case.name} ({case.section.partition(' (')[0]}): {case.text}"
        for case in read_spec()
        if case.is_case
        and case.section.startswith(DUE.get(case.document, ()))
        and case.name not in covered
        and case.name not in excused
    ]
    assert not missing, "\n".join(missing)


def test_due_sections_exist() -> None:
    """A renamed heading must not silence the check."""
    sections = {(i.document, i.section) for i in read_spec() if i.is_case}
    for document, titles in DUE.items():
        known = [section for name, section in sections if name == document]
        assert [t for t in titles if not any(s.startswith(t) for s in known)] == []


def test_excuses_are_needed_and_explained() -> None:
    """An excuse names a case of the specification and is removed once the case has a test."""
    covered = covered_by(parity_table.ROOT)
    cases = {i.name for i in read_spec() if i.is_case}
    for name, reason in parity_table.read_not_covered().items():
        assert name in cases
        assert name not in covered
        assert len(reason.split()) >= 3


def test_tests_name_only_ids_of_the_specification() -> None:
    """A mistyped id would silently cover nothing."""
    known = {i.name for i in read_spec()}
    unknown = {
        name: nodes for name, nodes in covered_by(parity_table.ROOT).items() if name not in known
    }
    assert unknown == {}


def test_the_document_is_up_to_date() -> None:
    """docs/parity.md is generated, so it must never be outdated."""
    written = parity_table.DOCUMENT.read_text(encoding="utf-8")
    assert written == parity_table.current(), REGENERATE


def test_sources_and_recorded_cases_name_only_ids_of_the_specification() -> None:
    """OPS-14: docs/spec defines every id that a reader finds."""
    known = {i.name for i in read_spec()}
    named = {**source_citations(parity_table.ROOT), **recorded_references()}
    assert {name: places for name, places in named.items() if name not in known} == {}


def test_every_known_defect_has_an_answer() -> None:
    """docs/differences.md has exactly one answer for each defect."""
    text = (parity_table.ROOT / "docs" / "differences.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (D-\d{3}) \|", text, re.MULTILINE)
    undecided = cited(text.partition("\n## Open\n")[2].partition("\n## ")[0])
    defects = [i.name for i in read_spec() if i.name.startswith("D-")]
    assert sorted([*rows, *undecided]) == defects


def test_every_known_defect_of_resizing_has_an_answer() -> None:
    """The same holds for the defects of csi-resizer."""
    text = (parity_table.ROOT / "docs" / "differences.md").read_text(encoding="utf-8")
    first_cells = re.findall(r"^\| (DR-[^|]*) \|", text, re.MULTILINE)
    answered = [name for cell in first_cells for name in re.findall(r"DR-\d{3}", cell)]
    assert sorted(answered) == [i.name for i in read_spec() if i.name.startswith("DR-")]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("see P-310 and P-311.", {"P-310", "P-311"}),
        ("P-600..P-602", {"P-600", "P-601", "P-602"}),
        ("CAP-020..022", {"CAP-020", "CAP-021", "CAP-022"}),
        ("XY-001, P-1, P-1234, xP-100", set()),
        ("P-511..", {"P-511"}),
    ],
)
def test_citations_are_found(text: str, expected: set[str]) -> None:
    """Ranges count in full; other documents' ids and other numbers do not count."""
    assert cited(text) == expected


SCANNED = '''
"""Module text is no test: P-001."""
TABLE = [pytest.param(1, id="C-001 one"), pytest.param(2, id="plain C-009")]

@pytest.mark.parametrize("x", TABLE)
def test_t001_t002_both(x):
    """P-600..P-601 and T-050."""

class TestGroup:
    @pytest.mark.parametrize("x", [pytest.param(1, id="T-003 three"), "text"])
    async def test_inner(self, x):
        pass

def helper_t004_no_test():
    pass
'''


def test_coverage_is_read_from_names_ids_and_docstrings(tmp_path: Path) -> None:
    """Cases count only by node id, and rules only by docstring."""
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_x.py").write_text(SCANNED, encoding="utf-8")
    both, inner = "test_x.py::test_t001_t002_both", "test_x.py::TestGroup::test_inner"
    named = {name: {both} for name in ("T-001", "T-002", "C-001", "P-600", "P-601")}
    assert covered_by(tmp_path) == {**named, "T-003": {inner}}

"""Mutants differ from their source, and their tests exist."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.support.mutants.__main__ import files, survivors_in
from tests.support.mutants.breaking import ROOT, Mutant, choose, mutants_of
from tests.support.mutants.noticing import SUITES, Known, suites_for

TAKE = "workers/queue/lua/take.lua"


def test_a_python_mutant_still_compiles_and_differs():
    path = ROOT / "workers" / "queue" / "leases.py"
    source = ast.unparse(ast.parse(path.read_text()))
    found = mutants_of(path)
    assert found
    for mutant in found:
        ast.parse(mutant.text)
        assert mutant.text != source


def test_a_lua_mutant_differs_in_one_line():
    lines = (ROOT / TAKE).read_text().splitlines()
    for mutant in mutants_of(ROOT / TAKE):
        changed = mutant.text.splitlines()
        assert [n for n, line in enumerate(lines, 1) if changed[n - 1] != line] == [mutant.line]


CODE = """
from typing import TYPE_CHECKING
if TYPE_CHECKING:
    import x
@dataclass(frozen=True)
class C(Struct, gc=False):
    kind: Literal[True] = {}
    def f(self) -> None:
        _log.info("no %s", 1 + 1)
"""


def test_nothing_is_broken_that_no_run_can_show(tmp_path, monkeypatch):
    monkeypatch.setattr("tests.support.mutants.breaking.ROOT", tmp_path)
    (tmp_path / "c.py").write_text(CODE.format("{}"))
    assert mutants_of(tmp_path / "c.py") == []
    (tmp_path / "c.py").write_text(CODE.format("True").replace("_log.info", "call"))
    assert [(one.line, one.what, one.scope) for one in mutants_of(tmp_path / "c.py")] == [
        (7, "True -> False", 0),
        (9, "without call('no %s', 1 + 1)", 8),
        (9, "Add -> Sub", 8),
    ]


@pytest.mark.parametrize("folder", SUITES)
def test_each_package_has_tests(folder):
    path = next(Path(ROOT / folder).rglob("*.py"))
    assert suites_for(str(path.relative_to(ROOT))) == list(SUITES[folder])


def test_a_seed_chooses_the_same_mutants():
    found = choose(files("queue/l"), 3, 7)
    assert len(found) == 3
    assert found == choose(files("queue/l"), 3, 7)


def test_survivors_are_found_again(tmp_path):
    first, second = mutants_of(ROOT / TAKE)[:2]
    report = tmp_path / "report"
    report.write_text(f"killed   {first} | by t\nSURVIVED {second} | local x = 'a | b'\n")
    assert survivors_in(report) == [second]


def test_tests_that_run_the_line_come_first():
    """If no test runs it, the tests of its function run; the quickest come first."""
    slow, quick, far = (
        "tests/unit/a.py::slow",
        "tests/unit/a.py::quick",
        "tests/integration/b.py::t",
    )
    lines = {"w.py:7": [slow, far, quick], "w.py:3": [slow], TAKE: [far]}
    known = Known({slow: 3.0, quick: 1.0, far: 0.1, "long": 99.0}, lines)
    assert known.tests_of(Mutant("w.py", 7, "", "", 3)) == [far, quick, slow]
    assert known.tests_of(Mutant("w.py", 8, "", "", 3)) == [slow]
    assert known.tests_of(Mutant("w.py", 1, "", "")) == []
    assert known.tests_of(Mutant(TAKE, 1, "", "", "taken")) == [far]
    library = Mutant(str(Path(TAKE).with_name("lib.lua")), 1, "", "", "wake_lane")
    assert known.tests_of(library) == [far]
    known.failing = [far]
    assert known.tests_of(library) == []

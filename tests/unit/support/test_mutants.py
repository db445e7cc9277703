"""Mutants are different from their source, and their tests exist."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.support.mutants import ROOT, SUITES, choose, mutants_of, suites_for


def test_a_python_mutant_still_compiles_and_differs():
    path = ROOT / "workers" / "queue" / "locks.py"
    source = ast.unparse(ast.parse(path.read_text()))
    found = list(mutants_of(path))
    assert found
    for mutant in found:
        ast.parse(mutant.text)
        assert mutant.text != source


def test_a_lua_mutant_differs_in_one_line():
    path = ROOT / "workers" / "queue" / "lua" / "take.lua"
    lines = path.read_text().splitlines()
    for mutant in mutants_of(path):
        changed = mutant.text.splitlines()
        assert len(lines) - len(changed) in {0, 1}
        assert changed != lines


@pytest.mark.parametrize("folder", SUITES)
def test_each_package_has_tests(folder):
    path = next(Path(ROOT / folder).rglob("*.py"))
    assert suites_for(str(path.relative_to(ROOT)))


def test_a_seed_chooses_the_same_mutants():
    assert [str(m) for m in choose(3, 7, "queue/l")] == [str(m) for m in choose(3, 7, "queue/l")]

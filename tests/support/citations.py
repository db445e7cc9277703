"""Finds the sources that cite a rule and the tests that cover a rule or case, from their text.

A test covers a case (T-nnn, TA-nnn, ...) if its node id names the case: in the function's name
(`test_t001_...`) or at the start of a parameter id (`pytest.param(..., id="T-001 kept")`). The
parameter id may be in the decorator, or in a table of the module that the decorator names. A test
also covers a rule that its docstring cites. In the documents since attaching.md, this also applies
to cases.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from tests.support.spec_ids import CASE_PREFIXES, cited

SOURCES = ("csi_client", "workers", "watcher", "k8s")
SOURCE_SUFFIXES = frozenset({".py", ".lua", ".yaml", ".proto"})

_IN_NAME = re.compile(rf"_({'|'.join(CASE_PREFIXES).lower()})(\d{{3}})(?=_|$)")
_PARAMETER_ID = re.compile(rf"(?:{'|'.join(CASE_PREFIXES)})-\d{{3}}(?!\d)")
# The tests of these documents are older than this rule: their docstrings mention cases that they do
# not cover.
_BY_NAME_ONLY = frozenset({"T", "C"})

Places = dict[str, set[str]]
Function = ast.FunctionDef | ast.AsyncFunctionDef


def source_citations(root: Path) -> Places:
    """Return the source files that cite each rule id, as posix paths under the root."""
    places: defaultdict[str, set[str]] = defaultdict(set)
    for folder in SOURCES:
        for path in (root / folder).rglob("*"):
            if path.suffix in SOURCE_SUFFIXES and "_generated" not in path.parts:
                for name in cited(path.read_text(encoding="utf-8")):
                    places[name].add(path.relative_to(root).as_posix())
    return places


def test_citations(root: Path) -> Places:
    """Return the tests that cover each rule or case id, as `path::function` under the root's
    `tests`."""
    places: defaultdict[str, set[str]] = defaultdict(set)
    for path in (root / "tests").rglob("test_*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        tables = _tables(tree)
        for qualified, function in _tests(tree):
            node = f"{path.relative_to(root / 'tests').as_posix()}::{qualified}"
            for name in _cases(function, tables) | _rules(function):
                places[name].add(node)
    return places


def _tests(tree: ast.AST, owner: str = "") -> Iterator[tuple[str, Function]]:
    """Yield every test function with its name inside the file, including those in classes."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.ClassDef):
            yield from _tests(node, f"{owner}{node.name}::")
        elif isinstance(node, Function) and node.name.startswith("test_"):
            yield owner + node.name, node


def _rules(function: Function) -> set[str]:
    found = cited(ast.get_docstring(function) or "")
    return {name for name in found if name.partition("-")[0] not in _BY_NAME_ONLY}


def _cases(function: Function, tables: dict[str, ast.expr]) -> set[str]:
    found = {f"{kind.upper()}-{number}" for kind, number in _IN_NAME.findall(function.name)}
    for decorator in function.decorator_list:
        found |= _parameter_ids(decorator, tables)
    return found


def _tables(tree: ast.Module) -> dict[str, ast.expr]:
    """Return the expression that is assigned to each module level name."""
    tables: dict[str, ast.expr] = {}
    for node in tree.body:
        if isinstance(node, ast.Assign):
            tables |= {t.id: node.value for t in node.targets if isinstance(t, ast.Name)}
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value:
            tables[node.target.id] = node.value
    return tables


def _parameter_ids(expression: ast.expr, tables: dict[str, ast.expr]) -> set[str]:
    """Return the cases that the strings of an expression name, and those of the tables it names."""
    found: set[str] = set()
    for node in ast.walk(expression):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            if _PARAMETER_ID.match(node.value):
                found |= cited(node.value)
        elif isinstance(node, ast.Name) and node.id in tables:
            rest = {name: table for name, table in tables.items() if name != node.id}
            found |= _parameter_ids(tables[node.id], rest)
    return found

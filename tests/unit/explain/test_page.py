"""docs/cli.md has every stable word of explain and every kind of work of status."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from workers.controllers import catalogue
from workers.controllers.attacher.names import Reason

ROOT = Path(__file__).resolve().parents[3]
# Made of the word of what failed, or the reason that the pass stored, in
# workers/controllers/attacher/explain.py.
MADE_UP = {"attach-failed", "detach-failed", *filter(None, Reason)} - {Reason.SECRET_MISSING}


def words(node, known):
    """Every constant that an expression may be; a name may be all that it is set to."""
    if isinstance(node, ast.Constant):
        return {node.value}
    if isinstance(node, ast.IfExp):
        return words(node.body, known) | words(node.orelse, known)
    return known.get(node.id, set()) if isinstance(node, ast.Name) else set()


def known_causes():
    """First arguments of `Cause(...)` in the whole of our code."""
    found = set()
    for path in (ROOT / "workers").rglob("*.py"):
        tree = ast.parse(path.read_text("utf-8"))
        known = {}
        for node in ast.walk(tree):
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant):
                for target in node.targets:
                    name = getattr(target, "id", "")
                    known.setdefault(name, set()).add(node.value.value)
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Cause":
                found |= words(node.args[0], known)
    return found | MADE_UP


def on_page():
    """Words of the first column of the table of causes."""
    text = (ROOT / "docs" / "cli.md").read_text("utf-8")
    table = text.partition("| Cause | Meaning |")[2].partition("\n\n")[0]
    cells = (row.split("|")[1] for row in table.splitlines() if "|" in row)
    return {word for cell in cells for word in re.findall(r"`([^`]+)`", cell)}


def test_every_cause_is_on_the_page():
    assert known_causes() - on_page() == set()


def test_the_page_has_no_cause_that_is_gone():
    assert on_page() - known_causes() == set()


def test_every_kind_of_work_that_status_shows_is_in_its_legend():
    text = (ROOT / "docs" / "cli.md").read_text("utf-8")
    legend = text.partition("kind of WORK:")[2].partition("STATE is")[0]
    shown = {kind.name for kind in catalogue.kinds().values() if kind.noun}
    assert set(re.findall(r"`([^`]+)`", legend)) == shown

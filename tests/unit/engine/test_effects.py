"""A reconcile changes the world only through `context.effects` (STR-6).

mypy ensures that nothing else writes to the API server: `Context.kube` can only read.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
FILES = sorted(
    path
    for folder in ("workers/controllers", "workers/custom")
    for path in (ROOT / folder).rglob("*.py")
)
# Code that reads the driver itself uses `effects.client(driver)` or the driver's own record.
ENTRANCES = {"client", "events", "steps"}
HOLDERS = {"driver", "_driver", "context", "_context", "runtime"}


def named(node: ast.AST) -> str:
    """Return the last name of the expression that the attribute belongs to."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_controller_goes_past_the_port(path):
    """No controller bypasses the port with `driver.client`, `context.events` or `context.steps`."""
    past = [
        f"{path.name}:{node.lineno}"
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute)
        and node.attr in ENTRANCES
        and named(node.value) in HOLDERS
    ]
    assert past == []

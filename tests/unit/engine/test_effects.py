"""A pass changes the world through `context.effects` alone (STR-6).

That the API server is written by nothing else is mypy's to say: `Context.kube` only reads.
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
# What reads the driver itself: `effects.client(driver)`, and the driver's own record.
ENTRANCES = {"client", "events", "steps"}
HOLDERS = {"driver", "_driver", "context", "_context", "runtime"}


def named(node: ast.AST) -> str:
    """The last word of what an attribute is asked of."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_controller_goes_past_the_port(path):
    """`driver.client`, `context.events`, `context.steps`: what the port stands before."""
    past = [
        f"{path.name}:{node.lineno}"
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute)
        and node.attr in ENTRANCES
        and named(node.value) in HOLDERS
    ]
    assert past == []

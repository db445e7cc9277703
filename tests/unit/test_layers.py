"""Every module has its place in the import contract, so that none escapes it (STR-13)."""

from __future__ import annotations

import ast
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]


def layers() -> set[str]:
    """Return the modules and packages that the first contract names."""
    text = (ROOT / "pyproject.toml").read_text("utf-8")
    contract = tomllib.loads(text)["tool"]["importlinter"]["contracts"][0]
    assert contract["type"] == "layers"
    return {
        name.strip()
        for line in contract["layers"]
        for part in line.split("|")
        for name in part.split(":")
    }


def modules() -> set[str]:
    """Return all modules of csi-fleet except `__init__.py` files, which only hold a docstring."""
    return {
        ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for folder in ("workers", "watcher", "csi_client")
        for path in (ROOT / folder).rglob("*.py")
        if path.name != "__init__.py"
    }


def test_every_module_is_in_a_layer():
    known = layers()
    missing = {
        module
        for module in modules()
        if not any(module == layer or module.startswith(f"{layer}.") for layer in known)
    }
    assert missing == set()


def test_no_layer_names_what_is_gone():
    known = modules()
    assert {
        layer
        for layer in layers()
        if not any(module == layer or module.startswith(f"{layer}.") for module in known)
    } == set()


def imports_of(path: Path, known: set[str]) -> set[str]:
    """Return the csi-fleet modules that a module imports, also in functions or only for types."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= (names & known) or {node.module}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return found & known


def test_no_modules_import_each_other_in_a_circle():
    """STR-2: a module never depends on itself through its imports, not even for types."""
    known = modules()
    graph = {name: imports_of(ROOT / f"{name.replace('.', '/')}.py", known) for name in known}
    while leaves := {name for name, needed in graph.items() if not needed}:
        graph = {name: needed - leaves for name, needed in graph.items() if name not in leaves}
    assert graph == {}, "what stands in a circle, and what needs it"

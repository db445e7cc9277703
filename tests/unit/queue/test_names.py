"""Every Redis key is declared in one place."""

from __future__ import annotations

import re

import pytest

from workers.queue.names import NAMES, PREFIX, celery_queue, declared
from workers.queue.scripts import _LUA, source


@pytest.mark.parametrize(
    ("name", "is_declared"),
    [
        ("epoch", True),
        ("ready:claims|d", True),
        ("epoch:x", False),
        ("ready", False),
        ("unknown", False),
    ],
)
def test_declared_knows_keys_and_families(name: str, is_declared: bool) -> None:
    assert (declared(PREFIX + name) is not None) == is_declared
    assert declared(name) is None


def test_scripts_use_declared_names_only() -> None:
    """A name spelled in Lua by hand would escape repair and review."""
    for entry in _LUA.iterdir():
        if entry.name.endswith(".lua"):
            script = entry.read_text("utf-8")
            used = set(re.findall(r"\bK\.(\w+)", script))
            assert used <= NAMES.keys() | {"celery"}, entry.name
            assert PREFIX not in script, entry.name


def test_every_declared_name_is_used() -> None:
    lua = "".join(e.read_text("utf-8") for e in _LUA.iterdir() if e.name.endswith(".lua"))
    unused = {name for name in NAMES if not re.search(rf"\bK\.{name}\b", lua)}
    from_python = {name for name in NAMES if name.startswith("capacity")} | {"period"}
    from_python |= {name for name in NAMES if name.startswith("shadow_")}
    from_python |= {"class_pauses", "fellows", "presence", "quarantined", "recovery_guard"}
    assert unused <= from_python, "these are written from Python"


def test_source_has_the_names_in_front() -> None:
    digest, script = source("add")
    assert len(digest) == 40
    assert f"epoch = '{PREFIX}epoch'" in script
    assert celery_queue("d") == "drv.d"

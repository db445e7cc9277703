"""Every Redis key is declared in one place."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from workers.queue import scripts
from workers.queue.names import NAMES, PREFIX, USUAL, Names, celery_queue
from workers.queue.scripts import _LUA, library


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
    assert (USUAL.declared(PREFIX + name) is not None) == is_declared
    assert USUAL.declared(name) is None
    assert USUAL.declared(f"another:{name}") is None


def test_scripts_use_declared_names_only() -> None:
    """A name written in Lua by hand would escape repair and review."""
    for entry in _LUA.iterdir():
        if entry.name.endswith(".lua"):
            script = entry.read_text("utf-8")
            used = set(re.findall(r"\bK\.(\w+)", script))
            assert used <= NAMES.keys() | {"celery"}, entry.name
            assert PREFIX not in script, entry.name


def test_scripts_name_a_key_of_a_family_and_a_single_key_as_it_is() -> None:
    """A prefix without its driver would be a key that nothing else reads."""
    found = [
        (NAMES[name].is_family, bool(suffix), entry.name, name)
        for entry in _LUA.iterdir()
        if entry.name.endswith(".lua")
        for name, suffix in re.findall(
            r"redis\.p?call\('\w+',\s*K\.(\w+)\s*(\.\.)?", entry.read_text("utf-8")
        )
    ]
    assert len(found) > 100
    assert [one for one in found if one[0] != one[1]] == []


def test_every_declared_name_is_used() -> None:
    lua = "".join(e.read_text("utf-8") for e in _LUA.iterdir() if e.name.endswith(".lua"))
    unused = {name for name in NAMES if not re.search(rf"\bK\.{name}\b", lua)}
    from_python = {name for name in NAMES if name.startswith("capacity")}
    from_python |= {name for name in NAMES if name.startswith("shadow_")}
    from_python |= {
        "doubts",
        "fellows",
        "installation",
        "presence",
        "quarantined",
    }
    assert unused <= from_python, "these are written from Python"


def test_the_library_has_the_names_in_front() -> None:
    _, script = library()
    assert f"epoch = '{PREFIX}epoch'" in script
    assert celery_queue("d") == "drv.d"


def test_each_cluster_has_scripts_with_its_own_names() -> None:
    """STR-8: no name is fixed when a module is imported."""
    other = Names("csifleet-b:")
    _, script = library(other)
    assert "epoch = 'csifleet-b:epoch'" in script
    assert f"'{PREFIX}" not in script
    assert "celery = 'csifleet-b:drv.'" in script
    assert library(other)[0] != library()[0]


def test_no_module_keeps_a_full_name() -> None:
    """Code that needs a full name asks its client."""
    found = [
        path.name
        for path in Path(scripts.__file__).parent.glob("*.py")
        if ".full\n" in path.read_text("utf-8") or "].full" in path.read_text("utf-8")
    ]
    assert found == []


def test_a_comment_makes_no_other_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise each changed comment would need a new library in every Redis."""
    build, body = library.__wrapped__, scripts._body  # bypasses the cache
    before, _ = build()
    monkeypatch.setattr(scripts, "_body", lambda name: f"-- for readers\n{body(name)}")
    name, text = build()
    assert "-- for readers" in text
    assert name == before
    monkeypatch.setattr(scripts, "_body", lambda name: f"local more = 1\n{body(name)}")
    assert build()[0] != before


def test_no_string_of_the_scripts_looks_like_a_comment() -> None:
    code = "".join(scripts._body(name) for name in (*scripts.script_names(), *scripts._SHARED))
    unclosed = [line for line in re.sub(r"(?m)--.*", "", code).splitlines() if line.count("'") % 2]
    assert unclosed == []

"""What the queue knows about each kind of key, in the form that its scripts get."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from workers.controllers import catalogue
from workers.queue.kinds import (
    DRIVER_KINDS,
    KINDS,
    QueueKind,
    apart,
    kinds_of,
    lua_tables,
    place_of,
    places,
)

# name, calls the driver, has a history, suffix of a separate queue
TABLE = {
    ("claims", True, True, ""),
    ("volumes", True, True, ""),
    ("cloning", False, False, ""),
    ("sweep", False, False, ""),
    ("capacity", True, False, ""),
    ("changes", True, True, "#resizer"),
    ("contents", True, True, "#snapshotter"),
    ("group-contents", True, True, "#snapshotter"),
    ("snapshots", False, True, "#snapshot-controller"),
    ("bindings", False, True, "#snapshot-controller"),
    ("group-snapshots", False, True, "#snapshot-controller"),
    ("group-bindings", False, True, "#snapshot-controller"),
    ("snapshot-sources", False, False, "#snapshot-controller"),
    ("attachments", True, True, "#attacher"),
    ("detachments", True, True, "#attacher"),
    ("forced-attachments", False, True, "#attacher"),
    ("attach-finalizers", False, False, "#attacher"),
    ("reconcile-attachments", False, False, "#attacher"),
    ("data-sources", False, True, "#data-source-validator"),
    ("health", True, True, "#health"),
}
SYSTEM = {"snapshots", "bindings", "group-snapshots", "group-bindings", "snapshot-sources"}
SYSTEM |= {"data-sources"}


def test_each_kind_is_known_as_it_is():
    assert {(one.name, one.calls_driver, one.has_trail, one.apart) for one in KINDS} == TABLE
    assert set(DRIVER_KINDS) == {name for name, *_ in TABLE} - SYSTEM


@pytest.mark.parametrize(
    ("name", "part_of", "expected"),
    [
        ("provisioner", "", ""),
        ("capacity", "provisioner", ""),
        ("resizer", "", "#resizer"),
        ("part", "resizer", "#resizer"),
    ],
)
def test_a_part_has_the_place_of_its_whole(name, part_of, expected):
    """Two workers of one driver may run different controllers, each with all its parts."""
    assert apart(SimpleNamespace(name=name, part_of=part_of)) == expected


@pytest.mark.parametrize("one", KINDS, ids=lambda one: one.name)
def test_work_is_announced_to_the_driver_s_or_to_all_workers(one):
    assert place_of("d", one.name) == f"d{one.apart}"
    assert place_of("", one.name) == f"system-{one.name}"


@pytest.mark.parametrize("spec", catalogue.SPECS, ids=lambda spec: spec.name)
def test_a_controller_reads_the_lists_of_its_kinds(spec):
    kinds = {kind.name for kind in spec.kinds}
    assert places("", [spec]) == {f"system-{name}" for name in kinds & SYSTEM}
    assert places("d", [spec]) == ({f"d{apart(spec)}"} if kinds - SYSTEM else set())


def test_of_a_kind_of_which_nothing_is_said_scripts_know_the_name():
    calls, told = QueueKind("a", calls_driver=True), QueueKind("b", has_trail=True, apart="#c")
    tables = lua_tables([QueueKind("plain"), calls, told])
    assert tables == (
        "local KINDS = { 'plain', 'a', 'b' }\n"
        "local CALL_KINDS = { 'a' }\n"
        "local TRAILED = { ['b'] = true }\n"
        "local APART = { ['b'] = '#c' }\n"
    )


@pytest.mark.parametrize("spec", catalogue.SPECS, ids=lambda spec: spec.name)
def test_whoever_is_woken_takes_the_kinds_of_that_place(spec):
    """`kinds_of` reads what `place_of` wrote."""
    every = [kind for one in catalogue.SPECS for kind in one.kinds]
    for kind in spec.kinds:
        driver, kinds = kinds_of(place_of("d" if kind.has_driver else "", kind.name), every)
        assert driver == ("d" if kind.has_driver else "")
        assert kind.name in kinds
        assert len({place_of(driver, name) for name in kinds}) == 1
    assert kinds_of("d#nobody", every) == ("d", ())

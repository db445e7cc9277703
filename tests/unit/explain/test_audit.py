"""An audit reports only what two looks agree on, never what may be in flight."""

from __future__ import annotations

import pytest

from workers.explain.audit import Look, compare

FIRST = Look(at=100.0, listed={"v1": 1, "leak": 5}, volumes={"v1": ("pv1", "u1")})
SECOND = Look(at=160.0, listed={"v1": 1, "leak": 5}, volumes={"v1": ("pv1", "u1")})


def changed(look, **changes):
    values = {name: getattr(look, name) for name in Look.__slots__}
    return Look(**(values | changes))


def test_a_leak_is_found():
    assert dict(compare(FIRST, SECOND).orphans) == {"leak": 5}


def test_a_pv_without_volume_is_found():
    volumes = {"v1": ("pv1", "u1"), "gone": ("pv2", "u2")}
    found = compare(changed(FIRST, volumes=volumes), changed(SECOND, volumes=volumes))
    assert dict(found.missing) == {"pv2": "gone"}


def test_a_volume_that_another_node_s_driver_has_is_not_missing():
    volumes = {"gone": ("pv2", "u2"), "theirs": ("pv3", "u3")}
    second = changed(SECOND, volumes=volumes, elsewhere=frozenset({"pv3"}))
    assert dict(compare(changed(FIRST, volumes=volumes), second).missing) == {"pv2": "gone"}


def test_one_look_is_not_enough():
    assert compare(changed(FIRST, listed={"v1": 1}), SECOND).orphans == {}
    volumes = {"v1": ("pv1", "u1"), "new": ("pv3", "u3")}
    assert compare(FIRST, changed(SECOND, volumes=volumes)).missing == {}


@pytest.mark.parametrize("since", [-1e9, 90.0, 110.0, 1e12])
def test_an_attempt_of_the_first_look_may_own_any_volume_whatever_its_workers_clock_says(since):
    """A worker's clock may be ahead of this computer's; its volume must not seem deletable."""
    for second in (SECOND, changed(SECOND, in_flight={"pvc-x": since})):
        found = compare(changed(FIRST, in_flight={"pvc-x": since}), second)
        assert (found.orphans, found.undecided) == ({}, 1)


def test_an_attempt_in_flight_is_never_listed():
    found = compare(changed(FIRST, in_flight={"pvc-x": 90.0}), SECOND)
    assert (found.orphans, found.undecided) == ({}, 1)
    # An attempt that began after the first look cannot have made a volume that existed before.
    assert compare(FIRST, changed(SECOND, in_flight={"pvc-y": 150.0})).orphans == {"leak": 5}


def test_unsaved_and_saved_meanwhile_are_no_orphans():
    assert compare(changed(FIRST, unsaved=frozenset({"leak"})), SECOND).orphans == {}
    volumes = {"v1": ("pv1", "u1"), "leak": ("pv9", "u9")}
    assert compare(FIRST, changed(SECOND, volumes=volumes)).orphans == {}


def test_a_pv_being_deleted_is_not_missing():
    volumes = {"gone": ("pv2", "u2")}
    first = changed(FIRST, volumes=volumes, deleting=frozenset({"gone"}))
    assert compare(first, changed(SECOND, volumes=volumes)).missing == {}


def test_a_stranded_attempt_is_named_and_holds_no_judgement_back():
    """COR-7: it is no longer worked on, so the volume that it may have made is listed as well."""
    why = {"pvc-x": ("shop/data", 'secrets "creds" not found')}
    found = compare(changed(FIRST, stranded=why), changed(SECOND, stranded=why))
    assert (dict(found.stranded), dict(found.orphans)) == (why, {"leak": 5})
    assert compare(FIRST, changed(SECOND, stranded=why)).stranded == {}

"""The table of undecided objects: who is added when something else changes."""

from __future__ import annotations

import pytest

from tests.support.kube_objects import make_claim, make_volume
from watcher.drivers import Drivers, DriverView
from watcher.undecided import Undecided
from workers.constants import FINALIZER_CLONE_SOURCE

FOO = DriverView("foo", "foo", can_clone=True)
SOURCE = {"kind": "PersistentVolumeClaim", "name": "src"}


def texts(keys):
    return [key.text for key in keys]


@pytest.fixture
def table():
    table = Undecided()
    table.set_drivers(Drivers.of([FOO]))
    table.set_class("class1", "class-uid", "Immediate")
    table.classes_listed({"class1"})
    return table


CLAIM = "claims|foo|default/claim1|u1"
VOLUME = "volumes|foo|pv1|"
CLONING = "cloning|foo|default/src|s1"


def test_no_claim_is_decided_before_the_classes_are_known():
    """Late binding could not be told from immediate (M-017: nothing from an incomplete cache)."""
    table = Undecided()
    table.set_drivers(Drivers.of([FOO]))
    assert table.see_claim(make_claim()) == []
    table.set_class("class1", "c", "WaitForFirstConsumer")
    assert table.classes_listed({"class1"}) == []
    assert table.see_claim(make_claim(selected_node="n1")) != []


def test_claims_held_back_come_with_the_classes():
    table = Undecided()
    table.set_drivers(Drivers.of([FOO]))
    table.see_claim(make_claim())
    assert texts(table.classes_listed(set())) == [CLAIM]


def test_each_event_of_an_undecided_claim_adds_it(table):
    """L-011: an update is handled at once, also while a retry waits (C-043)."""
    assert texts(table.see_claim(make_claim(version="1"))) == [CLAIM]
    assert texts(table.see_claim(make_claim(version="2"))) == [CLAIM]


def test_c150_a_list_adds_only_what_changed(table):
    """M-017: an unchanged object of a new list is not worked on again."""
    table.see_claim(make_claim(version="1"))
    table.begin_claims()
    assert table.see_claim(make_claim(version="1"), is_listed=True) == []
    assert texts(table.see_claim(make_claim(version="2"), is_listed=True)) == [CLAIM]
    assert table.end_claims() == []


def test_c150_settled_objects_leave_the_table(table):
    table.see_claim(make_claim())
    table.see_volume(make_volume())
    table.see_claim(make_claim(volume_name="pv1"))
    table.see_volume(make_volume(phase="Bound"))
    assert table.all_keys() == []
    assert table.counts() == {"claims": 0, "volumes": 0, "cloning": 0}


def test_deleted_undecided_claim_is_added_once_more(table):
    """M-012, G7: an attempt in the background has to be finished; the worker knows."""
    table.see_claim(make_claim())
    assert texts(table.drop_claim("u1", "default/claim1")) == [CLAIM]
    assert table.drop_claim("u1", "default/claim1") == []
    assert table.all_keys() == []


def test_deleted_late_binding_claim_without_node_is_added_once_more(table):
    """The node may have been taken away after an attempt was begun on it."""
    table.set_class("late", "l", "WaitForFirstConsumer")
    assert table.see_claim(make_claim(storage_class="late")) == []
    assert texts(table.drop_claim("u1", "default/claim1")) == [CLAIM]


def test_claim_that_vanished_between_lists_counts_as_deleted(table):
    table.see_claim(make_claim())
    table.begin_claims()
    assert texts(table.end_claims()) == [CLAIM]


def test_c031_recreated_claim_is_another_key(table):
    """Deleted and created again between two lists: both keys are worked on."""
    table.see_claim(make_claim(uid="u1"))
    table.begin_claims()
    new = texts(table.see_claim(make_claim(uid="u2"), is_listed=True))
    assert (new, texts(table.end_claims())) == (["claims|foo|default/claim1|u2"], [CLAIM])


def test_c008_new_class_adds_the_claims_that_wait_for_it(table):
    table.see_claim(make_claim(storage_class="later"))
    table.see_claim(make_claim("other", uid="u2"))
    assert texts(table.set_class("later", "c", None)) == [CLAIM]


def test_unchanged_class_adds_nothing(table):
    table.see_claim(make_claim())
    assert table.set_class("class1", "class-uid", "Immediate") == []


def test_c045_replaced_class_adds_its_claims(table):
    table.see_claim(make_claim())
    assert texts(table.set_class("class1", "another-uid", "Immediate")) == [CLAIM]


def test_new_driver_adds_only_its_own_objects():
    table = Undecided()
    table.classes_listed(set())
    table.see_claim(make_claim(provisioner="bar", uid="u9"))
    table.see_claim(make_claim())
    table.see_volume(make_volume())
    assert table.all_keys() == []
    assert texts(table.set_drivers(Drivers.of([FOO]))) == [VOLUME, CLAIM]
    assert table.set_drivers(Drivers.of([FOO])) == []


def test_c080_detached_volume_is_added_if_it_waits_for_deletion(table):
    table.see_volume(make_volume())
    assert texts(table.volume_detached("pv1")) == [VOLUME]
    assert table.volume_detached("settled") == []


def test_c082_deleted_volume_is_forgotten(table):
    table.see_volume(make_volume())
    assert texts(table.drop_volume("pv1")) == [VOLUME]
    assert table.drop_volume("pv1") == []


def test_volume_that_vanished_between_lists_is_forgotten(table):
    table.see_volume(make_volume())
    table.begin_volumes()
    assert texts(table.end_volumes()) == [VOLUME]


def deleting_source(**fields):
    return make_claim(
        "src",
        uid="s1",
        volume_name="pv-src",
        phase="Bound",
        deletionTimestamp="t",
        finalizers=[FINALIZER_CLONE_SOURCE],
        **fields,
    )


def clone(uid, **fields):
    return make_claim(f"clone-{uid}", uid=uid, dataSource=SOURCE, **fields)


def test_c120_source_without_clones_is_added_when_deleted(table):
    assert texts(table.see_claim(deleting_source())) == [CLONING]


def test_c123_last_clone_that_leaves_pending_adds_the_source(table):
    """CL-009: no waiting for the back-off of up to five minutes."""
    table.see_claim(clone("c1"))
    table.see_claim(clone("c2"))
    assert table.see_claim(deleting_source()) == []
    done = {"volume_name": "pv", "phase": "Bound"}
    assert table.see_claim(clone("c1", **done)) == []
    assert texts(table.see_claim(clone("c2", **done))) == [CLONING]


def test_c118_deleted_clone_frees_the_source(table):
    table.see_claim(clone("c1"))
    table.see_claim(deleting_source())
    assert CLONING in texts(table.drop_claim("c1", "default/clone-c1"))


def test_source_is_forgotten_when_it_is_gone(table):
    table.see_claim(deleting_source())
    table.drop_claim("s1", "default/src")
    assert table.all_keys() == []


def test_clone_that_vanished_between_lists_frees_the_source(table):
    table.see_claim(clone("c1"))
    table.see_claim(deleting_source())
    table.begin_claims()
    assert table.see_claim(deleting_source(), is_listed=True) == []
    assert CLONING in texts(table.end_claims())


def test_everything_undecided_is_in_all_keys(table):
    """M-016: what a resync and a Redis without data need."""
    table.see_claim(make_claim())
    table.see_volume(make_volume())
    table.see_claim(deleting_source())
    assert sorted(texts(table.all_keys())) == sorted([CLAIM, VOLUME, CLONING])


def test_absent_driver_stays_known_but_an_absent_node_goes():
    """Keys of a driver without live worker wait; those of a removed node would for ever."""
    node = DriverView("local", "local@n1", node="n1")
    drivers = Drivers.of([FOO, node]).merged_with([])
    assert set(drivers.by_name) == {"foo"}

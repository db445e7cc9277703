"""Wanted items and their text in queue keys."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.controllers.capacity.items import Item, Obsolete, Wanted, parse_text, wanted_items
from workers.topology.terms import make_term

DRIVER = "d.example.com"


def storage_class(name, provisioner=DRIVER, mode="WaitForFirstConsumer"):
    found = {"metadata": {"name": name}, "provisioner": provisioner}
    return found | ({"volumeBindingMode": mode} if mode else {})


def zone(value):
    return make_term({"zone": value})


def wanted(classes, segments, *, for_immediate_binding=False):
    return wanted_items(
        classes, segments, driver_name=DRIVER, for_immediate_binding=for_immediate_binding
    )


@pytest.mark.parametrize(
    ("classes", "segments", "count"),
    [
        pytest.param([], [zone("a")], 0, id="C-087 no classes"),
        pytest.param([storage_class("s")], [], 0, id="C-087 no segments"),
        pytest.param([storage_class("s")], [()], 1, id="one empty segment"),
        pytest.param(
            [storage_class("s"), storage_class("t")], [zone("a"), zone("b")], 4, id="C-097 2 x 2"
        ),
    ],
)
def test_classes_times_segments(classes, segments, count):
    """CAP-001: The length is the value of the gauge for the goal."""
    found = wanted(classes, segments)
    assert len(found) == count
    assert len(list(found)) == count


@pytest.mark.parametrize(
    ("candidate", "late_only", "with_flag"),
    [
        pytest.param(storage_class("s"), 1, 1, id="late"),
        pytest.param(storage_class("s", mode="Immediate"), 0, 1, id="C-091 Immediate"),
        pytest.param(storage_class("s", mode=None), 1, 1, id="no mode counts as late"),
        pytest.param(storage_class("s", provisioner="kubernetes.io/x"), 0, 0, id="in-tree name"),
    ],
)
def test_which_classes_count(candidate, late_only, with_flag):
    """CAP-001: The driver's classes with late binding count; with the flag, immediate ones too."""
    assert len(wanted([candidate], [zone("a")])) == late_only
    assert len(wanted([candidate], [zone("a")], for_immediate_binding=True)) == with_flag


def test_c102_segments_come_and_go():
    """C-102: The work is the difference of two wanted sets."""
    before = set(wanted([storage_class("s")], [zone("a"), zone("b")]))
    after = set(wanted([storage_class("s")], [zone("b"), zone("c")]))
    assert after - before == {Item("s", zone("c"))}
    assert before - after == {Item("s", zone("a"))}


def test_order_is_fixed():
    """Equal states must lead to equal work in every worker."""
    found = Wanted(frozenset({"t", "s"}), frozenset({zone("b"), zone("a")}))
    assert [item.text for item in found] == ["s/zone=a", "s/zone=b", "t/zone=a", "t/zone=b"]


def test_text_forms():
    """The text is readable in Flower, and the queue shares its turns between classes."""
    item = Item("fast", make_term({"topology.kubernetes.io/zone": "a", "rack": "b"}))
    assert item.text == "fast/rack=b,topology.kubernetes.io/zone=a"
    assert Item("fast", ()).text == "fast/"
    assert Obsolete("csisc-x").text == "del:csisc-x"


def test_text_of_another_form_is_refused():
    """A foreign key must not be read as a wrong item."""
    with pytest.raises(ValueError, match="without '/'"):
        parse_text("fast")


@given(st.text(max_size=6), st.dictionaries(st.text(max_size=4), st.text(max_size=4), max_size=3))
def test_text_round_trip(name, pairs):
    """This holds for any class and segment, and an item is never read as a deletion."""
    item = Item(name, make_term(pairs))
    assert parse_text(item.text) == item
    assert parse_text(Obsolete(name).text) == Obsolete(name)
    assert "|" not in item.text


def test_c091_without_the_flag_immediate_classes_do_not_count():
    """The default is csi-provisioner's."""
    found = wanted_items([storage_class("s", mode="Immediate")], [zone("a")], driver_name=DRIVER)
    assert list(found) == []


@pytest.mark.parametrize(
    ("candidate", "expected"),
    [
        pytest.param(Item("s", zone("a")), True, id="wanted"),
        pytest.param(Item("t", zone("a")), False, id="another class"),
        pytest.param(Item("s", zone("b")), False, id="another segment"),
    ],
)
def test_an_item_is_wanted_by_both_its_class_and_its_segment(candidate, expected):
    """CAP-001: Both the class and the segment must be wanted."""
    known = Wanted(frozenset({"s"}), frozenset({zone("a")}))
    assert (candidate in known) is expected
    assert (candidate in known.of_class(candidate.storage_class)) is expected

"""The plan: which objects stay, are missing, or are deleted."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from workers.controllers.capacity.items import Item, Wanted
from workers.controllers.capacity.objects import (
    Publisher,
    Sizes,
    desired_object,
    object_names,
    updated_object,
)
from workers.controllers.capacity.plan import make_plan
from workers.topology.terms import make_term

PUBLISHER = Publisher(driver_name="d.example.com", namespace="ns")
ZONES = {value: make_term({"zone": value}) for value in "abc"}


def wanted(classes, zones):
    return Wanted(frozenset(classes), frozenset(ZONES[zone] for zone in zones))


def stored(storage_class, zone, name, *, created="2026-01-01T00:00:00Z", **metadata):
    item = Item(storage_class, ZONES[zone])
    existing = desired_object(PUBLISHER, item, Sizes(1), name)
    existing["metadata"] |= {"creationTimestamp": created, "uid": name} | metadata
    return existing


def names(objects):
    return [existing["metadata"]["name"] for existing in objects]


def test_c087_nothing_wanted_nothing_there():
    """C-087: An empty plan has no work."""
    plan = make_plan(wanted("", ""), [], PUBLISHER)
    assert (plan.missing, plan.assigned, plan.obsolete) == ((), {}, ())


def test_c095_objects_of_missing_classes_and_segments_go():
    """C-095, C-109: They are deleted, as recorded in cap-08 and cap-11."""
    objects = [stored("gone", "a", "x"), stored("s", "b", "y"), stored("s", "a", "z")]
    plan = make_plan(wanted("s", "a"), objects, PUBLISHER)
    assert names(plan.obsolete) == ["x", "y"]
    assert plan.assigned == {Item("s", ZONES["a"]): objects[2]}
    assert plan.missing == ()


def test_c096_objects_of_others_are_untouched():
    """CAP-052: An object of another manager is not deleted, as recorded in cap-11."""
    foreign = stored("gone", "a", "x")
    foreign["metadata"]["labels"]["csi.storage.k8s.io/managed-by"] = "someone"
    assert make_plan(wanted("s", ""), [foreign], PUBLISHER).obsolete == ()


def test_c097_two_by_two():
    """C-097: No object, all objects, or half of them exist."""
    both = wanted("st", "ab")
    assert make_plan(both, [], PUBLISHER).missing == tuple(both)
    every = [stored(name, zone, name + zone) for name in "st" for zone in "ab"]
    assert len(make_plan(both, every, PUBLISHER).assigned) == 4
    half = [
        stored("s", "a", "1"),
        stored("t", "b", "2"),
        stored("s", "c", "3"),
        stored("u", "a", "4"),
    ]
    plan = make_plan(both, half, PUBLISHER)
    assert [item.text for item in plan.missing] == ["s/zone=b", "t/zone=a"]
    assert names(plan.obsolete) == ["3", "4"]
    assert len(plan.assigned) == 2


def test_c098_object_with_changed_labels_is_replaced_and_left():
    """C-098: Its name is taken, so the replacement gets the next name."""
    item = Item("s", ZONES["a"])
    first, second = list(object_names(PUBLISHER, item))[:2]
    old = stored("s", "a", first)
    old["metadata"]["labels"] = {}
    plan = make_plan(wanted("s", "a"), [old], PUBLISHER)
    assert plan.missing == (item,)
    assert plan.obsolete == ()
    assert not PUBLISHER.can_adopt(old, item)
    assert first != second


def test_c099_of_two_objects_the_older_stays():
    """C-099: Neither the order of the list nor the names matter."""
    old = stored("s", "a", "z", created="2026-01-01T00:00:00Z")
    new = stored("s", "a", "a", created="2026-01-01T00:00:01Z")
    for objects in ([old, new], [new, old]):
        plan = make_plan(wanted("s", "a"), objects, PUBLISHER)
        assert names(plan.assigned.values()) == ["z"]
        assert names(plan.obsolete) == ["a"]


def test_c099_of_two_objects_of_one_second_all_workers_keep_the_same():
    """If two workers kept different objects, both would be deleted."""
    pair = [stored("s", "a", "b"), stored("s", "a", "a")]
    assert names(make_plan(wanted("s", "a"), pair, PUBLISHER).obsolete) == ["b"]


def test_c100_recreated_object_is_adopted():
    """C-100: The content decides, not the name or the UID."""
    plan = make_plan(wanted("s", "a"), [stored("s", "a", "by-hand")], PUBLISHER)
    assert plan.missing == ()
    assert plan.obsolete == ()


def test_c107_empty_segment_is_adopted():
    """C-107, CAP-051: Polls do not re-create it; recorded in cap-12."""
    item = Item("s", ())
    existing = desired_object(PUBLISHER, item, Sizes(1), "n")
    existing["nodeTopology"] = {}
    plan = make_plan(Wanted(frozenset({"s"}), frozenset({()})), [existing], PUBLISHER)
    assert plan.assigned == {item: existing}
    assert plan.obsolete == ()


def test_selector_with_expressions_goes():
    """CAP-051: It may match other nodes than its labels say."""
    existing = stored("s", "a", "n")
    existing["nodeTopology"]["matchExpressions"] = [{"key": "x", "operator": "Exists"}]
    plan = make_plan(wanted("s", "a"), [existing], PUBLISHER)
    assert names(plan.obsolete) == ["n"]
    assert len(plan.missing) == 1


def test_objects_being_deleted_are_not_deleted_again():
    """Another program's finalizer may keep them for long."""
    deleting = stored("gone", "a", "x", deletionTimestamp="2026-01-01T00:00:00Z")
    assert make_plan(wanted("s", ""), [deleting], PUBLISHER).obsolete == ()


def test_what_goes_is_in_the_order_of_names_whatever_its_age():
    """Equal states lead to equal work in every worker."""
    objects = [
        stored("gone", "a", "x", created="2026-01-02T00:00:00Z"),
        stored("gone", "b", "z", created="2026-01-01T00:00:00Z"),
        stored("gone", "c", "y", created="2026-01-03T00:00:00Z"),
    ]
    assert names(make_plan(wanted("s", ""), objects, PUBLISHER).obsolete) == ["x", "y", "z"]


objects_strategy = st.lists(
    st.builds(
        lambda name, storage_class, zone, second, foreign: (
            storage_class,
            zone,
            f"o{name}",
            second,
            foreign,
        ),
        st.integers(0, 99),
        st.sampled_from("stu"),
        st.sampled_from("abc"),
        st.integers(0, 2),
        st.booleans(),
    ),
    max_size=12,
    unique_by=lambda one: one[2],
)


@given(
    st.frozensets(st.sampled_from("stu")), st.frozensets(st.sampled_from("abc")), objects_strategy
)
def test_a_plan_that_was_carried_out_leaves_nothing_to_do(classes, zones, described):
    """CAP-055: All foreign objects still exist too."""
    objects = {}
    for storage_class, zone, name, second, foreign in described:
        one = stored(storage_class, zone, name, created=f"2026-01-01T00:00:0{second}Z")
        if foreign:
            one["metadata"]["labels"]["csi.storage.k8s.io/managed-by"] = "someone"
        objects[name] = one
    target = wanted(classes, zones)
    plan = make_plan(target, objects.values(), PUBLISHER)
    for existing in plan.obsolete:
        assert PUBLISHER.manages(existing)
        del objects[existing["metadata"]["name"]]
    for item in plan.missing:
        name = next(name for name in object_names(PUBLISHER, item) if name not in objects)
        objects[name] = desired_object(PUBLISHER, item, Sizes(7), name)
    for existing in plan.assigned.values():
        updated = updated_object(PUBLISHER, existing, Sizes(7))
        assert updated is not None
        objects[existing["metadata"]["name"]] = updated
    again = make_plan(target, objects.values(), PUBLISHER)
    assert again.missing == ()
    assert again.obsolete == ()
    assert set(again.assigned) == set(target)
    for existing in again.assigned.values():
        assert updated_object(PUBLISHER, existing, Sizes(7)) is None

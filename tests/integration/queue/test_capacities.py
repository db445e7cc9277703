"""What is known of a driver's capacity objects, and that nothing of it stays behind."""

from __future__ import annotations

import pytest

from workers.queue.capacities import CapacityStore
from workers.queue.names import NAMES

DRIVER = "d"


def an_object(uid, version="1"):
    return {"metadata": {"name": f"csisc-{uid}", "uid": uid, "resourceVersion": version}}


@pytest.fixture
def store(redis_client):
    return CapacityStore(redis_client)


def test_objects_are_known_by_item_and_by_uid(store):
    objects = {"fast/z1": an_object("u1"), "fast/z2": an_object("u2")}
    store.put(DRIVER, objects)
    assert store.all(DRIVER) == objects
    assert store.item_of(DRIVER, "u2") == "fast/z2"
    assert store.item_of(DRIVER, "unknown") is None
    assert store.counts(DRIVER) == (2, 0)


def test_what_is_dropped_leaves_nothing_behind(store, redis_client):
    """Objects come and go for years: neither they nor their uids may pile up."""
    objects = {"fast/z1": an_object("u1"), "fast/z2": an_object("u2")}
    store.put(DRIVER, objects)
    store.drop(DRIVER, objects)
    assert store.all(DRIVER) == {}
    assert redis_client.hkeys(NAMES["capacity_uids"].full + DRIVER) == []


def test_an_object_that_was_replaced_meanwhile_stays(store):
    store.put(DRIVER, {"fast/z1": an_object("new")})
    store.drop(DRIVER, {"fast/z1": an_object("old")})
    assert store.all(DRIVER) == {"fast/z1": an_object("new")}


def test_obsolete_objects_are_known_until_they_are_deleted(store):
    store.replace(DRIVER, {}, {}, {"old": "u9"})
    assert store.obsolete_uid(DRIVER, "old") == "u9"
    assert store.obsolete_uid(DRIVER, "another") is None
    assert store.counts(DRIVER) == (0, 1)
    store.deleted(DRIVER, "old")
    assert store.counts(DRIVER) == (0, 0)


LISTED = an_object("u1", "10")


@pytest.mark.parametrize(
    ("before", "known", "stays"),
    [
        pytest.param(None, None, False, id="new"),
        pytest.param(an_object("u1", "9"), an_object("u1", "9"), False, id="older"),
        pytest.param(an_object("u1", "9"), an_object("u1", "11"), True, id="written since"),
        pytest.param(None, an_object("u1", "11"), True, id="made and written since"),
        pytest.param(an_object("u1", "x"), an_object("u1", "x"), False, id="without a number"),
        pytest.param(an_object("u0"), an_object("u0"), False, id="the plan chose another"),
        pytest.param(an_object("u0"), an_object("u2"), True, id="another came after the look"),
        pytest.param(None, an_object("u2"), True, id="another came where none was"),
    ],
)
def test_a_plan_does_not_take_back_what_was_written_since_its_list(store, before, known, stays):
    """Versions grow as numbers, not as text."""
    if known is not None:
        store.put(DRIVER, {"fast/z1": known})
    noted = {} if before is None else {"fast/z1": before}
    store.replace(DRIVER, noted, {"fast/z1": LISTED}, {})
    expected = known if stays else LISTED
    assert store.all(DRIVER) == {"fast/z1": expected}
    assert store.item_of(DRIVER, expected["metadata"]["uid"]) == "fast/z1"

"""The stored state of a driver's capacity objects, and its removal."""

from __future__ import annotations

import pytest

from workers.queue.capacities import CapacityStore
from workers.queue.keys import capacity_key
from workers.queue.names import NAMES, PREFIX

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
    """Dropped objects leave no entries.

    Objects are created and deleted for years, so nothing may accumulate.
    """
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
        pytest.param(an_object("u1", "11"), an_object("u1", "11"), False, id="etcd was restored"),
        pytest.param(None, {**an_object("u1", "10"), "x": 1}, True, id="just what was listed"),
        pytest.param(None, an_object("u1", "11"), True, id="made and written since"),
        pytest.param(an_object("u1", "x"), an_object("u1", "x"), False, id="without a number"),
        pytest.param(an_object("u0"), an_object("u0"), False, id="the plan chose another"),
        pytest.param(an_object("u0"), an_object("u2"), True, id="another came after the look"),
        pytest.param(None, an_object("u2"), True, id="another came where none was"),
    ],
)
def test_a_plan_does_not_take_back_what_was_written_since_its_list(store, before, known, stays):
    """A plan does not overwrite a version that is newer than its list.

    Versions are compared as numbers, not as text.
    """
    if known is not None:
        store.put(DRIVER, {"fast/z1": known})
    noted = {} if before is None else {"fast/z1": before}
    store.replace(DRIVER, noted, {"fast/z1": LISTED}, {})
    expected = known if stays else LISTED
    assert store.all(DRIVER) == {"fast/z1": expected}
    assert store.item_of(DRIVER, expected["metadata"]["uid"]) == "fast/z1"


def test_a_version_that_cannot_be_compared_is_not_newer(store):
    """If nothing proves that an object is newer than the plan's list, the listed object wins."""
    listed = an_object("u1", "none")
    store.put(DRIVER, {"fast/z1": an_object("u1", "11")})
    store.replace(DRIVER, {}, {"fast/z1": listed}, {})
    assert store.all(DRIVER) == {"fast/z1": listed}


def test_a_plan_is_known_until_redis_loses_it(store, redis_client):
    """CAP-041: before the first plan, the absence of an object proves nothing."""
    assert store.known(DRIVER, "fast/z1") == (False, None)
    assert store.noticed(DRIVER) is None
    store.put(DRIVER, {"fast/z1": an_object("u1")})
    assert store.known(DRIVER, "fast/z1") == (False, an_object("u1"))
    store.notice(DRIVER, {"epoch": "e"})
    assert store.known(DRIVER, "fast/z1") == (True, an_object("u1"))
    assert store.known(DRIVER, "fast/z2") == (True, None)
    assert store.known("other", "fast/z1") == (False, None)
    assert store.noticed(DRIVER) == {"epoch": "e"}
    redis_client.flushall()
    assert store.known(DRIVER, "fast/z1") == (False, None)


def test_a_plan_takes_over_from_the_one_before(store, redis_client):
    """A new plan removes objects that it does not assign, and the old plan's obsolete objects."""
    before = {"fast/z1": an_object("u1"), "fast/z2": an_object("u2")}
    store.put(DRIVER, before)
    store.replace(DRIVER, {}, {}, {"old": "u9", "older": "u8"})
    store.replace(DRIVER, before, {"fast/z1": an_object("u1")}, {"new": "u7"})
    assert store.all(DRIVER) == {"fast/z1": an_object("u1")}
    assert (store.item_of(DRIVER, "u1"), store.item_of(DRIVER, "u2")) == ("fast/z1", None)
    assert redis_client.hgetall(NAMES["capacity_uids"].full + DRIVER) == {b"u1": b"fast/z1"}
    assert (store.obsolete_uid(DRIVER, "old"), store.obsolete_uid(DRIVER, "new")) == (None, "u7")
    assert store.counts(DRIVER) == (1, 1)
    store.replace(DRIVER, {}, {}, {})
    assert store.counts(DRIVER) == (1, 0)


def test_an_object_stands_for_its_item_until_another_does(store):
    store.put(DRIVER, {"fast/z1": an_object("u1")})
    store.put(DRIVER, {"fast/z1": an_object("u2")})
    assert (store.item_of(DRIVER, "u1"), store.item_of(DRIVER, "u2")) == (None, "fast/z1")
    store.drop(DRIVER, {})
    assert store.counts(DRIVER) == (1, 0)


@pytest.mark.parametrize("value", ["{oops", "{}", '{"metadata": []}', '{"metadata": null}'])
def test_what_is_no_object_is_set_aside_and_counts_as_absent(store, redis_client, value):
    """Each read function moves a value that is not an object to the quarantine and ignores it."""
    place = NAMES["capacity"].full + DRIVER
    for read in (
        lambda: store.all(DRIVER) == {},
        lambda: store.known(DRIVER, "fast/z1") == (False, None),
        lambda: store.item_of(DRIVER, "u1") is None,
    ):
        store.put(DRIVER, {"fast/z1": an_object("u1")})
        redis_client.hset(place, "fast/z1", value)
        assert read()
        assert not redis_client.hexists(place, "fast/z1")
    aside = redis_client.hgetall(NAMES["quarantine"].full)
    assert aside == {f"{PREFIX}capacity:{DRIVER} fast/z1".encode(): value.encode()}


def test_a_plan_of_many_objects_is_written_and_dropped_as_a_whole(store):
    """A plan with more objects than one Redis command takes is written and dropped completely."""
    many = {f"fast/z{number}": an_object(f"u{number}") for number in range(600)}
    store.replace(DRIVER, {}, many, {})
    assert store.all(DRIVER) == many
    store.replace(DRIVER, many, many, {})
    assert store.counts(DRIVER) == (600, 0)
    store.replace(DRIVER, many, {}, {})
    assert store.counts(DRIVER) == (0, 0)


def test_keys_that_wait_for_a_retry_are_told_apart(store, redis_client):
    """S-008: a poll adds no key that is already delayed; a refresh does not shorten a back-off."""
    keys = [capacity_key(DRIVER, f"fast/z{number}") for number in range(300)]
    redis_client.zadd(NAMES["delayed"].full, {keys[0].text: 1, keys[299].text: 2})
    redis_client.hset(NAMES["fails"].full, mapping={keys[1].text: 1, keys[298].text: 0})
    assert store.postponed(keys) == {keys[0], keys[299]}
    assert store.failing(keys) == {keys[1], keys[298]}
    assert store.postponed([]) == store.failing([]) == set()


def test_turns_are_a_bucket_of_one_driver(store):
    """CAP-071: the first burst is free, then each write waits for its token."""
    assert [store.turn(DRIVER, qps=0.001, burst=2) for _ in range(2)] == [0, 0]
    assert 990 < store.turn(DRIVER, qps=0.001, burst=2) <= 1000
    assert store.turn("other", qps=0.001, burst=0) == 0, "at least one"

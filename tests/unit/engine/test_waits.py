"""The index of which key waits for what."""

from __future__ import annotations

import pytest

from workers.engine.waits import Waits


@pytest.fixture
def waits():
    found: Waits[str] = Waits()
    found.put("b", "B", ("node", "n1"), ("volume", "v1"))
    found.put("a", "A", ("node", "n1"))
    return found


def test_who_waits_for_a_thing_is_found(waits):
    assert waits.waiting_for("node", "n1") == ["A", "B"]
    assert waits.waiting_for("volume", "v1") == ["B"]
    assert waits.waiting_for("volume", "n1") == []
    assert (waits.get("a"), waits.get("x"), len(waits)) == ("A", None, 2)


@pytest.mark.parametrize("way", ["popped", "replaced"])
def test_who_waits_no_more_is_not_found(waits, way):
    if way == "popped":
        assert waits.pop("b") == "B"
    else:
        waits.put("b", "other", ("volume", "v2"))
        assert waits.waiting_for("volume", "v2") == ["other"]
    assert waits.waiting_for("node", "n1") == ["A"]
    assert waits.waiting_for("volume", "v1") == []
    assert waits.pop("x") is None


def test_a_list_without_an_object_removes_it(waits):
    waits.begin_list()
    waits.listed("b")
    waits.put("new", "seen during the list")
    assert waits.end_list() == ["A"]
    assert sorted(waits.values()) == ["B", "seen during the list"]
    assert waits.waiting_for("node", "n1") == ["B"]
    assert waits.end_list() == []


def test_an_object_that_went_during_the_list_is_not_missing_from_it(waits):
    waits.begin_list()
    waits.pop("a")
    waits.listed("b")
    assert waits.end_list() == []

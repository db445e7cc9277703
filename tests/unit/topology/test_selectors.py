"""Selectors of places: what they allow, what two have in common, and what a driver answered."""

from __future__ import annotations

import pytest

from csi_client import messages as csi
from workers.topology.selectors import (
    MOST_PLACES,
    TooManyPlacesError,
    common_places,
    places,
    selector_of,
    selector_of_answer,
)
from workers.translate.fields import FieldError, selector_at

ZONE, REGION = "zone", "region"


def entry(*expressions):
    """Return one entry; each expression is a key and its values."""
    return {
        "matchLabelExpressions": [{"key": key, "values": values} for key, values in expressions]
    }


@pytest.mark.parametrize(
    ("selector", "expected"),
    [
        ([], []),
        ([{}], []),
        ([entry((ZONE, ["a"]))], [{ZONE: "a"}]),
        ([entry((ZONE, ["a", "b"]))], [{ZONE: "a"}, {ZONE: "b"}]),
        (
            [entry((REGION, ["w"]), (ZONE, ["a", "b"]))],
            [{REGION: "w", ZONE: "a"}, {REGION: "w", ZONE: "b"}],
        ),
        ([entry((ZONE, ["b"])), entry((ZONE, ["a"]))], [{ZONE: "b"}, {ZONE: "a"}]),
        ([entry((ZONE, [])), entry((ZONE, ["a"]))], [{ZONE: "a"}]),
        ([entry((ZONE, []), (REGION, ["w"]))], []),
        ([entry((REGION, ["w"]), (ZONE, []))], []),
        ([entry((ZONE, ["a"]), (ZONE, ["b"]))], []),
        ([entry((ZONE, ["a", "b"]), (ZONE, ["b", "c"]))], [{ZONE: "b"}]),
        ([entry((ZONE, ["a", "a"])), entry((ZONE, ["a"]))], [{ZONE: "a"}]),
    ],
    ids=[
        *("nothing", "no expressions", "one value", "several values", "several keys"),
        *("several entries", "an entry without values", "no values, first", "no values, last"),
        *("a contradiction", "a repeated key", "duplicates"),
    ],
)
def test_sns121_the_places_of_a_selector(selector, expected):
    assert [dict(place) for place in places(selector)] == expected


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ([{ZONE: "a"}, {ZONE: "b"}], [{ZONE: "b"}, {ZONE: "c"}], [{ZONE: "b"}]),
        ([{ZONE: "d"}], [{ZONE: "a"}], []),
        ([{ZONE: "a"}], [{REGION: "w"}], [{REGION: "w", ZONE: "a"}]),
        ([{REGION: "w"}], [{REGION: "w", ZONE: "a"}], [{REGION: "w", ZONE: "a"}]),
        ([], [{ZONE: "a"}], []),
    ],
    ids=["overlap", "disjoint", "different keys", "more exact", "nothing"],
)
def test_p343_what_two_lists_have_in_common(one, other, expected):
    terms = [[tuple(sorted(place.items())) for place in side] for side in (one, other)]
    assert [dict(place) for place in common_places(*terms)] == expected


def test_a_selector_is_made_of_places_again():
    """SNS-123: Pairs of region and zone are not mixed with each other."""
    answer = [
        csi.Topology(segments={REGION: "w", ZONE: "wa"}),
        csi.Topology(),
        csi.Topology(segments={ZONE: "ea", REGION: "e"}),
        csi.Topology(segments={REGION: "w", ZONE: "wa"}),
    ]
    found = selector_of_answer(answer)
    assert found == [
        entry((REGION, ["w"]), (ZONE, ["wa"])),
        entry((REGION, ["e"]), (ZONE, ["ea"])),
    ]
    assert selector_of(places(found)) == found
    assert selector_of_answer([csi.Topology()]) == []


def test_too_many_places_are_refused_before_they_fill_the_memory():
    many = [str(number) for number in range(100)]
    with pytest.raises(TooManyPlacesError, match=str(MOST_PLACES)):
        places([entry(*((f"k{number}", many) for number in range(20)))])
    with pytest.raises(TooManyPlacesError):
        places([entry((f"k{number}", many)) for number in range(50)])
    wide = places([entry(("k", many))]), places([entry(("l", many))])
    with pytest.raises(TooManyPlacesError):
        common_places(*wide)


def test_many_places_are_not_compared_pair_by_pair():
    """A driver can answer with many places; 4096 of them twice would take half a minute."""
    sides = [[((ZONE, f"{name}{number}"),) for number in range(4096)] for name in "ab"]
    with pytest.raises(TooManyPlacesError):
        common_places(*sides)
    assert common_places(sides[0], sides[1][:64]) == []


@pytest.mark.parametrize(
    ("expressions", "field"),
    [
        (["x"], "matchLabelExpressions"),
        ({"key": ZONE}, "matchLabelExpressions"),
        ([{"values": ["a"]}], "key"),
        ([{"key": ["x"], "values": ["a"]}], "key"),
        ([{"key": ZONE, "values": "abc"}], "values"),
        ([{"key": ZONE, "values": [1]}], "values"),
    ],
)
def test_a_selector_of_wrong_types_is_an_error_that_names_the_field(expressions, field):
    with pytest.raises(FieldError, match=field):
        selector_at({"terms": [{"matchLabelExpressions": expressions}]}, "terms")

"""Segments from affinity terms, and their text in queue keys."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.topology.segments import (
    node_segment,
    parse_segment,
    segment_of,
    segment_text,
    volume_segments,
)
from workers.topology.terms import make_term


def one(key, *values, operator="In"):
    return {"key": key, "operator": operator, "values": list(values)}


def term(*expressions, **more):
    return {"matchExpressions": list(expressions), **more}


def volume(*terms):
    return {"spec": {"nodeAffinity": {"required": {"nodeSelectorTerms": list(terms)}}}}


@pytest.mark.parametrize(
    "bad",
    [
        pytest.param(
            term(one("a", "1"), matchFields=[one("metadata.name", "n")]), id="C-103 matchFields"
        ),
        pytest.param(term(one("a", "1", operator="NotIn")), id="C-103 operator NotIn"),
        pytest.param(term(one("a", "1", "2")), id="C-103 two values"),
        pytest.param(term(one("a")), id="C-103 no value"),
        pytest.param(term({"key": "a", "operator": "Exists"}), id="C-103 operator Exists"),
    ],
)
def test_terms_that_name_no_segment(bad):
    """CAP-043: the term is refused and left out of a volume's segments."""
    with pytest.raises(ValueError, match=r"segment|In with one value"):
        segment_of(bad)
    good = term(one("a", "1"))
    assert volume_segments(volume(bad, good)) == {(("a", "1"),)}


@pytest.mark.parametrize(
    ("selector_term", "expected"),
    [
        pytest.param(term(one("a", "1")), {"a": "1"}, id="C-103 single pair"),
        pytest.param(
            term(one("a", "1"), one("b", "2")), {"a": "1", "b": "2"}, id="C-103 several pairs"
        ),
        pytest.param(term(one("b", "2"), one("a", "1")), {"a": "1", "b": "2"}, id="C-103 unsorted"),
        pytest.param({}, {}, id="C-103 empty term"),
    ],
)
def test_terms_that_name_a_segment(selector_term, expected):
    """CAP-043: the segment's keys are sorted."""
    assert segment_of(selector_term) == make_term(expected)


def test_a_volume_without_affinity_is_not_one_with_an_empty_affinity():
    """CAP-030: without affinity the class is refreshed; an empty affinity refreshes nothing."""
    assert volume_segments({"spec": {}}) is None
    assert volume_segments({"spec": {"nodeAffinity": {}}}) == frozenset()
    assert volume_segments(volume()) == frozenset()


def test_node_segment_is_sorted():
    """CAP-024: a random key order would never match a volume's segment."""
    assert node_segment({"zone": "z", "host": "h"}) == (("host", "h"), ("zone", "z"))
    assert node_segment({}) == ()


def test_text_is_readable():
    """The text is part of a Celery task's argument and is shown in Flower."""
    segment = make_term({"topology.kubernetes.io/zone": "eu-1a", "rack": "r_1.x"})
    assert segment_text(segment) == "rack=r_1.x,topology.kubernetes.io/zone=eu-1a"
    assert segment_text(()) == ""


def test_text_of_another_form_is_refused():
    """A malformed key must not turn into a wrong segment."""
    with pytest.raises(ValueError, match="without '='"):
        parse_segment("zone")


@given(st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=4))
def test_text_round_trip(pairs):
    """The conversion is reversible for any text and never contains the separator of queue keys."""
    segment = make_term(pairs)
    text = segment_text(segment)
    assert parse_segment(text) == segment
    assert "|" not in text
    assert text.isascii()

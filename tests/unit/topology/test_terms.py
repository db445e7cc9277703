"""Terms: order, subset, flattening, and the text form of csi-provisioner."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.topology.terms import (
    flatten,
    is_subset,
    make_term,
    order,
    render_keys,
    render_labels,
    render_term,
    render_terms,
    sort_distinct,
)

# Few keys and values, so that terms often share them.
KEYS = st.sampled_from(["zone", "rack", "disk", "a.example.com/host"])
VALUES = st.sampled_from(["1", "2", "a", "b", ""])

terms = st.dictionaries(KEYS, VALUES, max_size=4).map(make_term)
term_lists = st.lists(terms, max_size=8)

allowed_topologies = st.lists(
    st.fixed_dictionaries(
        {
            "matchLabelExpressions": st.lists(
                st.fixed_dictionaries(
                    {"key": KEYS, "values": st.lists(VALUES, min_size=1, max_size=3)}
                ),
                max_size=3,
                unique_by=lambda expression: expression["key"],
            )
        }
    ),
    max_size=4,
)


def expression(key, *values):
    return {"key": key, "values": list(values)}


def entry(*expressions):
    return {"matchLabelExpressions": list(expressions)}


def test_a_term_is_sorted_by_key_then_value():
    """Equal places must be equal tuples, whatever the order of the pairs."""
    assert make_term([("zone", "2"), ("rack", "b"), ("zone", "1")]) == (
        ("rack", "b"),
        ("zone", "1"),
        ("zone", "2"),
    )


def test_shorter_terms_come_first():
    """P-302: the length decides before key and value."""
    one, two = make_term({"zone": "z"}), make_term({"a": "a", "b": "b"})
    assert sort_distinct([two, one]) == [one, two]


def test_order_is_by_bytes_not_by_case():
    """P-302: upper case sorts before lower case."""
    assert sort_distinct([make_term({"a": "1"}), make_term({"B": "1"})])[0] == (("B", "1"),)


def test_t135_exact_duplicates_go_and_overlapping_terms_stay():
    """P-313: a term that is contained in another one is a separate place."""
    zone, both = make_term({"zone": "1"}), make_term({"zone": "1", "rack": "a"})
    assert sort_distinct([both, zone, both, zone]) == [zone, both]


@pytest.mark.parametrize(
    ("part", "whole", "expected"),
    [
        pytest.param({}, {}, True, id="empty in empty"),
        pytest.param({}, {"a": "1"}, True, id="empty in any"),
        pytest.param({"a": "1"}, {}, False, id="any in empty"),
        pytest.param({"b": "1"}, {"a": "1", "b": "1", "c": "1"}, True, id="middle"),
        pytest.param({"b": "2"}, {"a": "1", "b": "1"}, False, id="other value"),
        pytest.param({"a": "1", "c": "1"}, {"a": "1", "b": "1"}, False, id="key missing at end"),
        pytest.param({"a": "1", "b": "1"}, {"a": "1"}, False, id="longer than whole"),
    ],
)
def test_subset(part, whole, expected):
    """P-302: a subset has equal values for all of its keys."""
    assert is_subset(make_term(part), make_term(whole)) is expected


def test_a_repeated_key_is_compared_in_order():
    """P-302: the first equal key with another value ends the walk, unlike a set comparison."""
    assert not is_subset((("a", "2"),), (("a", "1"), ("a", "2")))


@pytest.mark.parametrize(
    ("allowed", "expected"),
    [
        pytest.param([], [], id="nothing"),
        pytest.param([entry()], [], id="entry without expressions"),
        pytest.param([{}], [], id="entry without the field"),
        pytest.param(
            [entry(expression("zone", "1", "2"), expression("rack", "a", "b"))],
            [
                {"zone": "1", "rack": "a"},
                {"zone": "2", "rack": "a"},
                {"zone": "1", "rack": "b"},
                {"zone": "2", "rack": "b"},
            ],
            id="T-124 cross product",
        ),
        pytest.param(
            [entry(expression("zone", "1")), entry(expression("rack", "a"))],
            [{"zone": "1"}, {"rack": "a"}],
            id="entries are ORed",
        ),
        pytest.param(
            [entry(expression("zone", "1"), expression("rack"), expression("disk", "x"))],
            [{"disk": "x"}],
            id="expression without values resets",
        ),
        pytest.param(
            [entry(expression("zone", "1"), {"key": "rack"})], [], id="values absent at the end"
        ),
    ],
)
def test_flatten(allowed, expected):
    """P-320: the terms keep the order of their generation."""
    assert flatten(allowed) == [make_term(term) for term in expected]


def test_flatten_keeps_both_segments_of_a_repeated_key():
    """P-320: the term has two segments of that key."""
    allowed = [entry(expression("zone", "2"), expression("zone", "1"))]
    assert flatten(allowed) == [(("zone", "1"), ("zone", "2"))]


def test_rendering_is_the_references():
    """P-311: the texts appear in events."""
    term = make_term({"zone": "z1", "rack": "r1"})
    assert render_term(term) == "[{rack r1} {zone z1}]"
    assert render_terms([term, make_term({"zone": "z2"})]) == "[[{rack r1} {zone z1}] [{zone z2}]]"
    assert render_terms([]) == "[]"
    assert render_labels({"zone": "z1", "a": "b"}) == "map[a:b zone:z1]"
    assert render_labels({}) == "map[]"
    assert render_keys(["zone", "rack"]) == "[zone rack]"


@given(terms, terms)
def test_subset_agrees_with_sets_for_unique_keys(part, whole):
    """P-302: the merge walk equals set inclusion unless a key repeats."""
    assert is_subset(part, whole) == (set(part) <= set(whole))


@given(term_lists)
def test_sorting_drops_exactly_the_duplicates(many):
    """P-313: no term is lost or repeated, and the order is total."""
    result = sort_distinct(many)
    assert set(result) == set(many)
    assert len(set(result)) == len(result)
    assert [order(term) for term in result] == sorted(order(term) for term in result)


@given(allowed_topologies)
def test_flatten_is_the_cross_product(allowed):
    """P-320: the result equals a model that builds the product in the obvious way."""
    expected = []
    for one in allowed:
        keys = [each["key"] for each in one["matchLabelExpressions"]]
        values = [each["values"] for each in one["matchLabelExpressions"]]
        if keys:
            expected += [make_term(zip(keys, row, strict=True)) for row in product(*values)]
    assert sorted(flatten(allowed)) == sorted(expected)

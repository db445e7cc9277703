"""Node affinity of new volumes, and accessibility of existing ones."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from csi_client.messages import Topology
from workers.topology.affinity import (
    is_accessible,
    matches,
    node_affinity,
    selector_problem,
)


def expression(key, operator, *values):
    return {"key": key, "operator": operator, "values": list(values)}


def volume(*terms):
    return {"spec": {"nodeAffinity": {"required": {"nodeSelectorTerms": list(terms)}}}}


def test_t136_one_topology_with_two_keys():
    """P-340: one term has one In expression per segment, sorted by key."""
    answer = [Topology(segments={"zone": "zone1", "rack": "rack2"})]
    assert node_affinity(answer) == {
        "required": {
            "nodeSelectorTerms": [
                {
                    "matchExpressions": [
                        {"key": "rack", "operator": "In", "values": ["rack2"]},
                        {"key": "zone", "operator": "In", "values": ["zone1"]},
                    ]
                }
            ]
        }
    }


def test_t137_two_topologies_keep_their_order():
    """P-340: the terms keep the order of the answer."""
    affinity = node_affinity([Topology(segments={"zone": "2"}), Topology(segments={"zone": "1"})])
    assert affinity is not None
    terms = affinity["required"]["nodeSelectorTerms"]
    assert [term["matchExpressions"][0]["values"] for term in terms] == [["2"], ["1"]]


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param([], id="T-137 empty list"),
        pytest.param([Topology(), Topology()], id="D-014 only topologies without segments"),
    ],
)
def test_no_affinity(answer):
    """P-340, D-014: an affinity without terms would be refused forever."""
    assert node_affinity(answer) is None


def test_topologies_without_segments_are_skipped():
    """P-340: only the topology with segments gives a term."""
    affinity = node_affinity([Topology(), Topology(segments={"zone": "1"})])
    assert affinity is not None
    assert len(affinity["required"]["nodeSelectorTerms"]) == 1


LABELS = {"zone": "z1", "size": "10", "empty": ""}


@pytest.mark.parametrize(
    ("requirement", "expected"),
    [
        pytest.param(expression("zone", "In", "z0", "z1"), True, id="In"),
        pytest.param(expression("zone", "In", "z2"), False, id="In other value"),
        pytest.param(expression("none", "In", ""), False, id="In absent label"),
        pytest.param(expression("zone", "In"), False, id="In without values"),
        pytest.param(expression("zone", "NotIn", "z2"), True, id="NotIn"),
        pytest.param(expression("zone", "NotIn", "z1"), False, id="NotIn same value"),
        pytest.param(expression("none", "NotIn", "z1"), True, id="NotIn absent label"),
        pytest.param(expression("zone", "NotIn"), False, id="NotIn without values is invalid"),
        pytest.param(expression("empty", "Exists"), True, id="Exists"),
        pytest.param(expression("none", "Exists"), False, id="Exists absent label"),
        pytest.param(expression("zone", "Exists", "z1"), False, id="Exists with values is invalid"),
        pytest.param(expression("none", "DoesNotExist"), True, id="DoesNotExist"),
        pytest.param(expression("zone", "DoesNotExist"), False, id="DoesNotExist present label"),
        pytest.param(
            expression("none", "DoesNotExist", "x"), False, id="DoesNotExist with values is invalid"
        ),
        pytest.param(expression("size", "Gt", "9"), True, id="Gt is numeric"),
        pytest.param(expression("size", "Gt", "10"), False, id="Gt equal"),
        pytest.param(expression("size", "Gt", "-1"), True, id="Gt negative"),
        pytest.param(expression("size", "Lt", "11"), True, id="Lt"),
        pytest.param(expression("size", "Lt", "10"), False, id="Lt equal"),
        pytest.param(expression("zone", "Gt", "1"), False, id="Gt on text"),
        pytest.param(expression("none", "Lt", "1"), False, id="Lt absent label"),
        pytest.param(expression("size", "Gt", "1", "2"), False, id="Gt with two values"),
        pytest.param(expression("size", "Lt", "0x20"), False, id="Lt hexadecimal"),
        pytest.param(expression("size", "Lt", "9223372036854775808"), False, id="Lt beyond int64"),
        pytest.param(expression("zone", "Like", "z1"), False, id="unknown operator"),
        pytest.param({"key": "zone"}, False, id="no operator"),
    ],
)
def test_operators(requirement, expected):
    """P-341: all operators of node selectors work."""
    assert matches([{"matchExpressions": [requirement]}], LABELS) is expected


def test_terms_are_ored_and_requirements_anded():
    """P-341: a volume matches if all requirements of any one term match."""
    here, away = expression("zone", "In", "z1"), expression("zone", "In", "z2")
    assert not matches([{"matchExpressions": [here, away]}], LABELS)
    assert matches([{"matchExpressions": [away]}, {"matchExpressions": [here]}], LABELS)


def test_an_empty_term_never_matches():
    """P-341: this also holds if it is the only term."""
    assert not matches([{}], LABELS)
    assert not matches([{"matchExpressions": [], "matchFields": []}], LABELS)
    assert not matches([], LABELS)


@pytest.mark.parametrize(
    ("requirement", "expected", "by_name"),
    [
        pytest.param(expression("metadata.name", "In", "foo"), True, True, id="In a name"),
        pytest.param(expression("metadata.name", "NotIn", "foo"), True, False, id="NotIn a name"),
        pytest.param(expression("metadata.name", "In", "foo", "b"), False, False, id="two values"),
        pytest.param(expression("metadata.name", "Exists"), False, False, id="other operator"),
    ],
)
def test_match_fields_count_only_where_there_is_a_name(requirement, expected, by_name):
    """P-341, SNC-080: node deployment knows no name. Fields and expressions are ANDed."""
    assert matches([{"matchFields": [requirement]}], LABELS) is expected
    assert matches([{"matchFields": [requirement]}], LABELS, "foo") is by_name
    away = expression("zone", "In", "z2")
    assert not matches([{"matchFields": [requirement], "matchExpressions": [away]}], LABELS)


HOST = {"host": "foo"}


@pytest.mark.parametrize(
    ("existing", "segments", "expected"),
    [
        pytest.param(
            volume({"matchExpressions": [expression("host", "In", "bar")]}),
            HOST,
            False,
            id="T-157 C-137 affinity of another host",
        ),
        pytest.param(
            volume({"matchExpressions": [expression("host", "In", "foo")]}),
            HOST,
            True,
            id="T-157 C-137 own host",
        ),
        pytest.param({"spec": {}}, HOST, True, id="T-157 C-137 no affinity"),
        pytest.param({"spec": {"nodeAffinity": {}}}, HOST, True, id="no required"),
        pytest.param(volume(), HOST, False, id="required without terms"),
        pytest.param(
            volume({"matchExpressions": [expression("host", "In", "bar")]}),
            {},
            True,
            id="no node topology",
        ),
    ],
)
def test_accessibility(existing, segments, expected):
    """P-341, P-506: the node's segments have to match the volume's affinity."""
    assert is_accessible(existing, segments) is expected


@given(st.dictionaries(st.sampled_from("abc"), st.sampled_from("12"), min_size=1))
def test_a_node_reaches_the_volumes_made_for_its_segments(segments):
    """The rules P-340 and P-341 are each other's inverse."""
    affinity = node_affinity([Topology(segments=segments)])
    assert is_accessible({"spec": {"nodeAffinity": affinity}}, segments)
    moved = {**segments, next(iter(segments)): "elsewhere"}
    assert not is_accessible({"spec": {"nodeAffinity": affinity}}, moved)


NO_NUMBER = "Invalid value: \"x\": for 'Gt', 'Lt' operators, the value must be an integer"


@pytest.mark.parametrize(
    ("terms", "problem"),
    [
        pytest.param([], "", id="no affinity"),
        pytest.param([[expression("a", "In", "x"), expression("a", "Gt", "7")]], "", id="fine"),
        pytest.param(
            [[expression("a", "In", "1")], [expression("a", "Exists"), expression("a", "Gt", "x")]],
            f"nodeSelectorTerms[1].matchExpressions[1].values[0]: {NO_NUMBER}",
            id="one, beside a term that matches",
        ),
        pytest.param(
            [[expression("a", "Gt", "x")], [expression("a", "Lt", "x")]],
            f"[nodeSelectorTerms[0].matchExpressions[0].values[0]: {NO_NUMBER}, "
            f"nodeSelectorTerms[1].matchExpressions[0].values[0]: {NO_NUMBER}]",
            id="two",
        ),
    ],
)
def test_a_comparison_with_text_is_a_problem(terms, problem):
    """P-341, P-506: the problem becomes the text of the event."""
    assert selector_problem(volume(*({"matchExpressions": term} for term in terms))) == problem
    assert selector_problem({"spec": {}}) == ""

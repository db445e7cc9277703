"""What one version of the shared cache says about nodes: keys, terms and capacity segments."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from workers.topology.cluster import ClusterTopology
from workers.topology.terms import make_term

DRIVER = "d.example.com"


def cluster(csi_nodes, nodes):
    """Build from name -> this driver's keys (None: driver not listed) and name -> labels."""
    drivers = {name: {} if keys is None else {DRIVER: keys} for name, keys in csi_nodes.items()}
    return ClusterTopology(drivers, nodes)


def segments(*dicts):
    return frozenset(make_term(one) for one in dicts)


def test_sets_of_keys_are_distinct_and_in_the_order_of_the_nodes():
    """P-908: equal caches must give equal requests and texts."""
    keys = {"d": ["rack", "zone"], "c": ["rack"], "b": ["zone", "rack"], "a": [], "e": ["rack"]}
    nodes = cluster(keys, {})
    assert nodes.key_sets(DRIVER) == (("zone", "rack"), ("rack",))
    assert nodes.key_sets("other") == ()


ZONES = {f"n{number:02}": {"zone": f"z{number % 3}", "region": "r"} for number in range(1, 31)}
THREE = [{"zone": "z0"}, {"zone": "z1"}, {"zone": "z2"}]


@pytest.mark.parametrize(
    ("keys", "labels", "expected"),
    [
        pytest.param({}, {}, THREE, id="equal nodes"),
        pytest.param(
            {"a00": ["zone", "old"]}, {"a00": {"zone": "z0"}}, THREE, id="a label was taken away"
        ),
        pytest.param({"a00": ["host"]}, {}, THREE, id="a CSINode without Node, first"),
        pytest.param({"z00": ["host"]}, {}, THREE, id="a CSINode without Node, last"),
        pytest.param({"a00": ["gone"]}, {"a00": {}}, THREE, id="a key that no node carries"),
        pytest.param({"a00": []}, {"a00": {}}, THREE, id="registered without keys"),
        pytest.param(
            {"a00": ["zone", "zone"]},
            {"a00": {"zone": "z9"}},
            [*THREE, {"zone": "z9"}],
            id="the same key twice",
        ),
        pytest.param(
            {"a00": ["region"]},
            {"a00": {"region": "r"}},
            [{"region": "r"}, *THREE],
            id="another key",
        ),
        pytest.param(
            {"a00": ["zone", "rack"]},
            {"a00": {"zone": "z0", "rack": "k1"}},
            [{"rack": "k1", "zone": "z0"}, *THREE],
            id="one key more",
        ),
        pytest.param(
            {"n01": ["newzone"]},
            {"n01": {"zone": "z1", "newzone": "z1"}},
            [{"newzone": "z1"}, *THREE],
            id="a half-done upgrade",
        ),
        pytest.param(
            {"n01": ["zone", "type"]},
            {"n01": {"zone": "z1", "type": "m5"}},
            [{"type": "m5", "zone": "z1"}, *THREE],
            id="a half-done roll-back",
        ),
    ],
)
def test_no_node_speaks_for_the_others(keys, labels, expected):
    """BUG-8, P-321: the registration of one node hides no other node's place."""
    nodes = cluster({**{key: ["zone"] for key in ZONES}, **keys}, {**ZONES, **labels})
    assert sorted(map(dict, nodes.places(DRIVER)), key=str) == sorted(expected, key=str)


def test_t130_labels_decide_not_registration():
    """P-321, D-028: nodes without a CSINode entry count too."""
    nodes = cluster({"a": ["zone"]}, {name: {"zone": f"z{name}"} for name in "abc"})
    assert nodes.terms(["zone"]) == (
        (("zone", "za"),),
        (("zone", "zb"),),
        (("zone", "zc"),),
    )


def test_terms_need_every_key():
    """P-321: a node without one of the keys is not a place."""
    nodes = cluster({}, {"a": {"zone": "1", "rack": "r"}, "b": {"zone": "2"}})
    assert nodes.terms(["zone", "rack"]) == ((("rack", "r"), ("zone", "1")),)
    assert nodes.terms(["disk"]) == ()


def test_aggregation_runs_once_per_version_and_key_set():
    """5000 nodes must be walked once, not once per claim."""

    class CountingNodes(dict[str, Mapping[str, str]]):
        walks = 0

        def values(self):
            self.walks += 1
            return super().values()

    nodes = CountingNodes(a={"zone": "1", "rack": "r"})
    catalog = ClusterTopology({}, nodes, version=7)
    assert catalog.terms(["zone", "rack"]) is catalog.terms(["rack", "zone"])
    assert nodes.walks == 1
    assert catalog.version == 7


def test_node_deployment_has_two_static_objects():
    """P-051: the node's own segments are its labels, and their keys are the driver's keys."""
    own = ClusterTopology.of_node("foo", DRIVER, {"zone": "z", "host": "foo"})
    assert own.has_csi_node("foo")
    assert own.keys_of("foo", DRIVER) == ("host", "zone")
    assert own.labels_of("foo") == {"zone": "z", "host": "foo"}
    assert not own.has_csi_node("bar")


TWO = {"a": {"zone": "1"}, "b": {"zone": "2"}}


@pytest.mark.parametrize(
    ("csi_nodes", "nodes", "expected"),
    [
        pytest.param({}, {}, segments(), id="C-112 empty"),
        pytest.param({"a": ["zone"]}, TWO, segments({"zone": "1"}), id="C-112 one node"),
        pytest.param({}, TWO, segments(), id="C-112 Node without CSINode"),
        pytest.param({"c": ["zone"]}, TWO, segments(), id="C-112 CSINode without Node"),
        pytest.param({"a": ["zone", "rack"]}, TWO, segments(), id="C-112 missing label"),
        pytest.param(
            {"a": ["zone"], "b": ["zone"]},
            TWO,
            segments({"zone": "1"}, {"zone": "2"}),
            id="C-112 two nodes two segments",
        ),
        pytest.param(
            {"a": ["zone"], "b": ["zone"]},
            {"a": {"zone": "1", "x": "1"}, "b": {"zone": "1", "x": "2"}},
            segments({"zone": "1"}),
            id="C-112 two nodes sharing one",
        ),
        pytest.param(
            {"a": ["k1", "k2", "k3", "k4"]},
            {"a": {"k1": "1", "k2": "2", "k3": "3", "k4": "4", "k5": "5"}},
            segments({"k1": "1", "k2": "2", "k3": "3", "k4": "4"}),
            id="C-112 deep keys",
        ),
        pytest.param(
            {"a": ["zone"], "b": ["zone", "rack"]},
            {"a": {"zone": "1"}, "b": {"zone": "1", "rack": "r"}},
            segments({"zone": "1"}, {"zone": "1", "rack": "r"}),
            id="C-112 mixed key sets",
        ),
        pytest.param(
            {"a": ["zone", "rack"], "b": ["zone", "rack"]},
            {"a": {"zone": "1", "rack": "r"}, "b": {"zone": "1", "rack": "s"}},
            segments({"zone": "1", "rack": "r"}, {"zone": "1", "rack": "s"}),
            id="C-112 partially equal",
        ),
        pytest.param(
            {"a": ["zone", "rack"], "b": ["rack", "zone"]},
            {"a": {"zone": "1", "rack": "r"}, "b": {"zone": "1", "rack": "r"}},
            segments({"zone": "1", "rack": "r"}),
            id="C-112 unsorted keys equal sorted",
        ),
        pytest.param({"a": None}, TWO, segments(), id="C-112 other driver only"),
        pytest.param({"a": []}, TWO, segments({}), id="C-112 driver without keys"),
    ],
)
def test_segments(csi_nodes, nodes, expected):
    """CAP-020: each case gives the expected set of segments."""
    assert cluster(csi_nodes, nodes).segments(DRIVER) == expected


def test_segments_take_a_null_key_list_as_empty():
    """CAP-020: a CSINode read from the API may have no topologyKeys at all (case cap-12)."""
    assert ClusterTopology({"a": {DRIVER: None}}, {"a": {}}).segments(DRIVER) == {()}


BOTH = {"a": ["zone"], "b": ["zone"]}


@pytest.mark.parametrize(
    ("before", "after", "added", "removed"),
    [
        pytest.param(
            (BOTH, TWO),
            ({"a": ["zone"]}, TWO),
            segments(),
            segments({"zone": "2"}),
            id="C-113 CSINode removed",
        ),
        pytest.param(
            (BOTH, TWO),
            (BOTH, {"a": {"zone": "1"}}),
            segments(),
            segments({"zone": "2"}),
            id="C-113 Node removed",
        ),
        pytest.param(
            (BOTH, TWO),
            ({"a": ["zone"], "b": None}, TWO),
            segments(),
            segments({"zone": "2"}),
            id="C-113 driver unregistered",
        ),
        pytest.param(
            ({"a": None}, TWO),
            ({"a": ["zone"]}, TWO),
            segments({"zone": "1"}),
            segments(),
            id="C-113 driver registered",
        ),
        pytest.param(
            (BOTH, TWO),
            (BOTH, {"a": {"zone": "1"}, "b": {"zone": "3"}}),
            segments({"zone": "3"}),
            segments({"zone": "2"}),
            id="C-113 label changed on one of two nodes",
        ),
        pytest.param(
            ({"a": ["zone"]}, {"a": {"zone": "1", "rack": "r"}}),
            ({"a": ["rack"]}, {"a": {"zone": "1", "rack": "r"}}),
            segments({"rack": "r"}),
            segments({"zone": "1"}),
            id="C-113 keys changed",
        ),
        pytest.param(
            ({"a": ["zone"]}, {}),
            ({"a": ["zone"]}, TWO),
            segments({"zone": "1"}),
            segments(),
            id="C-113 Node appears after CSINode",
        ),
        pytest.param(
            ({}, TWO),
            ({"a": ["zone"]}, TWO),
            segments({"zone": "1"}),
            segments(),
            id="C-113 CSINode appears after Node",
        ),
        pytest.param(
            (BOTH, TWO),
            (BOTH, {"a": {"zone": "1", "x": "y"}, "b": {"zone": "2"}}),
            segments(),
            segments(),
            id="C-113 unrelated label",
        ),
    ],
)
def test_segment_changes(before, after, added, removed):
    """CAP-021, CAP-022: the difference of two versions is exact."""
    old, new = (cluster(*state).segments(DRIVER) for state in (before, after))
    assert (new - old, old - new) == (added, removed)

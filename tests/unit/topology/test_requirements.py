"""Accessibility requirements: all of section 4, case by case, against recorded behaviour."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.errors import AttemptError, State
from workers.topology.cluster import ClusterTopology
from workers.topology.requirements import TopologyInputs, accessibility_requirements
from workers.topology.terms import is_subset, make_term

DRIVER = "d.example.com"
WRAPPED = "error generating accessibility requirements: "


def cluster(labels_by_node, keys=("zone",), *, registered=None):
    """Return nodes with these labels, with the driver's keys on all or only the given nodes."""
    on = labels_by_node if registered is None else registered
    return ClusterTopology({name: {DRIVER: list(keys)} for name in on}, labels_by_node)


def zones(*values):
    return cluster({f"n{index}": {"zone": value} for index, value in enumerate(values, start=1)})


def allowed(*entries):
    return [
        {
            "matchLabelExpressions": [
                {"key": key, "values": list(values)} for key, values in entry.items()
            ]
        }
        for entry in entries
    ]


def inputs(catalog, **changes):
    return TopologyInputs(
        driver_name=DRIVER, cluster=catalog, **{"claim_name": "testpvc", **changes}
    )


def run(catalog, **changes):
    """Return (requisite, preferred) as lists of dicts."""
    requirement = accessibility_requirements(inputs(catalog, **changes))
    assert requirement is not None
    return (
        [dict(topology.segments) for topology in requirement.requisite],
        [dict(topology.segments) for topology in requirement.preferred],
    )


def error(catalog, **changes):
    with pytest.raises(AttemptError) as caught:
        accessibility_requirements(inputs(catalog, **changes))
    return caught.value.message, caught.value.state


def zone_list(*values):
    return [{"zone": value} for value in values]


def test_t120_immediate_takes_the_distinct_terms_of_the_cluster():
    """P-313, P-321: equal terms of two nodes count once; recorded topo-01."""
    requisite, preferred = run(zones("z1", "z2", "z2"), claim_name="data")
    assert requisite == zone_list("z1", "z2")
    assert preferred == zone_list("z2", "z1")


def test_t121_strict_takes_the_selected_node_alone():
    """P-310.4: other nodes' terms are left out; recorded topo-02."""
    requisite, preferred = run(zones("z1", "z2", "z2"), selected_node="n1", strict=True)
    assert requisite == preferred == zone_list("z1")


@pytest.mark.parametrize(
    ("claim_name", "first"),
    [
        pytest.param("testpvcA-testset-1", 0, id="T-122 first"),
        pytest.param("testset-2", 1, id="T-122 second"),
        pytest.param("testpvc-testset-3", 2, id="T-122 third"),
        pytest.param("testpvc-testset-4", 3, id="T-122 fourth"),
    ],
)
def test_spreading_over_four_places(claim_name, first):
    """P-314, P-325: the claim's name selects the first place; recorded topo-hash-1 to -7."""
    places = [{"zone": f"zone{n}", "rack": f"rack{r}"} for n, r in enumerate("ABCD", start=1)]
    catalog = cluster({f"n{n}": place for n, place in enumerate(places)}, ("zone", "rack"))
    requisite, preferred = run(catalog, claim_name=claim_name)
    assert requisite == places
    assert preferred == places[first:] + places[:first]


def test_t123_claim_name_without_number():
    """P-325: the hash of the whole name selects the first term."""
    _, preferred = run(zones("zone1", "zone2", "zone3"), claim_name="testpvc")
    assert preferred == zone_list("zone3", "zone1", "zone2")


def test_delayed_binding_leads_with_the_selected_node():
    """P-314: the selected node's term is the first preferred one; recorded topo-03."""
    requisite, preferred = run(zones("z1", "z2", "z3"), selected_node="n2")
    assert requisite == zone_list("z1", "z2", "z3")
    assert preferred == zone_list("z2", "z3", "z1")


PLACES = allowed({"zone": ["zone1", "zone2"], "rack": ["rackA", "rackB"]})
NODE = {"zone": "zone2", "rack": "rackA"}


def test_t124_allowed_topologies_delayed():
    """P-314, P-320: the class gives the terms, the node the first of them; recorded topo-04."""
    catalog = cluster({"n": NODE}, ("zone", "rack"))
    requisite, preferred = run(catalog, selected_node="n", allowed_topologies=PLACES)
    in_order = [{"rack": f"rack{r}", "zone": f"zone{z}"} for r in "AB" for z in "12"]
    assert requisite == in_order
    assert preferred == in_order[1:] + in_order[:1]


def test_t125_allowed_topologies_delayed_strict():
    """P-310.4: only the selected node's term is sent."""
    catalog = cluster({"n": NODE}, ("zone", "rack"))
    requisite, preferred = run(catalog, selected_node="n", allowed_topologies=PLACES, strict=True)
    assert requisite == preferred == [NODE]


def test_t126_selected_node_outside_allowed_topologies():
    """P-314: the error names the node and the allowed terms; recorded topo-06."""
    catalog = zones("z1", "z2", "z3")
    assert error(catalog, selected_node="n2", allowed_topologies=allowed({"zone": ["z1"]})) == (
        (
            f'{WRAPPED}topology [{{zone z2}}] from selected node "n2" '
            "is not in requisite: [[{zone z1}]]"
        ),
        State.NO_CHANGE,
    )


def test_t126_selected_node_outside_allowed_topologies_strict():
    """P-310.4: the error has both quote styles; recorded topo-07."""
    some = allowed({"zone": ["z1", "z3"]})
    assert error(
        zones("z1", "z2", "z3"), selected_node="n2", allowed_topologies=some, strict=True
    ) == (
        (
            f"{WRAPPED}selected node '\"n2\"' topology '[{{zone z2}}]' "
            "is not in allowed topologies: [[{zone z1}] [{zone z3}]]"
        ),
        State.NO_CHANGE,
    )


def test_t127_class_names_fewer_keys_than_the_driver():
    """P-320: delayed binding matches by subset, and strict sends all keys of the driver."""
    node = {"zone": "zone1", "rack": "rack1", "disk": "ssd"}
    catalog = cluster({"n": node}, ("zone", "rack", "disk"))
    some = allowed({"disk": ["ssd"], "zone": ["zone1"]})
    _, preferred = run(catalog, selected_node="n", allowed_topologies=some)
    assert preferred == [{"disk": "ssd", "zone": "zone1"}]
    _, preferred = run(catalog, selected_node="n", allowed_topologies=some, strict=True)
    assert preferred == [node]


def test_t128_selected_node_without_csinode_reschedules():
    """P-310.1, P-311: this is the only message that is not wrapped; recorded topo-09."""
    assert error(cluster({"n": {"zone": "z"}}, registered=[]), selected_node="n") == (
        'failed to get selected CSINode n: csinode.storage.k8s.io "n" not found',
        State.RESCHEDULE,
    )


def test_selected_node_without_the_driver():
    """P-310.2: a CSINode without topology keys is an error; recorded topo-10."""
    assert error(cluster({"n": {"zone": "z"}}, keys=()), selected_node="n") == (
        f"{WRAPPED}no topology key found for node n",
        State.NO_CHANGE,
    )


def test_t129_immediate_without_keys_anywhere():
    """P-312: there is no topology to request; recorded topo-11."""
    assert error(cluster({})) == (f"{WRAPPED}no available topology found", State.NO_CHANGE)


@pytest.mark.parametrize("catalog", [cluster({}), zones("z1")], ids=["T-129 no node", "topo-12"])
def test_without_immediate_topology_the_field_is_unset(catalog):
    """P-312: there is no requirement even if nodes have topology keys."""
    assert accessibility_requirements(inputs(catalog, immediate=False)) is None


def test_without_immediate_topology_delayed_and_allowed_still_count():
    """P-312: the flag only concerns immediate binding without allowedTopologies."""
    requisite, _ = run(zones("z1", "z2"), selected_node="n1", immediate=False)
    assert requisite == zone_list("z1", "z2")
    some = allowed({"zone": ["z9"]})
    assert run(cluster({}), allowed_topologies=some, immediate=False)[0] == zone_list("z9")


def test_t130_keys_on_one_node_labels_on_three():
    """P-321: labels decide, not the CSINode entries."""
    catalog = cluster({name: {"zone": name} for name in "abc"}, registered=["b"])
    assert run(catalog)[0] == zone_list("a", "b", "c")


def test_t131_label_on_no_node():
    """P-321: keys that no node has as labels are an error."""
    catalog = cluster({"n": {"other": "x"}}, ("zone", "rack"))
    assert error(catalog) == (
        f"{WRAPPED}topologyKeys [zone rack] were not found on any nodes",
        State.NO_CHANGE,
    )


def test_t132_selected_node_without_a_key_until_the_label_comes():
    """P-310.3, P-331: the claim succeeds once the node has the label; recorded topo-15."""
    assert error(cluster({"n": {"zone": "z1", "b": "c"}}, ("zone", "rack")), selected_node="n") == (
        (
            f"{WRAPPED}topology labels from selected node map[b:c zone:z1] "
            "does not match topology keys from CSINode [zone rack]"
        ),
        State.NO_CHANGE,
    )
    later = cluster({"n": {"zone": "z1", "rack": "r9"}}, ("zone", "rack"))
    assert run(later, selected_node="n")[0] == [{"zone": "z1", "rack": "r9"}]


def test_p335_node_gone_but_csinode_there():
    """P-335: the missing node gives a plain error; recorded topo-22."""
    catalog = ClusterTopology({"n": {DRIVER: ["zone"]}}, {"m": {"zone": "z"}})
    assert error(catalog, selected_node="n") == (
        (
            f"{WRAPPED}topology labels from selected node map[] "
            "does not match topology keys from CSINode [zone]"
        ),
        State.NO_CHANGE,
    )


def test_immediate_takes_the_places_of_every_set_of_keys():
    """BUG-8: one node's outdated set of keys hides no other node's place."""
    labels = {"n1": {"zone": "z1"}, "n2": {"zone": "z2", "rack": "k1"}, "n3": {"old": "o"}}
    keys = {"n1": ["zone"], "n2": ["rack", "zone"], "n3": ["gone"]}
    mixed = ClusterTopology({name: {DRIVER: one} for name, one in keys.items()}, labels)
    assert run(mixed)[0] == [{"zone": "z1"}, {"zone": "z2"}, {"rack": "k1", "zone": "z2"}]
    assert run(mixed, selected_node="n1")[0] == [{"zone": "z1"}, {"zone": "z2"}]


def test_t135_t140_allowed_topologies_without_any_node():
    """P-312, P-313: duplicates go, overlaps stay, nodes do not matter; recorded topo-16."""
    some = allowed({"zone": ["z1", "z2"]}, {"zone": ["z2"]}, {"zone": ["z1"], "rack": ["r1"]})
    requisite, preferred = run(cluster({}), claim_name="data", allowed_topologies=some)
    assert requisite == preferred == [*zone_list("z1", "z2"), {"rack": "r1", "zone": "z1"}]


def test_immediate_with_allowed_topologies_ignores_nodes():
    """P-312, P-325: even terms that no node has are sent; recorded topo-24."""
    some = allowed({"zone": ["z3", "z1", "zz"]})
    requisite, preferred = run(zones("z1", "z2", "z3"), claim_name="web-1", allowed_topologies=some)
    assert requisite == zone_list("z1", "z3", "zz")
    assert preferred == zone_list("z3", "zz", "z1")


def test_allowed_topologies_without_expressions_leave_the_field_unset():
    """P-312: such a class restricts nothing."""
    some = [{"matchLabelExpressions": []}]
    assert accessibility_requirements(inputs(zones("z"), allowed_topologies=some)) is None


def test_a_repeated_key_sends_its_last_value():
    """P-320: the last expression of that key decides."""
    some = [
        {"matchLabelExpressions": [{"key": "zone", "values": [value]} for value in ("z2", "z1")]}
    ]
    assert run(cluster({}), allowed_topologies=some)[0] == zone_list("z2")


def test_a_selected_node_means_delayed_binding_whatever_the_class_says():
    """P-301: strict has no effect without a selected node."""
    requisite, _ = run(zones("z1", "z2"), strict=True)
    assert requisite == zone_list("z1", "z2")


@pytest.mark.parametrize("key", ["foo", "bar"], ids=["T-155 own node", "T-155 other node"])
def test_node_deployment_runs_on_its_own_two_objects(key):
    """P-051, P-053: allowedTopologies decide whether the local node is allowed to own the claim."""
    own = ClusterTopology.of_node("foo", DRIVER, {"host": "foo"})
    some = allowed({"host": [key]})
    if key == "foo":
        assert run(own, selected_node="foo", allowed_topologies=some)[0] == [{"host": "foo"}]
    else:
        assert error(own, selected_node="foo", allowed_topologies=some)[1] is State.NO_CHANGE


labels = st.fixed_dictionaries(
    {"zone": st.sampled_from("123"), "rack": st.sampled_from("ab"), "host": st.sampled_from("xyz")}
)
clusters = st.lists(labels, min_size=1, max_size=6).map(
    lambda many: {f"n{index}": one for index, one in enumerate(many)}
)
key_lists = st.permutations(["zone", "rack", "host"]).flatmap(
    lambda keys: st.integers(1, 3).map(lambda count: keys[:count])
)


@given(clusters, key_lists, st.booleans(), st.booleans(), st.from_regex(r"[a-z]-[0-9]"))
def test_preferred_is_a_rotation_of_requisite(nodes, keys, delayed, strict, claim_name):
    """P-313, P-314: both lists have the same sorted, distinct terms; a selected n0 comes first."""
    catalog = cluster(nodes, keys)
    requisite, preferred = run(
        catalog, selected_node="n0" if delayed else "", strict=strict, claim_name=claim_name
    )
    rotations = [requisite[start:] + requisite[:start] for start in range(len(requisite))]
    assert preferred in rotations
    in_order = [make_term(one) for one in requisite]
    assert in_order == sorted(set(in_order))
    if delayed:
        assert is_subset(make_term(preferred[0]), make_term(nodes["n0"]))

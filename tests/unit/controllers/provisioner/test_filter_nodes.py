"""What the watcher keeps of a volume, and which nodes can act on it (L-071, ND-012)."""

from __future__ import annotations

import pytest

from tests.support.kube_objects import make_claim, make_volume
from workers.controllers.provisioner.filters import (
    claim_entry,
    claim_keys,
    volume_entry,
    volume_keys,
)
from workers.controllers.provisioner.served import Drivers, DriverView

Z1 = {"key": "zone", "operator": "In", "values": ["z1"]}


def view(name, **more):
    return DriverView.from_record({"name": name, "queue_name": name, **more})


def affinity(*expressions, terms=None):
    terms = [{"matchExpressions": list(expressions)}] if terms is None else terms
    return {"required": {"nodeSelectorTerms": terms}}


CENTRAL = Drivers.of([view("foo")])


@pytest.mark.parametrize(
    ("fields", "is_kept"),
    [
        pytest.param({"phase": "Bound", "finalizer": False}, True, id="L-072 wants its finalizer"),
        pytest.param({"phase": "Released"}, True, id="L-073 to be deleted"),
        pytest.param({"phase": "Bound"}, False, id="nothing to do"),
        pytest.param({"phase": "Bound", "finalizer": False, "provisioned_by": None}, False,
                     id="nobody's"),
    ],
)  # fmt: skip
@pytest.mark.parametrize(
    "drivers", [CENTRAL, Drivers.of([view("another")])], ids=["known", "unknown"]
)
def test_of_an_unknown_driver_as_much_is_kept_as_of_a_csi_driver(drivers, fields, is_kept):
    """No event is repeated when a driver registers, so the watcher must keep the volumes it saw."""
    assert (volume_entry(make_volume(**fields), drivers) is not None) is is_kept


def test_only_node_deployment_keeps_where_a_volume_is():
    """A cluster can have a hundred thousand volumes, so their affinity would cost memory."""
    volume = make_volume(nodeAffinity=affinity(Z1))
    on_node = Drivers.of([view("foo", node="n1", node_segments={"zone": "z1"})])
    assert volume_entry(volume, CENTRAL).affinity is None
    assert volume_entry(volume, on_node).affinity == affinity(Z1)


NODES = {
    "n1": {"zone": "z1", "disk": "ssd"},
    "n2": {"zone": "z2", "disk": "ssd"},
    "n3": {},
    "n4": None,
}
ON_NODES = Drivers.of(
    [
        DriverView.from_record(
            {"name": "foo", "queue_name": name, "node": name, "node_segments": segments}
        )
        for name, segments in NODES.items()
    ]
)
UNKNOWN = ["n3", "n4"]
NOT_Z1 = {"key": "zone", "operator": "NotIn", "values": ["z1"]}
Z2 = {"key": "zone", "operator": "In", "values": ["z2"]}
SSD = {"key": "disk", "operator": "In", "values": ["ssd", "nvme"]}
HDD = {"key": "disk", "operator": "In", "values": ["hdd"]}
NOTHING = {"key": "zone", "operator": "In"}
RACK = {"key": "rack", "operator": "In", "values": ["r1"]}


@pytest.mark.parametrize(
    ("where", "nodes"),
    [
        pytest.param(affinity(Z1), ["n1", *UNKNOWN], id="one requirement"),
        pytest.param(affinity(SSD), ["n1", "n2", *UNKNOWN], id="one of several values"),
        pytest.param(affinity(Z1, SSD), ["n1", *UNKNOWN], id="both requirements hold"),
        pytest.param(affinity(Z1, HDD), UNKNOWN, id="one of two requirements holds"),
        pytest.param(affinity(HDD, Z1), UNKNOWN, id="the other one holds"),
        pytest.param(
            affinity(terms=[{"matchExpressions": [HDD]}, {"matchExpressions": [Z2]}]),
            ["n2", *UNKNOWN],
            id="one of two terms holds",
        ),
        pytest.param(affinity(NOT_Z1), ["n1", "n2", *UNKNOWN], id="unreadable counts as yes"),
        pytest.param(affinity(NOT_Z1, Z2), ["n2", *UNKNOWN], id="unreadable beside readable"),
        pytest.param(affinity(NOTHING), UNKNOWN, id="no values"),
        pytest.param(affinity(RACK), UNKNOWN, id="a key that the nodes do not have"),
        pytest.param(affinity(terms=[{}]), ["n1", "n2", *UNKNOWN], id="a term without any"),
        pytest.param(affinity(terms=[]), ["n1"], id="no terms: any node, so the first"),
        pytest.param({"required": None}, ["n1"], id="nothing required"),
        pytest.param(None, ["n1"], id="no affinity"),
    ],
)
def test_nd012_who_can_reach_a_volume_acts_on_it(where, nodes):
    """A node without segments and an unreadable term match: the worker reads the live object."""
    spec = {"nodeAffinity": where} if where is not None else {}
    entry = volume_entry(make_volume(**spec), ON_NODES)
    assert [key.driver for key in volume_keys(entry, ON_NODES)] == nodes


def test_the_key_of_a_volume_carries_its_claim_s_namespace():
    """The queue shares its turns fairly between namespaces."""
    claim_ref = {"namespace": "shop", "name": "a", "uid": "u"}
    volume = make_volume(claimRef=claim_ref)
    assert [key.uid for key in volume_keys(volume_entry(volume, CENTRAL), CENTRAL)] == ["@shop"]
    volume = make_volume()
    assert [key.uid for key in volume_keys(volume_entry(volume, CENTRAL), CENTRAL)] == [""]


@pytest.mark.parametrize(
    ("provisioner", "migrated_to", "expected"),
    [
        ("kubernetes.io/foo", "foo", ["foo"]),
        ("kubernetes.io/bar", "foo", []),
        ("old.foo", None, ["foo"]),
        ("foo", "bar", ["foo"]),
        ("bar", "foo", []),
    ],
)
def test_l025_migration_needs_the_plug_in_s_own_name(provisioner, migrated_to, expected):
    """A claim of another plug-in that says it is migrated to this driver is ignored."""
    drivers = Drivers.of(
        [view("foo", in_tree_name="kubernetes.io/foo", additional_names=["old.foo"])]
    )
    entry = claim_entry(make_claim(provisioner=provisioner, migrated_to=migrated_to))
    assert [key.driver for key in claim_keys(entry, drivers, {})] == expected

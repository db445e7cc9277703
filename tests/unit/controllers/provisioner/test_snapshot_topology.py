"""A volume is restored only where its snapshot is usable (KEP-5943, P-343)."""

from __future__ import annotations

import pytest

from tests.support.fake_cluster import CAPABILITIES, DRIVER, TOPOLOGY, World
from tests.unit.controllers.provisioner.test_sourcing import (
    SNAPSHOT,
    add_snapshot,
    with_snapshots,
    work_of,
)
from workers.config.gates import FeatureGates
from workers.config.settings import Settings
from workers.constants import ANN_SELECTED_NODE
from workers.controllers.provisioner.attempt import Attempt
from workers.errors import AttemptError, State
from workers.topology.cluster import ClusterTopology

ZONE, REGION = "topology.example.org/zone", "topology.example.org/region"
NODES = {"n1": {ZONE: "z1", REGION: "r"}, "n2": {ZONE: "z2", REGION: "r"}}


def selector(**values):
    """Return a selector with one entry; values are separated by spaces."""
    keys = {"zone": ZONE, "region": REGION}
    return [
        {
            "matchLabelExpressions": [
                {"key": keys[name], "values": found.split()} for name, found in values.items()
            ]
        }
    ]


def _pairs(place):
    return sorted(place.items())


def requirement(affinity, *, gate=True, allowed=None, plugin=TOPOLOGY, node=""):
    """Return the requisite places of the request for a restore, as maps; None if it is unset."""
    settings = Settings(gates=FeatureGates(volume_snapshot_topology=gate))
    world = with_snapshots(World(settings, plugin, CAPABILITIES | {"CREATE_DELETE_SNAPSHOT"}))
    keys = {name: {DRIVER: [ZONE]} for name in NODES}
    world.clusters.topology = ClusterTopology(keys, NODES)
    more = {"allowedTopologies": allowed} if allowed is not None else {}
    storage_class = world.add_class(**more)
    add_snapshot(world, **({"nodeAffinity": affinity} if affinity is not None else {}))
    notes = {ANN_SELECTED_NODE: node} if node else {}
    claim = world.add_claim(annotations=notes, dataSource=SNAPSHOT)
    request = Attempt(work_of(world, claim), claim, storage_class, None).prepare().request
    if not request.HasField("accessibility_requirements"):
        return None
    wanted = request.accessibility_requirements
    found = [dict(one.segments) for one in wanted.requisite]
    preferred = [dict(one.segments) for one in wanted.preferred]
    assert sorted(found, key=_pairs) == sorted(preferred, key=_pairs)
    return found


@pytest.mark.parametrize(
    ("allowed", "affinity", "expected"),
    [
        (None, selector(zone="z2"), [{ZONE: "z2"}]),
        ([], selector(zone="z2"), [{ZONE: "z2"}]),
        (selector(zone="z1 z2"), selector(zone="z2 z3"), [{ZONE: "z2"}]),
        (selector(zone="z1"), selector(region="r"), [{ZONE: "z1", REGION: "r"}]),
        (selector(zone="z1"), None, [{ZONE: "z1"}]),
        (None, [], [{ZONE: "z1"}, {ZONE: "z2"}]),
    ],
    ids=[
        *("no restriction by the class", "an empty one", "both", "different keys"),
        *("no topology of the snapshot", "an empty topology"),
    ],
)
def test_p343_an_immediate_restore_is_limited_to_both(allowed, affinity, expected):
    """P-343: The volume goes where the class allows it and the snapshot is usable."""
    assert requirement(affinity, allowed=allowed) == expected


@pytest.mark.parametrize(
    ("allowed", "affinity"),
    [
        (selector(zone="z1"), selector(zone="z2")),
        ([{}], selector(zone="z2")),
        (None, [{}]),
        (None, selector(zone="")),
    ],
    ids=["disjoint", "the class allows nothing", "the snapshot nothing", "no values"],
)
def test_p343_nothing_in_common_is_an_error_before_the_call(allowed, affinity):
    """P-343: Nothing is sent; the text names the class and the remedy."""
    with pytest.raises(AttemptError, match=r"no compatible topology.*StorageClass fast") as caught:
        requirement(affinity, allowed=allowed)
    assert caught.value.state is State.NO_CHANGE


def test_p343_too_many_combinations_are_an_error():
    """P-343: The request would not fit."""
    many = selector(zone=" ".join(f"z{number}" for number in range(5000)))
    with pytest.raises(AttemptError, match="StorageClass fast"):
        requirement(many)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"gate": False}, [{ZONE: "z1"}, {ZONE: "z2"}]),
        ({"node": "n1"}, [{ZONE: "z1"}, {ZONE: "z2"}]),
        ({"plugin": frozenset({"CONTROLLER_SERVICE"})}, None),
    ],
    ids=["gate off", "the scheduler chose a node", "no topology of volumes"],
)
def test_p343_otherwise_the_snapshot_restricts_nothing(changes, expected):
    """P-343: As without the field."""
    assert requirement(selector(zone="z2"), **changes) == expected

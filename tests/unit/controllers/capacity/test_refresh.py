"""Which items are refreshed after a volume was created or deleted (C-104, C-105)."""

from __future__ import annotations

import pytest

from workers.controllers.capacity.items import Wanted
from workers.controllers.capacity.refresh import after_delete, after_provision
from workers.errors import State
from workers.topology.terms import make_term

WANTED = Wanted(
    frozenset({"s", "t"}),
    frozenset(make_term({"zone": zone, "rack": "r"}) for zone in "ab"),
)
PLAIN = {"spec": {}}


def volume(**labels):
    expressions = [
        {"key": key, "operator": "In", "values": [value]} for key, value in labels.items()
    ]
    terms = [{"matchExpressions": expressions}]
    return {"spec": {"nodeAffinity": {"required": {"nodeSelectorTerms": terms}}}}


IN_A = volume(zone="a", rack="r")
OF_CLASS_S = ["s/rack=r,zone=a", "s/rack=r,zone=b"]
OF_ZONE_A = ["s/rack=r,zone=a", "t/rack=r,zone=a"]


@pytest.mark.parametrize(
    ("storage_class", "outcome", "expected"),
    [
        pytest.param("s", IN_A, OF_ZONE_A, id="C-105 success with affinity"),
        pytest.param("s", PLAIN, OF_CLASS_S, id="C-105 success without affinity"),
        pytest.param("s", State.RESCHEDULE, OF_CLASS_S, id="C-105 ResourceExhausted"),
        pytest.param("s", State.BACKGROUND, OF_CLASS_S, id="C-105 time-out"),
        pytest.param("s", State.FINISHED, OF_CLASS_S, id="C-105 final error"),
        pytest.param("s", State.NO_CHANGE, [], id="C-105 NoChange"),
        pytest.param("u", State.FINISHED, [], id="C-104 unknown class"),
        pytest.param("u", IN_A, OF_ZONE_A, id="C-104 by topology all classes"),
        pytest.param("s", volume(zone="c", rack="r"), [], id="C-104 unknown value"),
        pytest.param("s", volume(zone="a"), [], id="C-104 truncated topology"),
        pytest.param("s", volume(zone="a", rack="r", disk="d"), [], id="C-104 longer topology"),
        pytest.param("s", {"spec": {"nodeAffinity": {}}}, [], id="CAP-043 no terms"),
    ],
)
def test_after_provision(storage_class, outcome, expected):
    """CAP-030: The volume's topology decides, otherwise its class."""
    assert [item.text for item in after_provision(WANTED, storage_class, outcome)] == expected


@pytest.mark.parametrize(
    ("deleted", "expected"),
    [
        pytest.param(IN_A, OF_ZONE_A, id="C-105 delete with affinity"),
        pytest.param(PLAIN, [], id="C-105 delete without affinity"),
    ],
)
def test_after_delete(deleted, expected):
    """CAP-030: Only the volume's topology decides."""
    assert [item.text for item in after_delete(WANTED, deleted)] == expected

"""The topology of snapshots: what the driver is asked for, and what the content gets (KEP-5943)."""

from __future__ import annotations

from contextlib import suppress

import pytest

from csi_client.errors import INTERNAL, CsiError
from tests.support.fake_context import Death
from tests.support.snapshot_world import CONTENT, SnapshotWorld, error_of
from workers.controllers.snapshotter import topology
from workers.kube import paths
from workers.kube.errors import ForbiddenError

CAPABLE = "SNAPSHOT_ACCESSIBILITY_CONSTRAINTS"
ZONE = "topology.example.org/zone"
ALLOWED = [{"matchLabelExpressions": [{"key": ZONE, "values": ["z1", "z2"]}]}]
STORED = [{"matchLabelExpressions": [{"key": ZONE, "values": ["z1"]}]}]


def answer(*zones, is_ready=True, key=ZONE):
    places = [{"segments": {key: zone}} for zone in zones]
    snapshot = {"snapshot_id": "sh", "ready_to_use": is_ready, "accessible_topology": places}
    return {"snapshot": snapshot}


def world_of(*answers, gate=True, capabilities=(CAPABLE,), allowed=ALLOWED, **spec):
    world = SnapshotWorld(*capabilities, has_topology=gate)
    world.add_class(allowedTopologies=allowed)
    world.add_content(spec=spec)
    world.client.respond({"CreateSnapshot": list(answers)})
    return world


def asked(world):
    """Return the zones of each CreateSnapshot; None for a call without a requirement."""
    return [
        [one.segments[ZONE] for one in sent.accessibility_requirements.requisite]
        if sent.HasField("accessibility_requirements")
        else None
        for sent in world.client.requests("CreateSnapshot")
    ]


def stored(world):
    return world.content()["spec"].get("nodeAffinity")


@pytest.fixture(autouse=True)
def _nothing_dropped():
    topology._was_dropped.clear()
    yield
    topology._was_dropped.clear()


class Log:
    def __init__(self):
        self.lines = []

    def warning(self, message, **_fields):
        self.lines.append(message)


@pytest.fixture
def log(monkeypatch):
    found = Log()
    monkeypatch.setattr(topology, "_log", found)
    return found


def test_sns121_sns123_the_places_are_requested_and_stored():
    """SNS-121, SNS-123: Requisite equals preferred. The field is written before the status."""
    world = world_of(answer("z1"))
    assert world.run_content().action.value == "done"
    (sent,) = world.client.requests("CreateSnapshot")
    wanted = sent.accessibility_requirements
    assert [dict(one.segments) for one in wanted.requisite] == [{ZONE: "z1"}, {ZONE: "z2"}]
    assert wanted.preferred == wanted.requisite
    assert stored(world) == STORED
    assert world.content()["status"]["readyToUse"] is True
    steps = world.steps.reached
    assert steps.index("write-topology") < steps.index("write-status")


@pytest.mark.parametrize(("gate", "capabilities"), [(False, (CAPABLE,)), (True, ()), (False, ())])
def test_sns120_without_the_gate_or_the_capability_nothing_changes(gate, capabilities):
    """SNS-120: No requirement is sent. The answer is neither stored nor checked."""
    world = world_of(answer("z1", "not a label"), gate=gate, capabilities=capabilities)
    assert world.run_content().action.value == "done"
    assert (asked(world), stored(world)) == ([None], None)


def test_sns120_without_the_gate_the_classs_field_is_not_read():
    """SNS-120: Whatever a class has in the field, the call is as before."""
    world = world_of(answer("z1"), gate=False, allowed="?")
    assert world.run_content().action.value == "done"
    assert asked(world) == [None]


def test_a_class_of_wrong_types_is_not_sent():
    """The error names the field; there is no call."""
    world = world_of(
        answer("z1"), allowed=[{"matchLabelExpressions": [{"key": ZONE, "values": "z1"}]}]
    )
    world.run_content()
    assert "values is a string" in error_of(world.content())
    assert asked(world) == []


def test_sns120_a_stored_topology_stays_without_the_gate():
    """SNS-120: The field is kept, and nothing acts on it."""
    world = world_of(answer("z2"), gate=False, nodeAffinity=STORED)
    world.run_content()
    assert stored(world) == STORED


@pytest.mark.parametrize(
    "allowed",
    [None, [], [{}], [{"matchLabelExpressions": [{"key": ZONE, "values": []}]}]],
    ids=["absent", "empty", "an empty entry", "no values"],
)
def test_sns122_a_class_that_allows_no_place_restricts_nothing(allowed, log):
    """SNS-122: A selector that no place satisfies is not sent, as in csi-snapshotter."""
    world = world_of(answer(), allowed=allowed)
    assert world.run_content().action.value == "done"
    assert (asked(world), stored(world)) == ([None], None)
    assert len(log.lines) == bool(allowed)


def test_sns122_a_driver_without_the_capability_is_logged(log):
    """SNS-122: CSI forbids the field without the capability."""
    world_of(answer(), capabilities=()).run_content()
    (line,) = log.lines
    assert CAPABLE in line


def test_sns121_a_class_with_too_many_combinations_is_refused():
    """SNS-121: The snapshot fails before the driver is called."""
    many = {"key": ZONE, "values": [str(number) for number in range(5000)]}
    world = world_of(answer(), allowed=[{"matchLabelExpressions": [many]}])
    assert world.run_content().action.value == "retry"
    assert "allowedTopologies of VolumeSnapshotClass c1" in error_of(world.content())
    assert asked(world) == []


def test_sns123_a_topology_that_is_there_is_kept():
    """SNS-123: An administrator may correct the field; csi-fleet never overwrites it."""
    mine = [{"matchLabelExpressions": [{"key": ZONE, "values": ["z9"]}]}]
    world = world_of(answer("z1"), nodeAffinity=mine)
    world.run_content()
    assert stored(world) == mine


def test_sns123_a_refused_write_is_retried_before_the_snapshot_is_ready():
    """SNS-123: A ready content is never asked for again, so the field comes first."""
    world = world_of(answer("z1"), answer("z1"))
    refused = ForbiddenError(403, "Forbidden", "no")
    merge, seen = world.api.kube.merge, []

    def once(resource, item, change, **how):
        if "spec" in change and not seen:
            seen.append(change)
            raise refused
        return merge(resource, item, change, **how)

    world.api.kube.merge = once
    assert world.run_content().action.value == "retry"
    assert "nodeAffinity" not in world.content()["spec"]
    assert not world.content()["status"].get("readyToUse")
    assert world.run_content().action.value == "done"
    assert stored(world) == STORED


def test_sns123_a_snapshot_that_is_not_ready_gets_its_last_answer():
    """SNS-123: A driver that knows the place only at the end is asked with the same request."""
    world = world_of(answer(is_ready=False), answer(is_ready=False), answer("z1"))
    for _ in range(3):
        world.run_content()
    assert asked(world) == [["z1", "z2"]] * 3
    assert stored(world) == STORED


def test_sns124_a_topology_that_no_node_can_have_is_unusable():
    """SNS-124: The status has the error, the handle is recorded, and the call is repeated."""
    world = world_of(answer("not a label"), answer("z1"))
    assert world.run_content().action.value == "retry"
    assert "snapshot.accessible_topology[0].segments" in error_of(world.content())
    assert stored(world) is None
    assert world.run_content().action.value == "done"
    assert stored(world) == STORED


def drops(world):
    """Let the API server drop the field, as a CRD without the field makes it do."""
    merge = world.api.kube.merge
    tries = []

    def pruned(resource, item, change, **how):
        found = merge(resource, item, change, **how)
        if "nodeAffinity" in change.get("spec", {}):
            tries.append(change)
            world.api.change(resource, CONTENT, {"spec": {"nodeAffinity": None}})
            found = world.api.of(resource, CONTENT)
        return found

    world.api.kube.merge = pruned
    return tries


def test_sns125_a_dropped_field_is_logged_once(log):
    """SNS-125: The snapshots become ready all the same."""
    for _ in range(2):
        world = world_of(
            answer("z1", is_ready=False), *[answer("z1", is_ready=False)] * 2, answer("z1")
        )
        tries = drops(world)
        for _ in range(4):
            world.run_content()
        assert world.content()["status"]["readyToUse"] is True
        assert len(tries) == 2, "at the first answer and at the last"
    (line,) = log.lines
    assert "nodeAffinity" in line
    world_of(answer("z1")).run_content()
    world = world_of(answer("z1"))
    drops(world)
    world.run_content()
    assert len(log.lines) == 2, "it was stored in between"


@pytest.mark.parametrize("gate", [True, False], ids=["on", "off"])
def test_sns126_a_repeated_call_has_the_first_places(gate):
    """SNS-126: Neither a changed class nor the gate changes a request whose outcome is unknown."""
    world = world_of(CsiError(14, "away"), answer("z1"))
    world.run_content()
    world.add_class(allowedTopologies=[])
    own = world.driver.settings.controllers
    own["snapshotter"] = type(own["snapshotter"])(has_topology=gate)
    world.run_content()
    assert asked(world) == [["z1", "z2"]] * 2


def test_sns126_a_driver_that_knows_the_name_gets_the_earlier_places():
    """SNS-126: Parameters are the same; only the places differ."""
    world = world_of(
        CsiError(INTERNAL, "no"), CsiError(6, "another request"), answer("z1"), answer("z1")
    )
    world.run_content()
    world.add_class(allowedTopologies=STORED)
    world.run_content()
    world.run_content()
    assert asked(world)[:3] == [["z1", "z2"], ["z1"], ["z1", "z2"]]


def test_sns126_the_call_for_a_removed_object_has_the_places():
    """SNS-126: A strict driver returns the snapshot only for the request that made it."""
    world = world_of(CsiError(14, "away"), answer("z1"))
    world.run_content()
    world.api.drop(paths.SNAPSHOT_CONTENTS, CONTENT)
    world.passed += 120
    world.run_content()
    assert asked(world) == [["z1", "z2"]] * 2
    assert [one.snapshot_id for one in world.client.requests("DeleteSnapshot")] == ["sh"]


def test_sns126_a_record_without_places_is_as_before():
    """SNS-126: With the gate off, an earlier release can read the records."""
    world = world_of(CsiError(14, "away"), gate=False)
    world.run_content()
    (mark,) = world.queue.marks.values()
    assert "allowed" not in mark["intent"]


@pytest.mark.parametrize("step", range(9))
def test_sns123_a_worker_that_dies_loses_no_topology(step):
    """SNS-123: Wherever it dies, the next one writes the topology before the content is ready."""
    world = world_of(*[answer("z1")] * 3)
    world.steps.dies_before = step
    with suppress(Death):
        world.run_content()
    died = len(world.steps.reached) == step
    if died and (world.content().get("status") or {}).get("readyToUse"):
        assert stored(world) == STORED
    world.steps.dies_before = None
    world.passed += 120
    for _ in range(2):
        world.run_content()
    assert (stored(world), world.content()["status"]["readyToUse"]) == (STORED, True)

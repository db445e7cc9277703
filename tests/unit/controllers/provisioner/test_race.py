"""Node deployment: who provisions a claim, and how a node becomes its owner (ND-003 to ND-006)."""

from __future__ import annotations

import time

import pytest

from csi_client import messages as csi
from csi_client.errors import CsiError
from tests.support.fake_cluster import CAPABILITIES, World
from workers.config.settings import NodeSettings, Settings
from workers.constants import ANN_SELECTED_NODE, FINALIZER_CLONE_SOURCE
from workers.controllers.provisioner import race
from workers.controllers.provisioner.race import Wait
from workers.engine.outcome import Action
from workers.errors import LeaseLost
from workers.kube.errors import ConflictError, ForbiddenError

NODE = "node-1"


@pytest.fixture
def world():
    node = NodeSettings(
        enabled=True, node_name=NODE, base_delay_seconds=20.0, max_delay_seconds=60.0
    )
    world = World(Settings(node=node))
    object.__setattr__(world.driver, "node_segments", {"host": NODE})
    world.capacity, world.asked = 2048, []

    def get_capacity(request):
        world.asked.append(request)
        if isinstance(world.capacity, Exception):
            raise world.capacity
        return csi.GetCapacityResponse(available_capacity=world.capacity)

    world.client.get_capacity = get_capacity
    return world


def wait_is_over(attempts=0):
    return Wait(attempts, time.time() - 1).text()


def selected(world):
    return world.live_claim()["metadata"]["annotations"].get(ANN_SELECTED_NODE)


def test_c128_own_node_is_provisioned(world):
    world.add_class()
    claim = world.add_claim(annotations={ANN_SELECTED_NODE: NODE})
    world.claim_pass(claim)
    assert len(world.volumes()) == 1


@pytest.mark.parametrize(
    ("node", "mode"),
    [
        pytest.param("node-2", "Immediate", id="C-128 other node"),
        pytest.param(None, "WaitForFirstConsumer", id="C-128 none, late binding"),
    ],
)
def test_claims_of_others_are_left_alone(world, node, mode):
    world.add_class(volumeBindingMode=mode)
    claim = world.add_claim(annotations={ANN_SELECTED_NODE: node} if node else None)
    assert world.claim_pass(claim).action is Action.DONE
    assert (world.client.created, world.kube.writes, world.events.seen) == ([], [], [])


def test_c136_first_wait_is_in_zero_to_base(world):
    world.add_class()
    outcome = world.claim_pass(world.add_claim())
    assert outcome.action is Action.RETRY
    assert 0 < outcome.delay_seconds <= 20
    assert world.asked == []


def test_c129_owner_is_written_after_the_wait(world):
    """That reconcile does not call CreateVolume: the claim's update event adds the key again."""
    world.add_class()
    claim = world.add_claim()
    world.memo = wait_is_over()
    assert world.claim_pass(claim).action is Action.DONE
    assert selected(world) == NODE
    assert (len(world.asked), world.client.created) == (1, [])


@pytest.mark.parametrize("finalizers", [[], [FINALIZER_CLONE_SOURCE]], ids=["free", "protected"])
@pytest.mark.parametrize("owner", [None, NODE])
def test_only_who_creates_a_clone_protects_its_source(world, owner, finalizers):
    """P-226, D-011: The capacity check adds no finalizer, and an existing one isn't rewritten."""
    object.__setattr__(world.driver, "controller_capabilities", CAPABILITIES | {"CLONE_VOLUME"})
    world.add_class()
    source = world.add_claim("src", "src-uid", volumeName="pv-src")
    source["metadata"]["finalizers"], source["status"] = finalizers, {"phase": "Bound"}
    world.kube.add("persistentvolumeclaims", source)
    volume = {
        "metadata": {"name": "pv-src"},
        "spec": {
            "csi": {"driver": world.driver.name, "volumeHandle": "h"},
            "claimRef": {"namespace": "default", "name": "src", "uid": "src-uid"},
        },
        "status": {"phase": "Bound"},
    }
    world.kube.add("persistentvolumes", volume)
    claim = world.add_claim(
        annotations={ANN_SELECTED_NODE: owner} if owner else None,
        dataSource={"kind": "PersistentVolumeClaim", "name": "src"},
    )
    world.memo = wait_is_over()
    world.claim_pass(claim)
    assert (len(world.asked), len(world.client.created)) == ((0, 1) if owner else (1, 0))
    is_due = bool(owner and not finalizers)
    assert world.kube.writes.count(("update_claim", "src")) == is_due


def test_c130_one_byte_too_little(world):
    """ND-008: The node tries again later, after a longer wait, not within seconds."""
    world.add_class()
    claim = world.add_claim()
    world.capacity = 1023
    world.memo = wait_is_over(attempts=1)
    outcome = world.claim_pass(claim)
    assert (selected(world), len(world.asked)) == (None, 1)
    assert (outcome.action, outcome.delay_seconds) == (Action.RETRY, race.NO_ROOM_SECONDS)
    assert Wait.read(outcome.memo) == Wait(2, None)


def test_an_event_during_the_wait_neither_ends_nor_lengthens_it(world):
    """ND-004: Such an event does not count as an attempt."""
    world.add_class()
    claim = world.add_claim()
    due = time.time() + 10
    world.memo, world.fails = Wait(0, due).text(), 7
    outcome = world.claim_pass(claim)
    assert 9 < outcome.delay_seconds <= 10
    assert Wait.read(outcome.memo) == Wait(0, due)


def test_c132_another_node_during_the_wait(world):
    world.add_class()
    claim = world.add_claim(annotations={ANN_SELECTED_NODE: "node-2"})
    world.memo = wait_is_over()
    assert world.claim_pass(claim).action is Action.DONE
    assert world.kube.writes == []


def test_c133_conflict_waits_longer(world):
    world.add_class()
    claim = world.add_claim()
    world.kube.fail["update_claim"] = [ConflictError(409, "Conflict", "modified")]
    world.memo = wait_is_over()
    outcome = world.claim_pass(claim)
    assert Wait.read(outcome.memo) == Wait(1, None)
    world.memo = outcome.memo
    assert 20 <= world.claim_pass(claim).delay_seconds <= 40


@pytest.mark.parametrize("is_replaced", [False, True], ids=["C-134 deleted", "C-134 replaced"])
def test_claim_that_is_not_there_any_more(world, is_replaced):
    world.add_class()
    claim = world.add_claim()
    world.drop_claim()
    if is_replaced:
        world.add_claim(uid="u2")
    world.memo = wait_is_over()
    world.claim_pass(claim)
    assert world.kube.writes == []


def test_c135_failed_check_counts_as_room(world):
    world.add_class()
    claim = world.add_claim()
    world.capacity = CsiError(13, "broken", rpc="GetCapacity")
    world.memo = wait_is_over()
    world.claim_pass(claim)
    assert selected(world) == NODE


def test_refused_update_is_told_to_the_user(world):
    """P-054, P-055: The event has the same text as upstream's."""
    world.add_class()
    claim = world.add_claim()
    world.kube.fail["update_claim"] = [ForbiddenError(403, "Forbidden", "no right")]
    world.memo = wait_is_over()
    assert world.claim_pass(claim).action is Action.RETRY
    assert world.events.warnings() == [
        'node check failed: PVC default/data: selecting node "node-1" for PVC failed: no right'
    ]


@pytest.mark.parametrize(
    ("zone", "owner"),
    [
        pytest.param("node-1", NODE, id="C-131 allowed"),
        pytest.param("node-9", None, id="C-131 not allowed"),
    ],
)
def test_allowed_topologies_decide_who_races(zone, owner):
    node = NodeSettings(enabled=True, node_name=NODE)
    plugin = frozenset({"CONTROLLER_SERVICE", "VOLUME_ACCESSIBILITY_CONSTRAINTS"})
    world = World(Settings(node=node), plugin=plugin)
    object.__setattr__(world.driver, "node_segments", {"host": NODE})
    world.client.get_capacity = lambda _request: csi.GetCapacityResponse(available_capacity=4096)
    allowed = [{"matchLabelExpressions": [{"key": "host", "values": [zone]}]}]
    world.add_class(allowedTopologies=allowed)
    claim = world.add_claim()
    world.memo = wait_is_over()
    world.claim_pass(claim)
    assert selected(world) == owner


@pytest.mark.parametrize(
    ("later", "is_over"), [(-0.5, False), (0.0, True), (0.5, True)], ids=["before", "at", "after"]
)
def test_nd004_the_wait_ends_at_its_moment(world, later, is_over):
    """ND-004: The key's state stores the end of the wait, so an early reconcile changes nothing."""
    now = [1000.0]
    world.clock = lambda: now[0]
    world.add_class()
    claim = world.add_claim()
    first = world.claim_pass(claim)
    due = now[0] + first.delay_seconds
    assert Wait.read(first.memo) == Wait(0, due)
    now[0] = due + later
    again = world.claim_pass(claim)
    assert (selected(world) == NODE, again.action is Action.DONE) == (is_over, is_over)


def test_p054_the_owner_is_all_that_is_written(world):
    """P-054 step 4: The claim's other annotations belong to its user."""
    world.add_class()
    claim = world.add_claim(annotations={"team": "db"})
    before = world.live_claim()["metadata"]["annotations"]
    world.memo = wait_is_over()
    world.claim_pass(claim)
    assert world.live_claim()["metadata"]["annotations"] == {**before, ANN_SELECTED_NODE: NODE}


def test_g9_a_node_that_lost_its_lease_takes_no_claim(world, monkeypatch):
    """G9: Another worker of the node took over while this one asked the driver for its capacity."""
    world.add_class()
    claim = world.add_claim()
    world.memo, real = wait_is_over(), world.lease

    def lease(*args):
        given = real(*args)
        given.is_lost = True
        return given

    monkeypatch.setattr(world, "lease", lease)
    with pytest.raises(LeaseLost):
        world.claim_pass(claim)
    assert (selected(world), len(world.asked), world.kube.writes) == (None, 1, [])


def test_p060_room_is_asked_for_what_the_driver_would_be_told(world):
    """P-060: The capacity request has the class's parameters and the claim's access modes."""
    world.add_class(parameters={"pool": "ssd"})
    claim = world.add_claim()
    world.memo = wait_is_over()
    world.claim_pass(claim)
    (request,) = world.asked
    assert dict(request.parameters) == {"pool": "ssd"}
    assert len(request.volume_capabilities) == 1
    assert not request.HasField("accessible_topology")


def test_p060_room_is_asked_for_where_the_node_is():
    """P-060, D-011: With topology, the capacity request names the node's segment."""
    node = NodeSettings(enabled=True, node_name=NODE)
    plugin = frozenset({"CONTROLLER_SERVICE", "VOLUME_ACCESSIBILITY_CONSTRAINTS"})
    world = World(Settings(node=node), plugin=plugin)
    object.__setattr__(world.driver, "node_segments", {"host": NODE})
    asked = []
    world.client.get_capacity = lambda request: asked.append(request) or csi.GetCapacityResponse()
    world.add_class()
    claim = world.add_claim()
    world.memo = wait_is_over()
    assert world.claim_pass(claim).delay_seconds == race.NO_ROOM_SECONDS
    assert [dict(one.accessible_topology.segments) for one in asked] == [{"host": NODE}]


def test_p053_allowed_topologies_mean_nothing_to_a_driver_without_topology(world):
    """P-053: CreateVolume's request ignores them too (P-300)."""
    allowed = [{"matchLabelExpressions": [{"key": "host", "values": ["node-9"]}]}]
    world.add_class(allowedTopologies=allowed)
    claim = world.add_claim()
    world.memo = wait_is_over()
    world.claim_pass(claim)
    assert selected(world) == NODE


def test_c008_a_claim_whose_class_is_missing_comes_again_to_every_node(world):
    """C-008, ND-003: Only the class shows whether nodes compete for the claim."""
    outcome = world.claim_pass(world.add_claim())
    assert (outcome.action, outcome.reason) == (Action.RETRY, "storage class not found")
    assert (world.asked, world.kube.writes, world.events.seen) == ([], [], [])

"""Which drivers are served, and both operations in one reconcile (section 11.7)."""

from __future__ import annotations

import threading

import pytest

from tests.support.resizer_world import NODE_PENDING, ResizerWorld
from workers.controllers.resizer.controller import CONTROLLER, resizer_of
from workers.controllers.resizer.decide import Resizer
from workers.controllers.resizer.settings import read_settings
from workers.controllers.resizer.spec import FLAGS, SPEC
from workers.errors import ConfigError, DriverAway
from workers.kube import paths
from workers.queue.locks import Mode


def values(**changes):
    found = {flag.name: flag.default_value() for flag in FLAGS} | {"feature-gates": {}}
    return found | {name.replace("_", "-"): value for name, value in changes.items()}


@pytest.mark.parametrize(
    ("capabilities", "node", "expected", "serves"),
    [
        pytest.param(("EXPAND_VOLUME",), (), Resizer.REAL, True, id="the controller expands"),
        pytest.param((), ("EXPAND_VOLUME",), Resizer.TRIVIAL, True, id="TR-150 the node alone"),
        pytest.param(("MODIFY_VOLUME",), (), Resizer.NONE, True, id="TR-151 modify only"),
        pytest.param((), (), Resizer.NONE, False, id="TR-152 neither"),
    ],
)
def test_what_a_driver_can_do(capabilities, node, expected, serves):
    """R-003, R-004: Unknown node capabilities count as none (DR-001, DR-002)."""
    world = ResizerWorld(capabilities=capabilities, node=node)
    assert resizer_of(world.driver) is expected
    assert CONTROLLER.serves(world.driver) is serves


@pytest.mark.parametrize("is_served", [True, False], ids=["gate off", "gate and API off"])
def test_a_driver_that_only_modifies_is_served_without_the_gate(is_served):
    """R-004: The process stays idle; it only exits if the driver supports neither operation."""
    world = ResizerWorld(capabilities=("MODIFY_VOLUME",), node=(), applies_classes=False)
    world.driver.settings.gates.volume_attributes_class = is_served
    assert CONTROLLER.serves(world.driver)
    world.claim(2, 1, volumeAttributesClassName="b")
    world.run()
    assert world.api.writes == []
    assert world.parameters() == []


def test_a_driver_that_only_modifies_ignores_growth():
    """R-004: Without EXPAND_VOLUME a larger request is ignored."""
    world = ResizerWorld(capabilities=("MODIFY_VOLUME",), node=())
    world.claim(2, 1)
    world.run()
    assert world.api.writes == []


def test_tr153_tr154_without_the_gate_no_class_is_looked_at():
    """R-002: Expansions work whether the cluster serves the API or not."""
    settings = read_settings(values(feature_gates={"VolumeAttributesClass": False}))
    assert not settings.applies_classes
    world = ResizerWorld(applies_classes=False)
    world.claim(2, 1, volumeAttributesClassName="b")
    world.run()
    assert world.sizes() == [2]
    assert not [one for one in world.api.requests if "volumeattributes" in one.path]


def test_tr153_a_cluster_without_classes_is_not_watched_for_them():
    """R-002: If discovery switches the gate off, modifications and their watch are off too."""
    world = ResizerWorld()
    world.driver.settings.gates.volume_attributes_class = False
    world.claim(2, 1, volumeAttributesClassName="b")
    world.run()
    assert world.sizes() == [2]
    assert world.parameters() == []
    record = {"name": "d", "controller_capabilities": ["MODIFY_VOLUME"]}
    watch = next(one for one in SPEC.watches if one.resource == paths.ATTRIBUTES_CLASSES)
    assert watch.is_needed([record])
    assert not watch.is_needed([record | {"attributes_classes": False}])


@pytest.mark.parametrize("workers", [0, -1])
def test_tr155_no_workers_is_refused(workers):
    """DR-030: --workers must be at least 1."""
    with pytest.raises(ConfigError, match="--workers"):
        read_settings(values(workers=workers))


def test_the_flags_make_the_settings():
    """R-120: Names and defaults are upstream's."""
    settings = read_settings(values(timeout=7.0, workers=3))
    assert (settings.timeout_seconds, settings.workers) == (7.0, 3)
    assert (settings.retry_interval_start_seconds, settings.retry_interval_max_seconds) == (1, 300)
    assert settings.handles_in_use
    assert settings.recovers
    assert settings.annotates
    world = ResizerWorld(workers=3)
    assert CONTROLLER.limits(world.driver) == {"changes": 3}


def test_tr159_the_lease_has_upstreams_name():
    """MR-051, R-005, A-020: The Lease's name is csi-resizer's."""
    assert SPEC.lease_name is not None
    assert SPEC.lease_name("a.b_") == "external-resizer-a-b-X"


def both(**settings):
    world = ResizerWorld(**settings)
    world.attributes_class("b", tier="b")
    world.claim(2, 1, volumeAttributesClassName="b")
    return world


def test_tr156_size_and_class_in_one_edit():
    """MR-001, DR-014: One first write covers both, and each call is made once without a warning."""
    world = both()
    assert world.run().action.value == "done"
    assert world.sizes() == [2]
    assert world.parameters() == [{"tier": "b"}]
    assert world.state().part == NODE_PENDING
    assert world.seen["status"]["currentVolumeAttributesClassName"] == "b"
    assert "Warning" not in [kind for kind, _, _ in world.events.seen]
    assert world.status_writes() == 3


def test_tr157_both_calls_are_in_flight_together():
    """MR-011: Some drivers merge such calls; here each call waits for the other."""
    world = both()
    together = threading.Barrier(2, timeout=20)

    def meet(_):
        together.wait()
        return {}

    world.answers(lambda request: meet(request) or {"capacity_bytes": 2 * 2**30})
    world.modifies(meet)
    assert world.run().action.value == "done"
    assert not together.broken


def test_the_two_calls_can_be_kept_apart():
    """`--serialize-expand-modify` makes the calls one after the other."""
    world = both(serializes=True)
    world.run()
    assert world.client.methods == ["ControllerExpandVolume", "ControllerModifyVolume"]


@pytest.mark.parametrize(
    ("expand", "modify", "action"),
    [
        ({"code": "INTERNAL"}, {}, "retry"),
        ({}, {"code": "INTERNAL"}, "retry"),
        ({"code": "OUT_OF_RANGE"}, {"code": "UNAVAILABLE"}, "retry"),
    ],
)
def test_one_may_fail_while_the_other_succeeds(expand, modify, action):
    """Each result is written on its own, and the earlier of the two retries applies."""
    world = both()
    world.answers(expand, {})
    world.modifies(modify, {})
    outcome = world.run()
    assert (outcome.action.value, outcome.delay_seconds) == (action, 0.0)
    assert (world.state().cap == 2) == (not expand)
    current = world.seen["status"].get("currentVolumeAttributesClassName")
    assert (current == "b") == (not modify)


def test_a_driver_that_goes_away_during_one_call_keeps_the_others_result():
    """That result is written before the reconcile ends."""
    world = both()
    world.modifies(DriverAway("gone"), {})
    with pytest.raises(DriverAway):
        world.run()
    assert world.state().part == NODE_PENDING
    world.run()
    assert world.parameters() == [{"tier": "b"}, {"tier": "b"}]


def test_an_infeasible_class_does_not_hold_up_a_growth():
    """R-061: The conditions of the failed modification stay."""
    world = both()
    world.modifies({"code": "INVALID_ARGUMENT", "message": "no"})
    world.run()
    world.resize(3)
    world.edit({"status": {"capacity": {"storage": "2Gi"}, "allocatedResourceStatuses": None}})
    outcome = world.run()
    assert world.sizes() == [2, 3]
    assert len(world.parameters()) == 1
    assert outcome.action.value == "wait"
    assert {"ModifyingVolume", "ModifyVolumeError"} <= world.conditions().keys()


def test_what_the_user_did_during_the_call_follows_at_once():
    """R-110: No event is needed for that."""
    world = both()
    world.attributes_class("c", tier="c")
    world.modifies(lambda _: world.choose("c") or {}, {})
    outcome = world.run()
    assert (outcome.action.value, outcome.delay_seconds) == ("wait", 0)
    world.settle()
    assert world.parameters() == [{"tier": "b"}, {"tier": "c"}]


def test_deadlines_are_the_controllers_own():
    """DR-032, R-120: `--timeout` applies, unless the class has its own timeout."""
    world = both(timeout_seconds=7.0)
    world.run()
    assert world.client.timeouts == [7.0, 7.0]


@pytest.mark.parametrize(
    ("limits", "size", "places"),
    [
        pytest.param({}, 2, [], id="no limits"),
        pytest.param({"expand": 10, "modify": 10}, 2, [], id="as wide as the lane"),
        pytest.param({"modify": 1}, 1, ["csi/test~modify#0"], id="a narrow modify"),
        pytest.param({"modify": 1}, 2, ["csi/test~modify#0"], id="beside a free expand"),
        pytest.param({"expand": 1, "modify": 1}, 2, [], id="both narrow: the lane itself is"),
        pytest.param({"expand": 1}, 2, ["csi/test~expand#0"], id="a narrow expand"),
    ],
)
def test_mr012_each_operation_has_its_own_limit(limits, size, places):
    """MR-012: In the shared driver queue, the operation with the lower limit takes a slot."""
    world = ResizerWorld()
    world.driver.limits = limits
    world.attributes_class("b", iops="4567")
    world.claim(size, 1, volumeAttributesClassName="b")
    world.run()
    assert [lock.name for lock in world.queue.acquired if "~" in lock.name] == places
    assert len(world.parameters()) == 1


def test_mr012_a_claim_waits_for_its_place():
    """MR-012: The key waits for the slot and is woken when it is released; nothing is written."""
    world = ResizerWorld()
    world.driver.limits = {"expand": 1}
    world.queue.busy["csi/test~expand#0"] = Mode.EXCLUSIVE
    world.claim(2, 1)
    outcome = world.run()
    assert (outcome.action.value, outcome.lock.name) == ("blocked", "csi/test~expand#0")
    assert world.api.writes == []

"""Checks before the driver is called, and how the request and the PV are built (P-101).

`before` in a test's name means that no call is sent and no intent is recorded.
"""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

from csi_client import messages as csi
from csi_client.errors import CsiError
from tests.support.fake_cluster import CAPABILITIES, DRIVER, TOPOLOGY, World
from workers.config.gates import FeatureGates
from workers.config.settings import NodeSettings, ProvisionSettings, Settings
from workers.constants import ANN_MIGRATED_TO, ANN_SELECTED_NODE, ANN_STORAGE_PROVISIONER
from workers.controllers.provisioner import attempt
from workers.controllers.provisioner.attempt import Attempt
from workers.controllers.provisioner.backend import CSI
from workers.controllers.provisioner.claims import ClaimPass
from workers.deadlines import MARGIN_SECONDS
from workers.engine.outcome import Action
from workers.engine.steps import Step
from workers.errors import IgnoredError, LeaseLost, State
from workers.queue.keys import claim_key
from workers.topology.cluster import ClusterTopology
from workers.translate.sources import PopulatorSourceError

DOMAIN = "pvc-u1"
ZONE = "topology.example.org/zone"
GATES = FeatureGates(cross_namespace_volume_data_source=True, volume_attributes_class=True)
MODIFY = CAPABILITIES | {"MODIFY_VOLUME"}
CLONE = {"kind": "PersistentVolumeClaim", "name": "src"}
POPULATOR = {"kind": "MyPopulator", "apiGroup": "x.io", "name": "s"}


@pytest.mark.parametrize(
    ("plugin", "controller", "spec", "message"),
    [
        pytest.param(
            set(), CAPABILITIES, {}, "plugin CONTROLLER_SERVICE capability", id="P-120 no service"
        ),
        pytest.param(
            {"CONTROLLER_SERVICE"}, set(), {}, "controller CREATE_DELETE_VOLUME", id="P-120"
        ),
        pytest.param(
            {"CONTROLLER_SERVICE"}, CAPABILITIES, {"dataSource": CLONE}, "CLONE_VOLUME", id="clone"
        ),
        pytest.param(
            {"CONTROLLER_SERVICE"},
            CAPABILITIES,
            {"volumeAttributesClassName": "gold"},
            "MODIFY_VOLUME",
            id="attributes class",
        ),
        pytest.param(
            {"CONTROLLER_SERVICE"},
            CAPABILITIES,
            {"selector": {}},
            "claim Selector is not supported",
            id="P-101 step 11",
        ),
        pytest.param(
            {"CONTROLLER_SERVICE"},
            MODIFY,
            {"volumeAttributesClassName": "gold"},
            'volumeattributesclasses.storage.k8s.io "gold" not found',
            id="P-160 no such attributes class",
        ),
        pytest.param(
            {"CONTROLLER_SERVICE"},
            CAPABILITIES,
            {"dataSourceRef": {**CLONE, "namespace": "source"}},
            "accessing source/src of PersistentVolumeClaim dataSource from default/data isn't",
            id="P-204 no grant",
        ),
    ],
)
def test_what_cannot_be_is_told_before_the_driver_is_asked(plugin, controller, spec, message):
    world = World(Settings(gates=GATES), frozenset(plugin), frozenset(controller))
    world.kube.list_reference_grants = lambda _namespace: iter(())
    world.add_class()
    assert world.claim_pass(world.add_claim(**spec)).action is Action.RETRY
    (told,) = world.events.warnings()
    assert message in told
    assert (world.client.created, world.intents.intents) == ([], {})


def attempt_of(world, claim, **options):
    """Return an attempt outside of a reconcile, so that only its own checks run."""
    key = claim_key(DRIVER, "default", "data", "u1")
    lease = world.lease(key, DOMAIN)
    work = ClaimPass(world.runtime, world.driver, key, lease, CSI, world.own)
    return Attempt(work, claim, world.add_class(), None, **options)


def test_p102_an_attempt_looks_once_more_whose_claim_it_is(world):
    """The annotation may change between the decision and the attempt."""
    claim = world.add_claim(annotations={ANN_STORAGE_PROVISIONER: "another"})
    with pytest.raises(IgnoredError, match="does not match provisioner driver name"):
        attempt_of(world, claim).run()
    assert (world.client.created, world.intents.intents) == ([], {})


@pytest.mark.parametrize("is_rehearsal", [False, True], ids=["attempt", "D-011 rehearsal"])
@pytest.mark.parametrize("node", ["node-1", "node-2"])
def test_p055_an_attempt_looks_once_more_whose_node_it_is(node, is_rehearsal):
    """A dry run is not bound to a node."""
    world = World(Settings(node=NodeSettings(enabled=True, node_name="node-1")))
    claim = world.add_claim(annotations={ANN_SELECTED_NODE: node})
    one = attempt_of(world, claim, is_rehearsal=is_rehearsal)
    if node == "node-1" or is_rehearsal:
        assert one.prepare().request.name == DOMAIN
        return
    with pytest.raises(IgnoredError, match='not assigned to node "node-1"'):
        one.prepare()


@pytest.mark.parametrize("is_rehearsal", [False, True], ids=["attempt", "D-011 rehearsal"])
def test_p209_only_an_attempt_tells_of_the_populator(world, is_rehearsal):
    claim = world.add_claim(dataSourceRef=POPULATOR)
    with pytest.raises(PopulatorSourceError):
        attempt_of(world, claim, is_rehearsal=is_rehearsal).prepare()
    assert world.events.reasons() == ([] if is_rehearsal else ["Provisioning"])


@pytest.mark.parametrize("is_wanted", [False, True])
def test_p127_the_names_of_claim_and_volume_go_along_by_flag(is_wanted):
    world = World(Settings(provision=ProvisionSettings(extra_create_metadata=is_wanted)))
    world.add_class(parameters={"kind": "ssd"})
    world.claim_pass(world.add_claim())
    prefix = "csi.storage.k8s.io/"
    names = {"pvc/name": "data", "pvc/namespace": "default", "pv/name": DOMAIN}
    extra = {f"{prefix}{name}": value for name, value in names.items()} if is_wanted else {}
    assert dict(world.client.created[0].parameters) == {"kind": "ssd"} | extra


EBS, IN_TREE = "ebs.csi.aws.com", "kubernetes.io/aws-ebs"


@pytest.mark.parametrize("provisioner", [EBS, IN_TREE])
def test_p602_only_a_class_of_the_plug_in_is_translated(provisioner):
    """P-605: Only volumes of such a class are stored as in-tree PVs."""
    world = World()
    world.driver = replace(world.driver, name=EBS, in_tree_name=IN_TREE)
    world.add_class(provisioner=provisioner, parameters={"type": "gp3", "fstype": "xfs"})
    annotations = {ANN_STORAGE_PROVISIONER: provisioner}
    if provisioner == IN_TREE:
        annotations[ANN_MIGRATED_TO] = EBS
    assert world.claim_pass(world.add_claim(annotations=annotations)).action is Action.DONE
    spec = world.volumes()[DOMAIN]["spec"]
    assert ("awsElasticBlockStore" in spec) is (provisioner == IN_TREE)
    assert ("csi" in spec) is (provisioner == EBS)


@pytest.mark.parametrize("has_topology", [True, False])
def test_p340_the_answer_s_topology_is_where_the_volume_is(has_topology):
    """P-340: The topology in the answer of a driver without topology support is ignored."""
    world = World(plugin=TOPOLOGY) if has_topology else World()
    world.clusters.topology = ClusterTopology({"n1": {DRIVER: [ZONE]}}, {"n1": {ZONE: "z1"}})
    world.add_class()
    place = csi.Topology(segments={ZONE: "z1"})
    volume = csi.Volume(volume_id="v", accessible_topology=[place])
    world.client.answers = [csi.CreateVolumeResponse(volume=volume)]
    world.claim_pass(world.add_claim())
    affinity = world.volumes()[DOMAIN]["spec"].get("nodeAffinity")
    expression = {"key": ZONE, "operator": "In", "values": ["z1"]}
    terms = [{"matchExpressions": [expression]}]
    assert affinity == ({"required": {"nodeSelectorTerms": terms}} if has_topology else None)


@pytest.mark.parametrize(
    ("timeouts", "of_class", "seconds"),
    [
        pytest.param({}, {}, 10.0, id="--timeout"),
        pytest.param({"create": 22.0}, {}, 22.0, id="the driver's"),
        pytest.param({"create": 22.0}, {"create": 33.0}, 33.0, id="the class's"),
        pytest.param({"delete": 22.0}, {"delete": 33.0}, 10.0, id="of another call"),
    ],
)
def test_a_call_may_take_as_long_as_driver_and_class_say(world, claim, timeouts, of_class, seconds):
    """M-010: The intent records when the call is over."""
    world.driver = replace(world.driver, timeouts=timeouts, class_timeouts={"fast": of_class})
    world.clock = lambda: 1000.0
    seen, create = [], world.client.create_volume

    def created(request, *, timeout_seconds, **options):
        seen.append((timeout_seconds, world.intents.intents[DOMAIN]["deadline"][0]))
        return create(request, timeout_seconds=timeout_seconds, **options)

    world.client.create_volume = created
    world.claim_pass(claim)
    assert seen == [(seconds, 1000.0 + seconds + MARGIN_SECONDS)]


def in_zone(**answer):
    """Return a world with a topology-aware driver whose next answer is an error."""
    world = World(plugin=TOPOLOGY)
    world.clusters.topology = ClusterTopology({"n1": {DRIVER: [ZONE]}}, {"n1": {ZONE: "z1"}})
    world.add_class()
    world.client.answers = [CsiError(8, "no room", **answer)]
    return world


@pytest.mark.parametrize(
    ("answer", "node", "state"),
    [
        pytest.param({}, "", State.FINISHED, id="P-412 no node was chosen"),
        pytest.param(
            {"from_transport": True, "is_final": True}, "n1", State.FINISHED, id="D-024 not sent"
        ),
        pytest.param(
            {"from_transport": True, "is_final": False}, "n1", State.BACKGROUND, id="D-024 sent"
        ),
    ],
)
def test_p410_an_error_that_gives_no_claim_back_to_the_scheduler(answer, node, state):
    world = in_zone(**answer)
    annotations = {ANN_SELECTED_NODE: node} if node else None
    outcome = world.claim_pass(world.add_claim(annotations=annotations))
    assert (outcome.action, outcome.reason) == (Action.RETRY, state.value)
    stage = "background" if state is State.BACKGROUND else "failed"
    assert world.intents.intents[DOMAIN]["stage"] == stage


def too_small():
    return csi.CreateVolumeResponse(volume=csi.Volume(volume_id="v", capacity_bytes=1))


def test_p430_the_clean_up_is_announced(world, claim):
    """G9: Like each step, a clean-up is announced; without the lease nothing is deleted."""
    reached = []
    world.runtime.effects.steps = SimpleNamespace(reach=lambda step, _lease: reached.append(step))
    world.client.answers = [too_small()]
    world.claim_pass(claim)
    assert reached == [*(Step.RECORD_INTENT, Step.CREATE_VOLUME, Step.CLEAN_UP, Step.FORGET_INTENT)]


def test_g9_without_the_lease_nothing_is_cleaned_up(world, claim):
    def reach(step, _lease):
        if step is Step.CLEAN_UP:
            raise LeaseLost("lost")

    world.runtime.effects.steps = SimpleNamespace(reach=reach)
    world.client.answers = [too_small()]
    with pytest.raises(LeaseLost):
        world.claim_pass(claim)
    assert world.client.deleted == []
    assert DOMAIN in world.intents.intents


def test_p430_each_try_of_a_clean_up_may_take_what_is_left_of_the_time(world, claim, monkeypatch):
    """D-010: All tries share one `--timeout` of 10 s; each try takes 3 s here."""
    clock, given = [100.0], []
    monkeypatch.setattr(attempt.time, "monotonic", lambda: clock[0])

    def slow(_volume_id, _secrets, *, timeout_seconds):
        given.append(timeout_seconds)
        clock[0] += 3
        raise CsiError(9, "busy")

    world.client.answers = [too_small()]
    world.client.delete_volume = slow
    world.claim_pass(claim)
    assert given == [10.0, 7.0, 4.0, 1.0]

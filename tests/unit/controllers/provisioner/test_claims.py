"""Outcomes of reconciling a claim: remembered state, events, and what happens to the key."""

from __future__ import annotations

import msgspec
import pytest

from csi_client import messages as csi
from csi_client.errors import CsiError, NoStatusError, UndecodableAnswerError
from tests.support.fake_cluster import DRIVER, TOPOLOGY, World, default_answer
from workers.config.settings import ProvisionSettings, Settings
from workers.constants import ANN_SELECTED_NODE, ANN_SELECTED_NODE_ALPHA
from workers.engine.outcome import Action
from workers.kube.errors import ConflictError, ForbiddenError, NotFoundError
from workers.topology.cluster import ClusterTopology

DOMAIN = "pvc-u1"
ZONE = "topology.example.org/zone"
CONFLICT = ConflictError(409, "Conflict", "the object has been modified")


def rpc(code, details="told to fail"):
    return CsiError(code, details)


def topology_world(**settings):
    """Return a world with a topology-aware driver and one node, `n1`, in zone z1."""
    world = World(plugin=TOPOLOGY, **settings)
    world.clusters.topology = ClusterTopology({"n1": {DRIVER: [ZONE]}}, {"n1": {ZONE: "z1"}})
    world.add_class()
    return world


def in_progress(world):
    """Return the stage of the claim's intent, or None if no attempt is in progress."""
    record = world.intents.intents.get(DOMAIN)
    return None if record is None or record["stage"] == "failed" else record["stage"]


def test_success_saves_tells_and_forgets(world, claim):
    """P-400 row 1, L-050 row 1: Success saves the PV, emits events and ends the intent."""
    outcome = world.claim_pass(claim)
    assert outcome.action is Action.DONE
    assert outcome.finish_intent
    assert set(world.volumes()) == {DOMAIN}
    assert world.events.seen == [
        (
            "Normal",
            "Provisioning",
            'External provisioner is provisioning volume for claim "default/data"',
        ),
        ("Normal", "ProvisioningSucceeded", "Successfully provisioned volume pvc-u1"),
    ]
    assert (world.intents.intents, world.intents.unsaved) == ({}, {})


FINAL = [2, 3, 5, 6, 7, 9, 11, 12, 13, 15, 16, 77]
BACKGROUND = [1, 4, 10, 14]


@pytest.mark.parametrize("topology", [False, True], ids=["plain", "topology"])
@pytest.mark.parametrize("selected", [False, True], ids=["no node", "node"])
@pytest.mark.parametrize("code", [*FINAL, *BACKGROUND, 8])
def test_t055_c049_every_code_of_create_volume(code, selected, topology):
    """P-410, P-411, L-054: Each of 17 codes leads to the expected state, event and key action."""
    world = topology_world() if topology else World()
    world.add_class()
    claim = world.add_claim(annotations={ANN_SELECTED_NODE: "n1"} if selected else None)
    error = rpc(code)
    world.client.answers = [error]
    outcome = world.claim_pass(claim)

    is_kept = world.live_claim()["metadata"]["annotations"].get(ANN_SELECTED_NODE) == "n1"
    if code == 8 and selected and topology:
        assert outcome.action is Action.DONE
        assert not is_kept
    else:
        assert outcome.action is Action.RETRY
        assert is_kept is selected
    assert in_progress(world) == ("background" if code in BACKGROUND else None)
    prefix = "Volume provisioning failed with infeasible error. Retries will be delayed. "
    assert world.events.warnings() == [f"{prefix if code == 3 else ''}{error}"]
    assert world.volumes() == {}


@pytest.mark.parametrize(
    "error",
    [
        pytest.param(NoStatusError("closed"), id="no status"),
        pytest.param(UndecodableAnswerError("bad UTF-8", rpc="/x"), id="undecodable answer"),
        pytest.param(CsiError(8, "too large", from_transport=True, is_final=False), id="D-024"),
    ],
)
def test_an_error_without_the_drivers_status_is_background(error):
    """P-410 last row, D-024: The claim is not rescheduled, because a volume may exist."""
    world = topology_world()
    world.client.answers = [error]
    assert world.claim_pass(world.add_claim(annotations={ANN_SELECTED_NODE: "n1"})).action is (
        Action.RETRY
    )
    assert in_progress(world) == "background"
    assert ANN_SELECTED_NODE in world.live_claim()["metadata"]["annotations"]


def test_c002_a_volume_that_was_just_saved_is_not_asked_for_again(world, claim):
    world.claim_pass(claim)
    seen = list(world.events.seen)
    assert world.claim_pass(claim).action is Action.DONE
    assert len(world.client.created) == 1
    assert world.events.seen == seen


def test_c004_c005_block_volumes_are_always_supported(world):
    """P-801: The CSI provisioner declares block support, so a block volume is never refused."""
    world.add_class()
    claim = world.add_claim(volumeMode="Block")
    world.claim_pass(claim)
    assert world.client.created[0].volume_capabilities[0].HasField("block")
    assert world.volumes()[DOMAIN]["spec"]["volumeMode"] == "Block"


def test_c007_a_bound_claim_needs_nothing(world):
    world.add_class()
    assert world.claim_pass(world.add_claim(volumeName="other")).action is Action.DONE
    assert world.client.created == []


def test_c008_a_missing_class_is_retried_without_event(world):
    claim = world.add_claim()
    assert world.claim_pass(claim).action is Action.RETRY
    assert world.events.seen == []
    world.add_class()
    world.claim_pass(claim)
    assert set(world.volumes()) == {DOMAIN}


def test_c009_the_class_annotation_wins(world):
    world.add_class("fast", parameters={"kind": "wrong"})
    world.add_class("beta", parameters={"kind": "right"})
    name = "volume.beta.kubernetes.io/storage-class"
    world.claim_pass(world.add_claim(annotations={name: "beta"}))
    assert dict(world.client.created[0].parameters) == {"kind": "right"}


def test_c014_class_of_another_provisioner_stops_without_event(world):
    world.add_class(provisioner="bar")
    assert world.claim_pass(world.add_claim()).action is Action.DONE
    assert world.events.seen == []
    assert world.client.created == []


def test_class_changed_while_a_call_may_run_keeps_what_is_known(world, claim):
    """The intent of the earlier call is kept, because that call may have made a volume (D-008)."""
    world.client.answers = [rpc(4)]
    world.claim_pass(claim)
    world.kube.drop("storageclasses.storage.k8s.io", "fast")
    world.add_class(provisioner="bar")
    world.client.answers = [rpc(14)]
    assert world.claim_pass(claim).action is Action.RETRY
    assert in_progress(world) == "background"
    world.kube.drop("storageclasses.storage.k8s.io", "fast")
    world.claim_pass(claim)
    assert set(world.volumes()) == {DOMAIN}
    assert len({one.SerializeToString() for one in world.client.created}) == 1


def test_c020_a_claim_under_deletion_is_provisioned(world, claim):
    """L-024: A claim with a deletion timestamp is provisioned too."""
    world.live_claim()["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    world.claim_pass(claim)
    assert set(world.volumes()) == {DOMAIN}


def test_c021_c022_retain_gets_the_finalizer_once_then_loses_it(world):
    world.add_class(reclaimPolicy="Retain")
    world.claim_pass(world.add_claim())
    volume = world.volumes()[DOMAIN]
    finalizer = "external-provisioner.volume.kubernetes.io/finalizer"
    assert volume["spec"]["persistentVolumeReclaimPolicy"] == "Retain"
    assert volume["metadata"]["finalizers"] == [finalizer]
    world.volume_pass(DOMAIN)
    assert world.volumes()[DOMAIN]["metadata"]["finalizers"] == []


def test_c023_c024_an_ignored_claim_leaves_no_trace(world):
    """P-102, L-044: A claim with another provisioner's data source causes no event or intent."""
    world.add_class()
    source = {"apiGroup": "example.org", "kind": "MyPopulator", "name": "x"}
    ignored = world.add_claim("two", "u2", dataSource=source)
    assert world.claim_pass(ignored).action is Action.DONE
    world.claim_pass(world.add_claim())
    assert set(world.volumes()) == {DOMAIN}
    assert world.events.warnings() == []
    assert world.intents.intents == {}


def test_c025_a_final_error_is_told_and_retried(world, claim):
    world.client.answers = [rpc(13)]
    assert world.claim_pass(claim).action is Action.RETRY
    assert world.volumes() == {}
    assert world.events.warnings() == ["rpc error: code = Internal desc = told to fail"]
    assert in_progress(world) is None


def test_c026_a_background_error_keeps_the_claim_in_two_places(world, claim):
    """M-010: The intent is also copied to a ConfigMap, so it survives a loss of Redis."""
    world.client.answers = [rpc(4)]
    assert world.claim_pass(claim).action is Action.RETRY
    assert in_progress(world) == "background"
    (copy,) = world.kube.kind("configmaps").values()
    assert msgspec.json.decode(copy["data"]["record"])["claim"]["metadata"]["uid"] == "u1"
    world.claim_pass(claim)
    assert world.kube.kind("configmaps") == {}


def test_c027_no_change_on_a_first_attempt_remembers_nothing(world):
    world.add_class(parameters=SECRET_OF_CLASS)
    assert world.claim_pass(world.add_claim()).action is Action.RETRY
    assert world.client.created == []
    assert world.intents.intents == {}


SECRET_OF_CLASS = {
    "csi.storage.k8s.io/provisioner-secret-name": "creds",
    "csi.storage.k8s.io/provisioner-secret-namespace": "default",
}


@pytest.mark.parametrize(
    ("second", "left"),
    [
        pytest.param(rpc(13), None, id="C-028 final: removed"),
        pytest.param(rpc(14), "background", id="C-028 background: kept"),
        pytest.param(None, "background", id="C-028 no change: kept as it was"),
    ],
)
def test_c028_in_progress_after_a_second_attempt(world, claim, second, left):
    world.kube.drop("storageclasses.storage.k8s.io", "fast")
    world.add_class(parameters=SECRET_OF_CLASS)
    world.kube.add("secrets", {"metadata": {"namespace": "default", "name": "creds"}, "data": {}})
    world.client.answers = [rpc(4)]
    world.claim_pass(claim)
    before = dict(world.intents.intents[DOMAIN])
    if second is None:
        world.kube.drop("secrets", "creds", "default")
    else:
        world.client.answers = [second]
    assert world.claim_pass(claim).action is Action.RETRY
    assert in_progress(world) == left
    if second is None:
        assert world.intents.intents[DOMAIN] == before


def test_d008_a_final_preparation_error_keeps_a_running_call(world, claim):
    """Secret data that is not base64 is a final error of the preparation, before any call."""
    world.kube.drop("storageclasses.storage.k8s.io", "fast")
    world.add_class(parameters=SECRET_OF_CLASS)
    secret = {"metadata": {"namespace": "default", "name": "creds"}, "data": {}}
    world.kube.add("secrets", secret)
    world.client.answers = [rpc(4)]
    world.claim_pass(claim)
    world.kube.drop("secrets", "creds", "default")
    world.kube.add("secrets", {**secret, "data": {"key": "no base64!"}})
    world.claim_pass(claim)
    assert in_progress(world) == "background"
    assert len(world.client.created) == 1


def test_c029_t057_a_deleted_claim_in_progress_is_provisioned(world, claim):
    """P-401: An open attempt of a deleted claim is repeated until the driver's answer is final."""
    world.client.answers = [rpc(4), rpc(14)]
    world.claim_pass(claim)
    world.drop_claim()
    assert world.claim_pass(claim).action is Action.RETRY
    world.claim_pass(claim)
    assert world.volumes()[DOMAIN]["spec"]["claimRef"]["uid"] == "u1"
    assert {one.name for one in world.client.created} == {DOMAIN}
    assert len(world.client.created) == 3
    assert world.intents.intents == {}
    assert "ProvisioningSucceeded" not in world.events.reasons()


def test_c030_a_deleted_claim_that_never_reached_the_driver_is_dropped(world, claim):
    world.drop_claim()
    assert world.claim_pass(claim).action is Action.DONE
    assert world.client.created == []


def test_c031_a_claim_re_created_under_its_name_is_another_claim(world, claim):
    def another(request):
        answer = default_answer(request)
        answer.volume.volume_id = "another-volume-id"
        return answer

    world.client.answers = [rpc(4), another]
    world.claim_pass(claim)
    world.drop_claim()
    young = world.add_claim(uid="u2")
    world.claim_pass(young)
    world.claim_pass(claim)
    owners = {name: one["spec"]["claimRef"]["uid"] for name, one in world.volumes().items()}
    assert owners == {"pvc-u1": "u1", "pvc-u2": "u2"}


def test_t058_a_claim_deleted_after_a_final_error_gets_one_last_call(world, claim):
    world.client.answers = [rpc(13), rpc(13)]
    world.claim_pass(claim)
    world.drop_claim()
    assert world.claim_pass(claim).action is Action.DONE
    assert world.claim_pass(claim).action is Action.DONE
    assert len(world.client.created) == 2
    assert world.intents.intents == {}


def test_t058_a_last_call_that_succeeds_saves_the_volume(world, claim):
    world.client.answers = [rpc(13)]
    world.claim_pass(claim)
    world.drop_claim()
    world.claim_pass(claim)
    assert set(world.volumes()) == {DOMAIN}


def test_c032_t139_rescheduling_clears_the_node_and_stops(world):
    """P-420: The event is emitted first, no attempt stays open, and the claim is read only once."""
    world = topology_world()
    claim = world.add_claim(annotations={ANN_SELECTED_NODE: "n1"})
    world.client.answers = [rpc(8)]
    world.kube.fail["get_claim"] = [None, NotFoundError(404, "NotFound", "not asked for")]
    assert world.claim_pass(claim).action is Action.DONE
    assert ANN_SELECTED_NODE not in world.live_claim()["metadata"]["annotations"]
    assert world.kube.writes == [("update_claim", "data")]
    assert len(world.kube.fail["get_claim"]) == 1
    assert world.intents.intents == {}
    assert world.events.warnings() == ["rpc error: code = ResourceExhausted desc = told to fail"]


def test_t128_a_missing_csi_node_reschedules():
    """P-310: A missing CSINode is the second cause of Reschedule; the driver is not called."""
    world = topology_world()
    world.claim_pass(world.add_claim(annotations={ANN_SELECTED_NODE: "n2"}))
    assert ANN_SELECTED_NODE not in world.live_claim()["metadata"]["annotations"]
    assert world.client.created == []


@pytest.mark.parametrize(
    ("code", "left"),
    [
        pytest.param(13, None, id="C-033 final"),
        pytest.param(4, "background", id="C-035 background"),
        pytest.param(3, None, id="C-048 infeasible"),
    ],
)
def test_the_node_stays_unless_rescheduled(code, left):
    """P-421: The selected node stays on the claim unless the claim is rescheduled."""
    world = topology_world()
    world.client.answers = [rpc(code)]
    world.claim_pass(world.add_claim(annotations={ANN_SELECTED_NODE: "n1"}))
    assert world.live_claim()["metadata"]["annotations"][ANN_SELECTED_NODE] == "n1"
    assert in_progress(world) == left


def test_c034_no_change_keeps_the_node():
    world = topology_world()
    world.kube.drop("storageclasses.storage.k8s.io", "fast")
    world.add_class(parameters=SECRET_OF_CLASS)
    world.claim_pass(world.add_claim(annotations={ANN_SELECTED_NODE: "n1"}))
    assert world.live_claim()["metadata"]["annotations"][ANN_SELECTED_NODE] == "n1"


def test_c036_only_the_alpha_node_means_final_with_retry():
    """P-420: The annotation to remove is missing, so the claim cannot be rescheduled."""
    world = topology_world()
    world.client.answers = [rpc(8)]
    claim = world.add_claim(annotations={ANN_SELECTED_NODE_ALPHA: "n1"})
    assert world.claim_pass(claim).action is Action.RETRY
    assert in_progress(world) is None
    assert world.kube.writes == []


def test_c037_a_conflict_never_removes_a_newer_node():
    """L-052: The scheduler chose n9 in the meantime, and csi-fleet must not remove that choice."""
    world = topology_world()
    claim = world.add_claim(annotations={ANN_SELECTED_NODE: "n1"})
    world.client.answers = [rpc(8)]
    world.kube.before["update_claim"] = lambda: world.add_claim(
        annotations={ANN_SELECTED_NODE: "n9"}
    )
    world.claim_pass(claim)
    assert world.live_claim()["metadata"]["annotations"][ANN_SELECTED_NODE] == "n9"
    assert world.events.warnings() == ["rpc error: code = ResourceExhausted desc = told to fail"]


@pytest.mark.parametrize(
    "errors",
    [
        pytest.param([CONFLICT] * 9, id="C-037 conflict without end"),
        pytest.param([ForbiddenError(403, "Forbidden", "no")], id="C-037 forbidden"),
    ],
)
def test_c037_a_refused_update_is_retried_with_the_drivers_error(errors):
    world = topology_world()
    claim = world.add_claim(annotations={ANN_SELECTED_NODE: "n1"})
    world.client.answers = [rpc(8)]
    world.kube.fail["update_claim"] = list(errors)
    assert world.claim_pass(claim).action is Action.RETRY
    assert world.live_claim()["metadata"]["annotations"][ANN_SELECTED_NODE] == "n1"
    assert world.events.warnings() == ["rpc error: code = ResourceExhausted desc = told to fail"]


def test_rescheduling_a_claim_that_vanished_stops():
    world = topology_world()
    claim = world.add_claim(annotations={ANN_SELECTED_NODE: "n1"})
    world.client.answers = [rpc(8)]
    world.kube.fail["update_claim"] = [NotFoundError(404, "NotFound", "gone")]
    assert world.claim_pass(claim).action is Action.DONE


def test_t138_a_selected_node_without_topology_changes_nothing():
    """P-300: No requirement is sent, no affinity is stored and no Node is read."""
    world = World()
    world.add_class()
    world.claim_pass(world.add_claim(annotations={ANN_SELECTED_NODE: "nowhere"}))
    assert not world.client.created[0].HasField("accessibility_requirements")
    assert "nodeAffinity" not in world.volumes()[DOMAIN]["spec"]


def test_c050_allowed_topologies_and_node_reach_the_request():
    world = topology_world()
    world.kube.drop("storageclasses.storage.k8s.io", "fast")
    allowed = [{"matchLabelExpressions": [{"key": ZONE, "values": ["z1", "z2"]}]}]
    world.add_class(allowedTopologies=allowed)
    world.claim_pass(world.add_claim(annotations={ANN_SELECTED_NODE: "n1"}))
    sent = world.client.created[0].accessibility_requirements
    assert [dict(one.segments) for one in sent.requisite] == [{ZONE: "z1"}, {ZONE: "z2"}]
    assert dict(sent.preferred[0].segments) == {ZONE: "z1"}


def test_c059_another_prefix_names_the_volume():
    world = World(Settings(provision=ProvisionSettings(volume_name_prefix="vol")))
    world.add_class()
    claim = world.add_claim()
    world.claim_pass(claim)
    world.claim_pass(claim)
    assert set(world.volumes()) == {"vol-u1"}
    assert len(world.client.created) == 1


def test_a_slow_call_is_copied_to_a_config_map_and_cleaned_up(world, claim):
    """M-010: While the driver works, the API server stores a copy of the intent."""
    world.client.is_slow = True
    seen = []

    def answer(request):
        seen.extend(world.kube.kind("configmaps"))
        return csi.CreateVolumeResponse(
            volume=csi.Volume(volume_id="v", capacity_bytes=request.capacity_range.required_bytes)
        )

    world.client.answers = [answer]
    world.claim_pass(claim)
    assert seen == ["csi-fleet-intent-pvc-u1"]
    assert world.kube.kind("configmaps") == {}

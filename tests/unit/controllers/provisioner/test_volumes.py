"""Outcomes of reconciling a PV (P-500 to P-521)."""

from __future__ import annotations

import base64
from dataclasses import replace

import pytest

from csi_client.errors import CsiError
from tests.support.fake_cluster import DRIVER, World
from workers.constants import FINALIZER_VOLUME
from workers.engine.outcome import Action
from workers.kube.errors import ConflictError, ForbiddenError, NotFoundError, ServerError

NAME = "pv1"
PROTECTION = "kubernetes.io/pv-protection"
SECRET_NAME = "volume.kubernetes.io/provisioner-deletion-secret-name"
SECRET_NAMESPACE = "volume.kubernetes.io/provisioner-deletion-secret-namespace"
AWAY = ServerError(500, "InternalError", "etcd is away")


def add_volume(world, phase="Released", policy="Delete", annotations=None, **spec):
    """Add a PV of this driver that is ready to be deleted."""
    return world.kube.add(
        "persistentvolumes",
        {
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {
                "name": NAME,
                "annotations": {
                    "pv.kubernetes.io/provisioned-by": DRIVER,
                    SECRET_NAME: "",
                    SECRET_NAMESPACE: "",
                    **(annotations or {}),
                },
                "finalizers": [FINALIZER_VOLUME],
            },
            "spec": {
                "persistentVolumeReclaimPolicy": policy,
                "csi": {"driver": DRIVER, "volumeHandle": "h1"},
                **spec,
            },
            "status": {"phase": phase},
        },
    )


def test_c060_a_released_volume_is_deleted_in_storage_and_api(world):
    add_volume(world)
    assert world.volume_pass(NAME).action is Action.DONE
    assert world.client.deleted == [("h1", {})]
    assert world.volumes() == {}
    assert world.events.seen == []


@pytest.mark.parametrize("finalizers", [[FINALIZER_VOLUME], [FINALIZER_VOLUME, PROTECTION]])
def test_c060_a_deletion_knows_the_events_of_its_own_writes(world, finalizers):
    """Each deletion needs one reconcile, although its DELETE causes an event meanwhile."""
    volume = add_volume(world)
    world.volumes()[NAME]["metadata"]["finalizers"] = finalizers
    outcome = world.volume_pass(NAME)
    written = [one["metadata"]["resourceVersion"] for one in world.volumes().values()]
    assert int(outcome.known) > int(volume["metadata"]["resourceVersion"])
    assert written == [outcome.known] * (len(finalizers) - 1)


def test_c060_a_volume_of_another_provisioner_is_left_alone(world):
    add_volume(world, annotations={"pv.kubernetes.io/provisioned-by": "other"})
    assert world.volume_pass(NAME).action is Action.DONE
    assert world.client.deleted == []
    assert world.kube.writes == []


@pytest.mark.parametrize(
    ("phase", "policy"),
    [
        pytest.param("Bound", "Delete", id="C-061 Bound"),
        pytest.param("Failed", "Delete", id="C-061 Failed"),
        pytest.param("Available", "Delete", id="C-061 Available"),
        pytest.param("Released", "Retain", id="C-062 Retain"),
    ],
)
def test_a_volume_that_is_not_to_be_deleted(world, phase, policy):
    add_volume(world, phase=phase, policy=policy)
    assert world.volume_pass(NAME).action is Action.DONE
    assert world.client.deleted == []
    assert set(world.volumes()) == {NAME}


@pytest.mark.parametrize("code", range(1, 17))
def test_c063_t169_every_error_of_the_driver_is_told_and_retried(world, code):
    """P-515: The codes are not classified; NOT_FOUND is an error too."""
    add_volume(world)
    error = CsiError(code, "told to fail")
    world.client.delete_answers = [error]
    assert world.volume_pass(NAME).action is Action.RETRY
    assert world.events.seen == [("Warning", "VolumeFailedDelete", str(error))]
    assert set(world.volumes()) == {NAME}
    assert world.volume_pass(NAME).action is Action.DONE
    assert world.volumes() == {}


def test_c064_a_failed_deletion_of_the_object_repeats_both(world):
    add_volume(world)
    world.kube.fail["delete_volume"] = [AWAY]
    with pytest.raises(ServerError):
        world.volume_pass(NAME)
    assert set(world.volumes()) == {NAME}
    world.volume_pass(NAME)
    assert len(world.client.deleted) == 2
    assert world.volumes() == {}


def test_c066_a_deleting_volume_with_our_finalizer_goes(world):
    add_volume(world)["metadata"]["deletionTimestamp"] = "x"
    world.volumes()[NAME]["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    world.volume_pass(NAME)
    assert world.client.deleted == [("h1", {})]
    assert world.volumes() == {}


def test_c067_a_deleting_volume_without_our_finalizer_is_nothing_to_do(world):
    add_volume(world)
    meta = world.volumes()[NAME]["metadata"]
    meta["deletionTimestamp"], meta["finalizers"] = "2026-01-01T00:00:00Z", [PROTECTION]
    world.volume_pass(NAME)
    assert world.client.deleted == []
    assert world.kube.writes == []


def test_c068_c073_a_bound_volume_gets_its_finalizer(world):
    add_volume(world, phase="Bound")
    world.volumes()[NAME]["metadata"]["finalizers"] = [PROTECTION]
    world.volume_pass(NAME)
    assert world.volumes()[NAME]["metadata"]["finalizers"] == [PROTECTION, FINALIZER_VOLUME]


def test_c072_retain_gives_the_finalizer_back(world):
    add_volume(world, phase="Bound", policy="Retain")
    world.volume_pass(NAME)
    assert world.volumes()[NAME]["metadata"]["finalizers"] == []


def test_c077_an_ignored_deletion_leaves_no_trace():
    """P-506: In node deployment, the PV belongs to another node."""
    world = World()
    object.__setattr__(world.driver, "node_segments", {"zone": "here"})
    terms = [{"matchExpressions": [{"key": "zone", "operator": "In", "values": ["there"]}]}]
    add_volume(world, nodeAffinity={"required": {"nodeSelectorTerms": terms}})
    assert world.volume_pass(NAME).action is Action.DONE
    assert (world.client.deleted, world.events.seen, world.kube.writes) == ([], [], [])


@pytest.mark.parametrize("is_matched", [False, True], ids=["no term matches", "another matches"])
def test_an_affinity_that_cannot_be_read_is_an_error_if_nothing_matches(is_matched):
    """P-341, P-506: The error counts only if no other term matches."""
    world = World()
    object.__setattr__(world.driver, "node_segments", {"zone": "here"})
    wrong = {"matchExpressions": [{"key": "zone", "operator": "Lt", "values": ["x"]}]}
    here = ["here" if is_matched else "there"]
    other = {"matchExpressions": [{"key": "zone", "operator": "In", "values": here}]}
    add_volume(world, nodeAffinity={"required": {"nodeSelectorTerms": [wrong, other]}})
    assert world.volume_pass(NAME).action is (Action.DONE if is_matched else Action.RETRY)
    assert len(world.client.deleted) == is_matched
    messages = [seen[-1] for seen in world.events.seen]
    problem = "checking volume affinity failed: nodeSelectorTerms[0].matchExpressions[0].values[0]"
    assert [text[: len(problem)] for text in messages] == [problem] * (not is_matched)


def test_c078_a_volume_gone_before_its_finalizer_is_success(world):
    add_volume(world)
    world.kube.fail["remove_volume_finalizer"] = [NotFoundError(404, "NotFound", "gone")]
    assert world.volume_pass(NAME).action is Action.DONE


def test_c078_a_failed_finalizer_patch_repeats_the_deletion(world):
    add_volume(world)
    world.kube.fail["remove_volume_finalizer"] = [AWAY]
    with pytest.raises(ServerError):
        world.volume_pass(NAME)
    world.volume_pass(NAME)
    assert len(world.client.deleted) == 2
    assert world.volumes() == {}


def test_a_volume_re_created_under_its_name_is_not_deleted(world):
    """The deletion has the UID of the volume that was read as its precondition."""
    add_volume(world)

    def recreate():
        world.kube.drop("persistentvolumes", NAME)
        add_volume(world, phase="Bound")

    world.kube.before["delete_volume"] = recreate
    assert world.volume_pass(NAME).action is Action.DONE
    assert set(world.volumes()) == {NAME}


@pytest.mark.parametrize("call", ["add_volume_finalizer", "remove_volume_finalizer"])
def test_the_finalizers_of_a_volume_re_created_under_its_name_stay(world, call):
    """L-072: The patch has the UID of the volume that was read as its precondition."""
    is_added = call.startswith("add")
    add_volume(world, phase="Bound", policy="Delete" if is_added else "Retain")
    stored = world.kube.objects["persistentvolumes", "", NAME]["metadata"]
    stored["finalizers"] = [] if is_added else [FINALIZER_VOLUME]

    def recreate():
        world.kube.drop("persistentvolumes", NAME)
        add_volume(world, phase="Bound")
        world.volumes()[NAME]["metadata"]["finalizers"] = ["another.example/one"]

    world.kube.before[call] = recreate
    assert world.volume_pass(NAME).action is Action.DONE
    assert world.volumes()[NAME]["metadata"]["finalizers"] == ["another.example/one"]
    assert world.client.deleted == []


def test_the_deletion_ends_when_its_name_is_taken_anew(world):
    """L-076: The finalizer of the new volume of that name is kept."""
    add_volume(world)

    def recreate():
        world.kube.drop("persistentvolumes", NAME)
        add_volume(world, phase="Bound")

    world.kube.before["remove_volume_finalizer"] = recreate
    assert world.volume_pass(NAME).action is Action.DONE
    assert world.volumes()[NAME]["metadata"]["finalizers"] == [FINALIZER_VOLUME]


@pytest.mark.parametrize("is_reported", [True, False], ids=["C-080", "C-081"])
def test_c080_c081_an_attached_volume(is_reported):
    """P-510: Attachments are checked only for drivers with PUBLISH_UNPUBLISH_VOLUME."""
    capabilities = {"CREATE_DELETE_VOLUME"} | (
        {"PUBLISH_UNPUBLISH_VOLUME"} if is_reported else set()
    )
    world = World(controller=frozenset(capabilities))
    add_volume(world)
    world.catalog.attachments[NAME] = {"va2": "node-b", "va1": "node-a"}
    outcome = world.volume_pass(NAME)
    if not is_reported:
        assert world.volumes() == {}
        return
    assert outcome.action is Action.RETRY
    assert world.client.deleted == []
    assert world.events.warnings() == ["persistentvolume pv1 is still attached to node node-a"]
    world.catalog.attachments.clear()
    world.volume_pass(NAME)
    assert world.volumes() == {}


def test_c082_a_volume_that_is_gone_is_done(world):
    assert world.volume_pass(NAME).action is Action.DONE


def test_t160_a_volume_without_csi_source(world):
    add_volume(world, csi=None)
    world.volume_pass(NAME)
    assert world.events.warnings() == ["invalid CSI PV"]


def test_t164_t165_the_annotated_secret_or_none(world):
    """P-511: A missing secret does not block the deletion."""
    named = {SECRET_NAME: "creds", SECRET_NAMESPACE: "default"}
    add_volume(world, annotations=named)
    world.volume_pass(NAME)
    add_volume(world, annotations=named)
    data = {"user": base64.b64encode(b"admin").decode()}
    world.kube.add("secrets", {"metadata": {"name": "creds", "namespace": "default"}, "data": data})
    world.volume_pass(NAME)
    assert world.client.deleted == [("h1", {}), ("h1", {"user": "admin"})]


IN_TREE, PORTWORX = "kubernetes.io/portworx-volume", "pxd.portworx.com"
CSI_WORDS = "csi.storage.k8s.io/provisioner-secret-{}"
IN_TREE_WORDS = "openstorage.io/auth-secret-{}"


@pytest.mark.parametrize("words", [CSI_WORDS, IN_TREE_WORDS])
@pytest.mark.parametrize("provisioner", [PORTWORX, IN_TREE])
@pytest.mark.parametrize("is_migrated", [False, True])
def test_without_annotations_the_class_names_the_secret(world, is_migrated, provisioner, words):
    """P-512, P-513: If the volume is the in-tree plug-in's, its class is translated first."""
    world.driver = replace(world.driver, name=PORTWORX, in_tree_name=IN_TREE)
    parameters = {words.format("name"): "creds", words.format("namespace"): "default"}
    world.add_class(provisioner=provisioner, parameters=parameters)
    data = {"user": base64.b64encode(b"admin").decode()}
    world.kube.add("secrets", {"metadata": {"name": "creds", "namespace": "default"}, "data": data})
    source = {"csi": {"driver": PORTWORX, "volumeHandle": "h1"}}
    names = {"pv.kubernetes.io/provisioned-by": PORTWORX}
    if is_migrated:
        source = {"csi": None, "portworxVolume": {"volumeID": "h1"}}
        names = {
            "pv.kubernetes.io/provisioned-by": IN_TREE,
            "pv.kubernetes.io/migrated-to": PORTWORX,
        }
    claim = {"namespace": "default", "name": "data"}
    add_volume(world, annotations=names, storageClassName="fast", claimRef=claim, **source)
    annotations = world.volumes()[NAME]["metadata"]["annotations"]
    del annotations[SECRET_NAME], annotations[SECRET_NAMESPACE]
    world.volume_pass(NAME)
    is_translated = is_migrated and provisioner == IN_TREE
    is_read = words == CSI_WORDS or is_translated
    assert world.client.deleted == [("h1", {"user": "admin"} if is_read else {})]


def test_d022_a_refused_secret_read_holds_the_deletion_up(world):
    add_volume(world, annotations={SECRET_NAME: "creds", SECRET_NAMESPACE: "default"})
    world.kube.fail["get_secret"] = [ForbiddenError(403, "Forbidden", "no right to get secrets")]
    assert world.volume_pass(NAME).action is Action.RETRY
    assert world.client.deleted == []
    (told,) = world.events.warnings()
    assert "no right to get secrets" in told


def test_t171_missing_capabilities_are_told():
    world = World(controller=frozenset())
    add_volume(world)
    assert world.volume_pass(NAME).action is Action.RETRY
    assert len(world.events.warnings()) == 1
    assert world.client.deleted == []


def test_a_conflict_of_the_deletion_is_somebody_elses_success(world):
    add_volume(world)
    world.kube.fail["delete_volume"] = [ConflictError(409, "Conflict", "other uid")]
    assert world.volume_pass(NAME).action is Action.DONE


@pytest.mark.parametrize("phase", ["Available", "Failed", "Pending", ""])
@pytest.mark.parametrize("claim", [None, {"name": "dead", "namespace": "n", "uid": "gone"}])
def test_kep2644_a_deleted_volume_that_nobody_is_bound_to_goes_with_its_storage(
    world, phase, claim
):
    """BUG-5: csi-provisioner leaves the volume in Terminating forever."""
    add_volume(world, phase=phase, claimRef=claim)
    world.volumes()[NAME]["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert world.volume_pass(NAME).action is Action.DONE
    assert world.client.deleted == [("h1", {})]
    assert world.volumes() == {}


def test_kep2644_a_volume_whose_claim_lives_waits_for_the_binder(world, claim):
    """The volume becomes Bound, and Released once the claim is deleted; both cause an event."""
    metadata = claim["metadata"]
    reference = {name: metadata[name] for name in ("namespace", "name", "uid")}
    add_volume(world, phase="Available", claimRef=reference)
    world.volumes()[NAME]["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert world.volume_pass(NAME).reason == "its claim is not bound yet"
    assert world.client.deleted == []

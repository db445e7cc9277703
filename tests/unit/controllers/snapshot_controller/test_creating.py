"""From a snapshot to its content: SNT-001 to SNT-019."""

from __future__ import annotations

import pytest

from tests.support.snapshot_world import (
    CONTENT,
    DRIVER,
    SnapshotWorld,
    error_of,
    finalizers,
    notes,
)
from workers import constants as k
from workers.controllers.snapshot_controller.keys import source_key
from workers.kube import paths
from workers.kube.errors import ForbiddenError

AS_SOURCE, BOUND = "volumesnapshot-as-source-protection", "volumesnapshot-bound-protection"
CLAIM = "pvc-as-source-protection"
PREFIX = "Failed to create snapshot content with error "
INPUT = "failed to get input parameters to create snapshot s: "
SECRET = "csi.storage.k8s.io/snapshotter-secret"
NOBODY = ForbiddenError(403, "Forbidden", "no")


def new_world(**settings) -> SnapshotWorld:
    world = SnapshotWorld(**settings)
    world.add_source()
    world.add_snapshot()
    return world


def default_class(world: SnapshotWorld, name: str, value: str = "true", **more) -> None:
    note = {k.ANN_DEFAULT_SNAPSHOT_CLASS: value}
    world.add_class(name, metadata={"name": name, "annotations": note}, **more)


def test_snt001_a_new_snapshot_is_bound_in_one_pass():
    """SNC-020, SNC-043, SNC-044, SNC-060: The claim is protected, and the content made and bound.

    The snapshot is not ready yet.
    """
    world = new_world()
    assert world.run_snapshot().action.value == "done"
    assert finalizers(world.snapshot()) == [AS_SOURCE, BOUND]
    assert finalizers(world.claim()) == [CLAIM]
    status = world.snapshot()["status"]
    assert status == {"boundVolumeSnapshotContentName": CONTENT, "readyToUse": False}
    spec = world.content()["spec"]
    assert spec.pop("volumeSnapshotRef").pop("resourceVersion")
    assert spec == {
        "source": {"volumeHandle": "h1"},
        "volumeSnapshotClassName": "c1",
        "deletionPolicy": "Delete",
        "driver": DRIVER,
        "sourceVolumeMode": "Filesystem",
    }
    assert world.messages == ["Waiting for a snapshot ns/s to be created by the CSI driver."]
    assert world.steps.reached == [
        *("add-finalizers", "protect-claim", "create-content", "write-status", "add-finalizers"),
    ]


def test_the_content_has_its_finalizer_from_the_start():
    """SND-002: The content then cannot vanish before the sidecar first reads it."""
    world = new_world()
    world.run_snapshot()
    assert world.content()["metadata"]["finalizers"] == [k.FINALIZER_CONTENT]


def test_a_second_pass_writes_nothing():
    """SND-016, SNC-070: The status is written only if it changes."""
    world = new_world()
    world.run_snapshot()
    before = len(world.api.writes)
    assert world.run_snapshot().action.value == "done"
    assert len(world.api.writes) == before


def test_snt002_the_default_class_of_the_driver():
    """SNC-011, SNC-012: The default class must belong to the volume's driver."""
    world = SnapshotWorld()
    world.add_source()
    default_class(world, "mine")
    default_class(world, "other", driver="other.test")
    world.add_snapshot(spec={"volumeSnapshotClassName": None})
    world.run_snapshot()
    assert world.snapshot()["spec"]["volumeSnapshotClassName"] == "mine"
    assert world.content()["spec"]["volumeSnapshotClassName"] == "mine"


@pytest.mark.parametrize(
    ("values", "words"),
    [
        pytest.param((), "cannot find default snapshot class", id="SNT-003 none"),
        pytest.param(("true", "true"), "2 default snapshot classes were found", id="SNT-003 two"),
        pytest.param(("True", "1"), "cannot find default snapshot class", id="SNT-004"),
    ],
)
def test_no_default_class(values, words):
    """SNC-011: Only exactly `true` counts; readyToUse is not written (SNC-031)."""
    world = SnapshotWorld()
    world.add_source()
    for number, value in enumerate(values):
        default_class(world, f"d{number}", value)
    world.add_snapshot(spec={"volumeSnapshotClassName": None})
    assert world.run_snapshot().action.value == "retry"
    assert world.reasons == ["SetDefaultSnapshotClassFailed"]
    assert error_of(world.snapshot()) == f"Failed to set default snapshot class with error {words}"
    assert "readyToUse" not in world.snapshot()["status"]
    assert finalizers(world.snapshot()) == []


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ({}, "the snapshot source PVC name is not specified"),
        ({"persistentVolumeClaimName": ""}, "the PVC name is not specified in snapshot ns/s"),
    ],
)
def test_no_default_class_without_a_claim(source, words):
    """SNC-011: A missing source and an empty name have different errors.

    The class is checked before the source (SNC-002).
    """
    world = SnapshotWorld()
    world.add_snapshot(spec={"source": source, "volumeSnapshotClassName": None})
    assert world.run_snapshot().action.value == "retry"
    assert world.reasons == ["SetDefaultSnapshotClassFailed"]
    expected = f"Failed to set default snapshot class with error {words}"
    assert error_of(world.snapshot()) == expected


def test_a_class_that_cannot_be_written_stops_the_pass():
    """SND-011: snapshot-controller continues without a class."""
    world = SnapshotWorld()
    world.add_source()
    default_class(world, "mine")
    world.add_snapshot(spec={"volumeSnapshotClassName": None})
    world.api.fail("patch", "volumesnapshots/s", NOBODY)
    assert world.run_snapshot().action.value == "retry"
    assert world.reasons == ["SetDefaultSnapshotClassFailed"]
    assert world.content() is None


def test_snt005_a_class_that_does_not_exist():
    """SNC-010: An event and the status report the missing class."""
    world = SnapshotWorld()
    world.add_source()
    world.add_snapshot(spec={"volumeSnapshotClassName": "none"})
    assert world.run_snapshot().action.value == "retry"
    assert world.reasons == ["GetSnapshotClassFailed"]
    assert error_of(world.snapshot()) == (
        "Failed to get snapshot class with error volumesnapshotclass.snapshot.storage.k8s.io "
        '"none" not found'
    )
    assert "readyToUse" not in world.snapshot()["status"]


def test_snt007_a_claim_that_is_not_bound_yet():
    """SNC-043: The status reports the error, and the snapshot is retried."""
    world = SnapshotWorld()
    world.add_claim(phase="Pending")
    world.add_volume()
    world.add_snapshot()
    assert world.run_snapshot().action.value == "retry"
    assert world.reasons == ["SnapshotContentCreationFailed"]
    words = "the PVC p is not yet bound to a PV, will not attempt to take a snapshot"
    assert error_of(world.snapshot()) == f'{PREFIX}{INPUT}"{words}"'
    assert world.snapshot()["status"]["readyToUse"] is False
    world.add_claim(finalizers=[k.FINALIZER_CLAIM_AS_SOURCE])
    assert world.run_snapshot().action.value == "done"
    assert error_of(world.snapshot()) == ""


def test_snt008_a_claim_that_does_not_exist():
    """SNC-060: The status reports the missing claim."""
    world = SnapshotWorld()
    world.add_snapshot()
    assert world.run_snapshot().action.value == "retry"
    words = "snapshot controller failed to update s on API server: cannot get claim from snapshot"
    assert error_of(world.snapshot()) == PREFIX + words


def test_snt009_a_claim_that_is_going():
    """SNC-060: The claim's finalizer cannot be added any more."""
    world = SnapshotWorld()
    world.add_claim(deletionTimestamp="t", finalizers=["kubernetes.io/pvc-protection"])
    world.add_volume()
    world.add_snapshot()
    assert world.run_snapshot().action.value == "retry"
    assert error_of(world.snapshot()).endswith(
        "cannot add finalizer on claim because it is being deleted"
    )
    assert world.content() is None


@pytest.mark.parametrize(
    ("volume", "words"),
    [
        pytest.param(
            {"claimRef": {"namespace": "ns", "name": "p", "uid": "another"}},
            f'{INPUT}"claim in dataSource not bound or invalid"',
            id="SNT-010",
        ),
        pytest.param(
            {"csi": None, "hostPath": {"path": "/x"}},
            "cannot find CSI PersistentVolumeSource for volume pv1",
            id="SNT-011",
        ),
        pytest.param(
            {"csi": {"driver": "other.test", "volumeHandle": "h1"}},
            "snapshot class c1 is for driver snap.test, but volume pv1 belongs to driver "
            "other.test",
            id="SNT-012",
        ),
    ],
)
def test_volumes_that_do_not_fit(volume, words):
    """SNC-043 rows 5 and 7: A class of another driver is an error too (SND-008)."""
    world = SnapshotWorld()
    world.add_claim()
    world.add_volume(**volume)
    world.add_snapshot()
    assert world.run_snapshot().action.value == "retry"
    assert error_of(world.snapshot()) == PREFIX + words
    assert world.content() is None


def test_migrated_volumes_can_be_snapshotted():
    """SND-031: The in-tree source is translated as in the provisioner."""
    world = SnapshotWorld()
    world.add_class(driver="ebs.csi.aws.com")
    world.add_claim()
    world.add_volume(csi=None, awsElasticBlockStore={"volumeID": "vol-1"})
    world.add_snapshot()
    assert world.run_snapshot().action.value == "done"
    assert world.content()["spec"]["source"] == {"volumeHandle": "vol-1"}


@pytest.mark.parametrize(
    ("uid", "reason"),
    [
        pytest.param("u1", "", id="SNT-013"),
        pytest.param("u2", "SnapshotContentMisbound", id="SNT-014"),
    ],
)
def test_the_content_is_there_when_it_is_made(uid, reason):
    """SND-009: The existing content is checked; its name alone doesn't make it this snapshot's."""
    world = new_world()
    ref = {"namespace": "ns", "name": "s", "uid": uid}
    world.api.before("create", CONTENT, lambda: world.add_content(spec={"volumeSnapshotRef": ref}))
    assert world.run_snapshot().action.value == ("retry" if reason else "done")
    assert reason in ["", *world.reasons]
    assert bool(world.snapshot()["status"].get("boundVolumeSnapshotContentName")) is not bool(
        reason
    )


def test_a_post_that_is_refused():
    """SNC-043 row 8: Two events report the refused creation."""
    world = new_world()
    world.api.fail("create", CONTENT, NOBODY)
    assert world.run_snapshot().action.value == "retry"
    assert world.reasons == ["CreateSnapshotContentFailed", "SnapshotContentCreationFailed"]


def test_snt015_the_secret_is_named_but_not_read():
    """SNA-020, SNA-023: The content's annotations name the secret."""
    world = new_world()
    world.add_class(
        parameters={
            f"{SECRET}-name": "snap-${volumesnapshot.namespace}-${volumesnapshot.name}",
            f"{SECRET}-namespace": "${volumesnapshot.namespace}",
        }
    )
    world.run_snapshot()
    assert notes(world.content()) == {
        k.ANN_SNAPSHOT_SECRET_NAME: "snap-ns-s",
        k.ANN_SNAPSHOT_SECRET_NAMESPACE: "ns",
    }
    assert not [r for r in world.api.requests if "secrets" in r.path]


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        pytest.param(
            {"name": "x"},
            "failed to get name and namespace template from params: either name and namespace for "
            "Snapshotter secrets specified, Both must be specified",
            id="SNT-016",
        ),
        pytest.param(
            {"name": "", "namespace": "ns"},
            "failed to get name and namespace template from params: Snapshotter secrets specified "
            "in parameters but value of either namespace or name is empty",
            id="empty",
        ),
        pytest.param(
            {"name": "x", "namespace": "${volumesnapshot.name}"},
            r"error resolving value \"${volumesnapshot.name}\": invalid tokens: "
            r"[\"volumesnapshot.name\"]",
            id="SNT-017",
        ),
    ],
)
def test_secrets_that_cannot_be_resolved(parameters, words):
    """SNA-020, SNA-023: The status reports why the secret's name cannot be resolved."""
    world = new_world()
    world.add_class(parameters={f"{SECRET}-{key}": value for key, value in parameters.items()})
    assert world.run_snapshot().action.value == "retry"
    assert error_of(world.snapshot()) == f'{PREFIX}{INPUT}"{words}"'


def test_snt018_the_volume_mode_can_be_left_out():
    """SNC-081: With the flag off, the content has no volume mode."""
    world = new_world(keeps_volume_mode=False)
    world.run_snapshot()
    assert world.content()["spec"]["sourceVolumeMode"] is None


def affinity(*nodes: str, part: str = "matchExpressions", key: str = "host") -> dict:
    expression = {"key": key, "operator": "In", "values": list(nodes)}
    return {"required": {"nodeSelectorTerms": [{part: [expression]}]}}


def add_node(world: SnapshotWorld, name: str, *, is_ready: bool, drivers: tuple[str, ...]) -> None:
    status = {"conditions": [{"type": "Ready", "status": "True" if is_ready else "False"}]}
    metadata = {"name": name, "labels": {"host": name}}
    world.api.add(paths.NODES, {"metadata": metadata, "status": status})
    found = [{"name": driver, "nodeID": name} for driver in drivers]
    world.api.add(paths.CSI_NODES, {"metadata": {"name": name}, "spec": {"drivers": found}})


BY_NAME = affinity("n2", part="matchFields", key="metadata.name")


@pytest.mark.parametrize(
    ("allowed", "is_distributed", "label"),
    [
        pytest.param(affinity("n2"), True, "n2", id="SNT-019"),
        pytest.param(affinity("n1", "n2", "n3"), True, "n3", id="ready, with the driver"),
        pytest.param(affinity("n1"), True, "n1", id="none is better"),
        pytest.param(affinity("n9"), True, None, id="none fits"),
        pytest.param(BY_NAME, True, "n2", id="by its name"),
        pytest.param(affinity("n2"), False, None, id="switched off"),
    ],
)
def test_distributed_mode(allowed, is_distributed, label):
    """SNC-080, SND-030: A ready node with the driver is preferred."""
    world = SnapshotWorld(is_distributed=is_distributed)
    add_node(world, "n1", is_ready=False, drivers=(DRIVER,))
    add_node(world, "n2", is_ready=True, drivers=())
    add_node(world, "n3", is_ready=True, drivers=(DRIVER,))
    world.add_claim()
    world.add_volume(nodeAffinity=allowed)
    world.add_snapshot()
    world.run_snapshot()
    labels = world.content()["metadata"].get("labels", {})
    assert labels.get(k.LABEL_SNAPSHOT_NODE) == label


def test_a_snapshot_that_goes_while_its_error_is_written():
    """SNC-031: No error is reported; the next reconcile finds the snapshot gone."""
    world = SnapshotWorld()
    world.add_claim(phase="Pending")
    world.add_snapshot()
    gone = lambda: world.api.drop(paths.SNAPSHOTS, "s", "ns")  # noqa: E731
    world.api.before("patch", "volumesnapshots/s/status", gone)
    assert world.run_snapshot().reason == "gone meanwhile"
    assert world.run_snapshot().reason == "gone"


def claimed(world: SnapshotWorld) -> None:
    world.api.change(
        paths.CLAIMS, "p", {"metadata": {"finalizers": [k.FINALIZER_CLAIM_AS_SOURCE]}}, "ns"
    )


BROKEN = {
    "no class": {"volumeSnapshotClassName": "no-such-class"},
    "another driver's class": {"volumeSnapshotClassName": "foreign"},
    "no default class": {"volumeSnapshotClassName": None},
    "two sources": {"source": {"persistentVolumeClaimName": "p", "volumeSnapshotContentName": "x"}},
}


@pytest.mark.parametrize("spec", BROKEN.values(), ids=BROKEN)
def test_a_snapshot_that_cannot_start_does_not_hold_its_claim(spec):
    """BUG-6: It neither protects the claim nor counts when another snapshot is deleted."""
    world = SnapshotWorld()
    world.add_source()
    world.add_class("foreign", driver="other.test")
    world.add_snapshot(spec=spec)
    world.run_snapshot()
    assert finalizers(world.claim()) == []
    claimed(world)
    world.run_snapshot(source_key("ns/p"))
    assert finalizers(world.claim()) == []


def test_a_snapshot_that_has_begun_holds_its_claim():
    """SNC-061: This holds even before its status names the content."""
    world = new_world()
    world.run_snapshot()
    world.api.change(paths.SNAPSHOTS, "s", {"status": None}, "ns")
    world.run_snapshot(source_key("ns/p"))
    assert finalizers(world.claim()) == [CLAIM]


def test_a_claim_that_others_write_is_protected_all_the_same():
    """Concurrent writes cause no conflict, and so no Warning that users could do nothing about."""
    world = new_world()
    world.api.before(
        "patch",
        "persistentvolumeclaims",
        lambda: world.api.change(paths.CLAIMS, "p", {"metadata": {"labels": {"a": "b"}}}, "ns"),
    )
    world.run_snapshot()
    assert finalizers(world.claim()) == [CLAIM]
    assert [reason for reason in world.reasons if "Finalizer" in reason] == []

"""Attempts whose claim is gone, and with it the objects that its request needs (COR-7, COR-8).

Uninstalling a chart deletes the StorageClass too; deleting a namespace deletes its secrets,
snapshots and grants. Whatever is deleted, no volume is left without a PV, and no key is retried
forever.
"""

from __future__ import annotations

import base64

import pytest

from csi_client import errors
from csi_client.errors import CsiError
from tests.support.crash_world import CLAIM, NAMESPACE, UID, VOLUME, CrashWorld
from tests.support.fake_cluster import DRIVER
from workers.errors import DriverAway
from workers.queue.catalog import CatalogWriter
from workers.queue.intents import IntentStore
from workers.queue.keys import claim_key

TIMEOUT = CsiError(errors.DEADLINE_EXCEEDED, "context deadline exceeded")
INTERNAL = CsiError(errors.INTERNAL, "told to fail")
BAD = CsiError(errors.INVALID_ARGUMENT, "never")
FULL = CsiError(errors.RESOURCE_EXHAUSTED, "no room")
CLASSES = "storageclasses.storage.k8s.io"
DAY = 24 * 3600
SNAPSHOT = {"apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": "snap"}
ENDS = [pytest.param(TIMEOUT, id="unknown end"), pytest.param(INTERNAL, id="INTERNAL")]


@pytest.fixture
def world(redis_client):
    return CrashWorld(redis_client)


def attempted(world, error, owner=None):
    """Reconcile once: CreateVolume makes the volume and fails with `error`."""
    world.storage.plans = [("after", error)]
    owner = owner or world.owner()
    one_pass(world, owner)
    assert set(world.storage.volumes) == {VOLUME}
    return owner


def one_pass(world, owner):
    """Reconcile the keys that are due now; the cluster does nothing."""
    world.watcher()
    owner.queue.heartbeat()
    owner.queue.pump(period_seconds=0)
    while world.messages:
        world._work(owner, world.messages.pop(0))


def change_class(world, **fields):
    world.storage_class = world.kube.add(CLASSES, {**world.storage_class, **fields})
    version = world.storage_class["metadata"]["resourceVersion"]
    CatalogWriter(world.client).write("classes", [("fast", version, world.storage_class)])


def drop_class(world):
    """Delete the class from the API server and from the watcher's cache."""
    world.kube.drop(CLASSES, "fast")
    CatalogWriter(world.client).replace("classes", [], "999")


def intents(world):
    return IntentStore(world.client, driver=DRIVER).all()


def nothing_is_left(world):
    assert world.storage.volumes == {}
    assert world.kube.kind("persistentvolumes") == {}
    assert world.left_in_redis() == []
    assert world.kube.kind("configmaps") == {}


@pytest.mark.parametrize("error", ENDS)
def test_claim_and_class_are_deleted_together(world, error):
    """COR-7, COR-8: `helm uninstall` deletes both; the intent contains the class."""
    world.add_claim()
    owner = attempted(world, error)
    drop_class(world)
    world.delete_claim()
    world.live(owner, seconds=DAY)
    nothing_is_left(world)
    assert world.storage.calls == ["create", "create", "delete"]


def test_claim_and_class_are_deleted_and_redis_emptied(world):
    """COR-7: The intent copy in the ConfigMap contains the class too."""
    world.add_claim()
    attempted(world, TIMEOUT)
    drop_class(world)
    world.kube.objects.pop(CLAIM)
    world.wipe()
    world.live(world.owner(), seconds=DAY)
    nothing_is_left(world)


@pytest.mark.parametrize("error", ENDS)
def test_claim_and_snapshot_are_deleted(world, error):
    """COR-8, upstream 1449: After a final error too, the recorded source of that call is used."""
    world.add_snapshot()
    world.add_claim(dataSource=SNAPSHOT)
    owner = attempted(world, error)
    world.kube.drop("volumesnapshots", "snap", "default")
    world.kube.drop("volumesnapshotcontents", "content")
    world.delete_claim()
    world.live(owner)
    nothing_is_left(world)


def test_claim_and_grant_are_deleted(world):
    """COR-7: A grant protects data from claims, and a deleted claim can give no access to data."""
    gates = world.settings.gates
    object.__setattr__(gates, "cross_namespace_volume_data_source", True)
    grants = [
        {
            "metadata": {"name": "g", "namespace": "default"},
            "spec": {
                "from": [{"group": "", "kind": "PersistentVolumeClaim", "namespace": "default"}],
                "to": [{"group": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot"}],
            },
        }
    ]
    world.kube.list_reference_grants = lambda _namespace: iter(grants)
    world.add_snapshot()
    snapshot = world.kube.objects.pop(("volumesnapshots", "default", "snap"))
    snapshot["metadata"]["namespace"] = "source"
    world.kube.add("volumesnapshots", snapshot)
    content = world.kube.objects["volumesnapshotcontents", "", "content"]
    content["spec"]["volumeSnapshotRef"]["namespace"] = "source"
    for grant in grants:
        grant["metadata"]["namespace"] = "source"
    world.add_claim(dataSourceRef=SNAPSHOT | {"namespace": "source"})
    owner = attempted(world, TIMEOUT)
    grants.clear()
    world.delete_claim()
    world.live(owner)
    nothing_is_left(world)


def with_secret(world):
    """Add a claim whose class names a secret in the claim's namespace."""
    change_class(
        world,
        parameters={
            "csi.storage.k8s.io/provisioner-secret-name": "creds",
            "csi.storage.k8s.io/provisioner-secret-namespace": "${pvc.namespace}",
        },
    )
    add_secret(world)
    world.add_claim()


def add_secret(world):
    password = base64.b64encode(b"s3cr3t-value").decode()
    metadata = {"name": "creds", "namespace": "default"}
    world.kube.add("secrets", {"metadata": metadata, "data": {"password": password}})


@pytest.mark.parametrize("error", ENDS)
def test_claim_and_secret_are_deleted(world, error):
    """COR-7: Without the secret the call cannot be repeated; the intent is kept for `audit`.

    The key is not retried. P-400: A claim that is gone gets the event of a NoChange error too.
    """
    with_secret(world)
    owner = attempted(world, error)
    world.kube.drop("secrets", "creds", "default")
    world.delete_claim()
    world.live(owner, seconds=DAY)
    assert world.storage.calls == ["create"]
    (record,) = intents(world).values()
    assert record["stage"] == "stranded"
    assert 'secrets "creds" not found' in record["problem"]
    missing = 'error getting secret creds in namespace default: secrets "creds" not found'
    assert missing in [seen[-1] for seen in world.events.seen]
    assert set(world.kube.kind("configmaps")) == {f"csi-fleet-intent-{VOLUME}"}


def test_a_stranded_attempt_ends_once_its_secret_is_back(world):
    """COR-7: An operator creates the secret again and runs `csi-fleet retry`."""
    with_secret(world)
    owner = attempted(world, TIMEOUT)
    world.kube.drop("secrets", "creds", "default")
    world.delete_claim()
    world.live(owner, seconds=DAY)
    add_secret(world)
    owner.queue.add([claim_key(DRIVER, "default", "data", UID)])
    world.live(owner)
    nothing_is_left(world)


def test_a_stranded_attempt_outlives_redis(world):
    """COR-7: The intent is restored from its ConfigMap, tried again and stranded again."""
    with_secret(world)
    owner = attempted(world, TIMEOUT)
    world.kube.drop("secrets", "creds", "default")
    world.delete_claim()
    world.live(owner, seconds=DAY)
    world.wipe()
    world.live(world.owner(), seconds=DAY)
    (record,) = intents(world).values()
    assert record["stage"] == "stranded"


def test_a_secret_that_comes_back_soon_needs_nobody(world):
    """A chart deletes a namespace and creates it again."""
    with_secret(world)
    owner = attempted(world, TIMEOUT)
    world.kube.drop("secrets", "creds", "default")
    world.delete_claim()
    one_pass(world, owner)
    world.now_ms += 10_000
    add_secret(world)
    world.live(owner)
    nothing_is_left(world)


def test_no_record_holds_a_secret(world):
    """The class in the intent names secrets, but no intent or ConfigMap contains their values."""
    with_secret(world)
    attempted(world, TIMEOUT)
    kept = [*intents(world).values(), world.kube.objects["configmaps", NAMESPACE, _copy_name()]]
    for form in ("s3cr3t-value", base64.b64encode(b"s3cr3t-value").decode()):
        assert form not in repr(kept)
    assert all(record.get("class", {}).get("provisioner") == DRIVER for record in kept[:1])


def _copy_name():
    return f"csi-fleet-intent-{VOLUME}"


def test_claim_and_attributes_class_are_deleted(world):
    """COR-7: The parameters of the earlier call are used again."""
    gates = world.settings.gates
    object.__setattr__(gates, "volume_attributes_class", True)
    capabilities = world.driver.controller_capabilities | {"MODIFY_VOLUME"}
    object.__setattr__(world.driver, "controller_capabilities", capabilities)
    vac = "volumeattributesclasses.storage.k8s.io"
    body = {"metadata": {"name": "gold"}, "driverName": DRIVER, "parameters": {"iops": "9"}}
    world.kube.add(vac, body)
    world.add_claim(volumeAttributesClassName="gold")
    owner = attempted(world, TIMEOUT)
    world.kube.drop(vac, "gold")
    world.delete_claim()
    world.live(owner)
    nothing_is_left(world)


def test_a_later_attempt_that_is_not_sent_forgets_nothing(world):
    """COR-8: The driver answers INTERNAL but made the volume; then the class becomes invalid."""
    world.add_claim()
    owner = attempted(world, INTERNAL)
    world.now_ms += 2000
    good = dict(world.storage_class)
    change_class(world, parameters={"csi.storage.k8s.io/fstype": "xfs", "fstype": "ext4"})
    one_pass(world, owner)
    assert world.storage.calls == ["create"]
    assert intents(world)[VOLUME]["stage"] == "failed"
    change_class(world, parameters=good.get("parameters") or {})
    world.delete_claim()
    world.live(owner)
    nothing_is_left(world)


@pytest.mark.parametrize("error", [BAD, FULL], ids=["infeasible", "rescheduled"])
def test_a_later_error_without_doubt_forgets_nothing_of_an_earlier_one(redis_client, error):
    """COR-8: INTERNAL although the volume exists is followed by another error and the deletion."""
    world = CrashWorld(redis_client, has_topology=True)
    world.add_claim()
    owner = attempted(world, INTERNAL)
    world.now_ms += 2000
    world.storage.plans = [error]
    one_pass(world, owner)
    assert world.storage.calls == ["create", "create"]
    world.delete_claim()
    world.live(owner)
    nothing_is_left(world)


def test_a_claim_that_got_another_volume_gets_its_last_attempt(world):
    """COR-8: It was bound by hand after INTERNAL, so no later reconcile would repeat the call."""
    world.add_claim()
    owner = attempted(world, INTERNAL)
    world.kube.objects[CLAIM]["spec"]["volumeName"] = "by-hand"
    world.now_ms += 2000
    one_pass(world, owner)
    assert set(world.kube.kind("persistentvolumes")) == {VOLUME}
    assert intents(world) == {}


def test_a_final_error_of_a_claim_that_is_being_deleted_was_its_last_attempt(world):
    """T-058: The driver is not called a second time, and no intent is left after the first call."""
    world.add_claim()
    world.kube.objects[CLAIM]["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    world.storage.plans = [INTERNAL]
    owner = world.owner()
    one_pass(world, owner)
    assert world.storage.calls == ["create"]
    assert intents(world) == {}
    world.delete_claim()
    world.live(owner)
    assert world.storage.calls == ["create"]


def test_a_driver_that_goes_away_is_remembered_outside_of_redis(world):
    """P-401: The call may have reached the driver, so the intent is kept and copied at once."""
    world.add_claim()
    attempted(world, DriverAway("not connected"))
    assert intents(world)[VOLUME]["stage"] == "background"
    assert set(world.kube.kind("configmaps")) == {_copy_name()}
    world.wipe()
    world.kube.objects.pop(CLAIM)
    world.live(world.owner())
    nothing_is_left(world)

"""Each permission in k8s/ is needed: a feature stops without it and works again once it is back.

A row removes all verbs on one resource from every role of the account while watcher and worker run.
The API server refuses, the feature stops, and continues when the permission is back: a missing rule
loses nothing. tests/e2e/test_rbac.py shows that together the permissions suffice, that each single
verb is used, and that there are no others.
"""

from __future__ import annotations

import base64

import pytest

from tests.support.fleet import Scene
from tests.support.rights import RightsWorld
from tests.support.shipped import NAMESPACE, RECORDS, manifests, rights
from tests.support.snapshots import GROUP as SNAPSHOT
from tests.support.snapshots import add_snapshot, make_snapshot
from tests.support.waiting import wait_until

STORAGE = "storage.k8s.io"
GRANTS = "gateway.networking.k8s.io"


@pytest.fixture(scope="module")
def world(redis_binary, tmp_path_factory):
    with RightsWorld(redis_binary, tmp_path_factory.mktemp("rights")) as world:
        yield world


@pytest.fixture
def scene(world):
    scene = Scene(world.api)
    yield scene
    scene.clean_up()


def is_bound(scene, name):
    return scene.get(name)["status"]["phase"] == "Bound"


# Each scenario prepares and yields while the permission is removed. It then yields a condition that
# must be false without the permission and true with it.


def binding(world, scene):
    yield
    scene.claim("a", scene.storage_class(world.driver.name))
    yield lambda: is_bound(scene, "a")


def deletion(world, scene):
    scene.claim("a", scene.storage_class(world.driver.name))
    scene.wait_bound()
    yield
    scene.delete("a")
    yield lambda: not scene.volumes()


def deletion_without_class(world, scene):
    """The volume of an older provisioner, whose class would name its secrets, but is gone."""
    storage_class = scene.storage_class(world.driver.name)
    scene.claim("a", storage_class)
    scene.wait_bound()
    (volume,) = scene.volumes()
    prefix = "volume.kubernetes.io/provisioner-deletion-secret-"
    nothing = {f"{prefix}name": None, f"{prefix}namespace": None}
    path = f"/api/v1/persistentvolumes/{volume['metadata']['name']}"
    world.api.patch(path, {"metadata": {"annotations": nothing}})
    scene.delete_class(storage_class)
    yield
    scene.delete("a")
    yield lambda: not scene.volumes()


def new_node(world, scene):
    late = scene.storage_class(world.driver.name, volumeBindingMode="WaitForFirstConsumer")
    scene.claim("a", late)
    yield
    world.add_node(scene.name)

    def bound():
        # The attempt may have given the claim back to the scheduler, which would select a node
        # again.
        if not is_bound(scene, "a"):
            scene.select_node("a", scene.name)
        return is_bound(scene, "a")

    yield bound


def attached_volume(world, scene):
    scene.claim("a", scene.storage_class(world.driver.name))
    scene.wait_bound()
    volume = scene.volumes()[0]["metadata"]["name"]
    world.api.create(
        {"apiVersion": f"{STORAGE}/v1", "kind": "VolumeAttachment",
         "metadata": {"name": scene.name},
         "spec": {"attacher": world.driver.name, "nodeName": "node-1",
                  "source": {"persistentVolumeName": volume}}}
    )  # fmt: skip
    yield
    scene.delete("a")

    def is_told():
        assert scene.volumes(), "deleted while a node holds it"
        events = world.api.events_of("default", volume)
        return any("still attached" in one["message"] for one in events)

    yield is_told
    world.api.delete(f"/apis/{STORAGE}/v1/volumeattachments/{scene.name}")
    scene.wait_gone()


def copies(world):
    maps = f"/api/v1/namespaces/{RECORDS}/configmaps"
    return world.api.items(maps, labelSelector="csi-fleet.io/intent")


def slow_attempts(world, scene):
    return {"method": "CreateVolume", "code": "UNAVAILABLE", "delay_seconds": 3}


def memory_of_attempts(world, scene):
    """Without the intent copy, a crash together with a loss of Redis could leak the volume."""
    yield
    world.driver.set_rules(slow_attempts(world, scene))
    scene.claim("a", scene.storage_class(world.driver.name))
    yield lambda: copies(world)
    world.driver.set_rules()
    scene.wait_bound()


def attempt_of_a_deleted_claim(world, scene):
    """Redis has lost its data, so only the ConfigMap records the call."""
    world.driver.set_rules(slow_attempts(world, scene))
    scene.claim("a", scene.storage_class(world.driver.name))
    wait_until(lambda: copies(world), 30, "the attempt is remembered")
    scene.delete("a")
    wait_until(lambda: scene.get("a") is None, 30, "the claim is gone")
    # A running reconcile would restore the intent in Redis, and finish the attempt itself.
    world.parts.stop("worker")
    yield
    world.driver.set_rules()
    world.start_main_worker(wait=False)
    # The copy is deleted when the PV is saved. As the claim is gone, the PV is deleted afterwards.
    yield lambda: not copies(world)
    wait_until(lambda: world.driver.volumes() == {}, 30, "the volume is deleted")


def told_failure(world, scene):
    yield
    world.driver.set_rules({"method": "CreateVolume", "code": "INVALID_ARGUMENT", "message": "no"})
    scene.claim("a", scene.storage_class(world.driver.name))
    yield lambda: any("Failed" in one["reason"] for one in scene.events("a"))


def secrets(world, scene):
    scene.secret("login", password=base64.b64encode(b"s").decode())
    prefix = "csi.storage.k8s.io/provisioner-secret-"
    parameters = {f"{prefix}name": "login", f"{prefix}namespace": scene.namespace}
    storage_class = scene.storage_class(world.driver.name, parameters=parameters)
    yield
    scene.claim("a", storage_class)
    yield lambda: is_bound(scene, "a")


def attributes_class(world, scene):
    world.api.create(
        {"apiVersion": f"{STORAGE}/v1", "kind": "VolumeAttributesClass",
         "metadata": {"name": scene.name}, "driverName": world.driver.name,
         "parameters": {"a": "b"}}
    )  # fmt: skip
    yield
    storage_class = scene.storage_class(world.driver.name)
    scene.claim("a", storage_class, volumeAttributesClassName=scene.name)
    yield lambda: is_bound(scene, "a")


def restoring(world, scene):
    """A grant allows the restore from a snapshot of another namespace."""
    storage_class = scene.storage_class(world.driver.name)
    scene.claim("origin", storage_class)
    scene.wait_bound()
    handle = scene.volume_of(scene.get("origin"))["spec"]["csi"]["volumeHandle"]
    other = Scene(world.api)
    add_snapshot(other, world.driver, make_snapshot(world.driver, handle))
    target = {"group": SNAPSHOT, "kind": "VolumeSnapshot", "name": "snap"}
    origin = {"group": "", "kind": "PersistentVolumeClaim", "namespace": scene.namespace}
    world.api.create(
        {"apiVersion": f"{GRANTS}/v1beta1", "kind": "ReferenceGrant",
         "metadata": {"name": "grant", "namespace": other.namespace},
         "spec": {"from": [origin], "to": [target]}}
    )  # fmt: skip
    yield
    source = {"apiGroup": SNAPSHOT, "kind": "VolumeSnapshot", "name": "snap",
              "namespace": other.namespace}  # fmt: skip
    scene.claim("a", storage_class, dataSourceRef=source)
    yield lambda: is_bound(scene, "a")
    other.clean_up()


def sizes(world, storage_class):
    path = f"/apis/{STORAGE}/v1/namespaces/{NAMESPACE}/csistoragecapacities"
    return [one for one in world.api.items(path) if one["storageClassName"] == storage_class]


def capacity(world, scene):
    yield
    late = scene.storage_class(world.driver.name, volumeBindingMode="WaitForFirstConsumer")
    yield lambda: sizes(world, late)


def capacity_that_somebody_deletes(world, scene):
    """A deleted object is created again at once.

    If no watcher saw the deletion, the next poll creates it.
    """
    late = {
        name: scene.storage_class(world.driver.name, name, volumeBindingMode="WaitForFirstConsumer")
        for name in ("before", "after")
    }
    old = {}
    for name, storage_class in late.items():
        wait_until(lambda one=storage_class: sizes(world, one), 30, "capacity is published")
        old[name] = sizes(world, storage_class)[0]["metadata"]["name"]

    def delete(name):
        collection = f"/apis/{STORAGE}/v1/namespaces/{NAMESPACE}/csistoragecapacities"
        world.api.delete(f"{collection}/{old.pop(name)}")

    yield
    delete("before")
    resource = ("watcher", STORAGE, "csistoragecapacities")
    watched = world.watches(*resource)

    def is_made_again():
        # Delete the second object only once the restarted watcher watches.
        if "after" in old and world.watches(*resource) > watched:
            delete("after")
        return sizes(world, late["before"]) or ("after" not in old and sizes(world, late["after"]))

    yield is_made_again


def owner_of_capacity(world, scene):
    """A worker that cannot find the owner of its capacity objects logs this and exits."""
    yield
    world.start_worker(scene.name, wait=False)

    def is_at_work():
        if not world.parts.processes[scene.name].is_running():
            assert "look up owner" in world.parts.log_text(scene.name)
            world.start_worker(scene.name, wait=False)
        return world.is_ready(scene.name)

    yield is_at_work
    world.parts.stop(scene.name)


def lease(world, scene):
    path = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases"
    wait_until(lambda: world.api.items(path), 30, "a Lease exists")
    yield
    seen = world.api.items(path)[0]["spec"]["renewTime"]
    yield lambda: world.api.items(path)[0]["spec"]["renewTime"] != seen


ROWS = [
    ("watcher", "", "persistentvolumeclaims", binding),
    ("watcher", "", "persistentvolumes", deletion),
    ("watcher", STORAGE, "storageclasses", binding),
    ("watcher", "", "nodes", new_node),
    ("watcher", STORAGE, "csinodes", new_node),
    ("watcher", STORAGE, "volumeattachments", attached_volume),
    ("watcher", "", "configmaps", attempt_of_a_deleted_claim),
    ("watcher", STORAGE, "csistoragecapacities", capacity_that_somebody_deletes),
    ("worker", "", "persistentvolumeclaims", binding),
    ("worker", "", "persistentvolumes", binding),
    ("worker", STORAGE, "storageclasses", deletion_without_class),
    ("worker", "", "events", told_failure),
    ("worker", "", "secrets", secrets),
    ("worker", STORAGE, "volumeattributesclasses", attributes_class),
    ("worker", SNAPSHOT, "volumesnapshots", restoring),
    ("worker", SNAPSHOT, "volumesnapshotcontents", restoring),
    ("worker", GRANTS, "referencegrants", restoring),
    ("worker", "", "configmaps", memory_of_attempts),
    ("worker", STORAGE, "csistoragecapacities", capacity),
    ("worker", "", "pods", owner_of_capacity),
    ("worker", "apps", "replicasets", owner_of_capacity),
    ("worker", "coordination.k8s.io", "leases", lease),
]


def test_every_right_of_the_manifests_has_a_row():
    given = {(one.account, one.group, one.resource) for one in rights(manifests())}
    given.remove(("worker", "csi-fleet.io", "drivers"))  # only the admission policy asks for it
    assert given == {row[:3] for row in ROWS}


@pytest.mark.parametrize(
    ("account", "group", "resource", "scenario"),
    [pytest.param(*row, id=f"{row[0]} without {row[2]}") for row in ROWS],
)
def test_without_the_right_its_feature_stands_still(
    world, scene, account, group, resource, scenario
):
    steps = scenario(world, scene)
    next(steps)
    before = world.refusals(account, group, resource)
    try:
        world.take_away(account, group, resource)
        if account == "watcher":
            # The watcher loses everything that it saw earlier, as if it had never had the
            # permission.
            world.parts.stop("watcher")
            if resource != "csistoragecapacities":
                world.lose_redis_data()
            world.start_watcher(wait=False)
        is_done = next(steps)
        wait_until(
            lambda: world.refusals(account, group, resource) > before, 60, "the API server refuses"
        )
        assert not is_done()
    finally:
        world.give_back()
        if account == "watcher":
            world.parts.stop("watcher")
            world.start_watcher()
    wait_until(is_done, 90, "the feature works again")
    world.driver.set_rules()
    for _ in steps:
        pass

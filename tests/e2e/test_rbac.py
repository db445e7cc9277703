"""The permissions in k8s/: watcher and worker use tokens of their own accounts, with RBAC enabled.

They suffice: every feature works and no request is refused. They are needed: the audit log shows
that each permission is used, and without those of the main flow work stops. They are minimal: what
the API server grants to an account equals the table below, to the last verb.
"""

from __future__ import annotations

import base64
import uuid

import pytest

from tests.support.components import Components
from tests.support.controlplane import ControlPlane
from tests.support.csi_driver import DirectoryDriver
from tests.support.fleet import Scene
from tests.support.kube_api import KubeApi, KubeApiError
from tests.support.secure_redis import SecureRedis
from tests.support.shipped import (
    EVERYBODY,
    NAMESPACE,
    RECORDS,
    Right,
    audited,
    install,
    kubeconfig_for,
    manifests,
    rights,
)
from tests.support.snapshots import GROUP as SNAPSHOT
from tests.support.snapshots import add_snapshot, make_snapshot
from tests.support.tool import Tool
from tests.support.waiting import wait_until

STORAGE = "storage.k8s.io"
TABLE = [
    # account, namespace, group, resource, verbs
    ("watcher", "", "", "persistentvolumeclaims", "list watch"),
    ("watcher", "", "", "persistentvolumes", "list watch"),
    ("watcher", "", STORAGE, "storageclasses", "list watch"),
    ("watcher", "", "", "nodes", "list watch"),
    ("watcher", "", STORAGE, "csinodes", "list watch"),
    ("watcher", "", STORAGE, "volumeattachments", "list watch"),
    ("watcher", RECORDS, "", "configmaps", "list get patch"),
    ("watcher", NAMESPACE, STORAGE, "csistoragecapacities", "list watch"),
    ("worker", "", "", "persistentvolumeclaims", "get list watch update"),
    ("worker", "", "", "persistentvolumes", "get list create patch delete"),
    ("worker", "", STORAGE, "storageclasses", "get"),
    ("worker", "", "", "events", "create patch"),
    ("worker", "", "", "secrets", "get"),
    ("worker", "", STORAGE, "volumeattributesclasses", "get"),
    ("worker", "", SNAPSHOT, "volumesnapshots", "get list update"),
    ("worker", "", SNAPSHOT, "volumesnapshotcontents", "get"),
    ("worker", "", "gateway.networking.k8s.io", "referencegrants", "list"),
    ("worker", RECORDS, "", "configmaps", "get create patch delete"),
    ("worker", NAMESPACE, STORAGE, "csistoragecapacities", "get list create update delete"),
    ("worker", NAMESPACE, "", "pods", "get"),
    ("worker", NAMESPACE, "apps", "replicasets", "get"),
    ("worker", NAMESPACE, "coordination.k8s.io", "leases", "get create update"),
]
ALLOWED = {
    Right(account, namespace, group, resource, verb)
    for account, namespace, group, resource, verbs in TABLE
    for verb in verbs.split()
}
# The admission policy asks RBAC for this verb; our code does not (see tests/e2e/test_attacks.py).
FOR_THE_POLICY = {
    Right("worker", "", "csi-fleet.io", "drivers", verb) for verb in ("serve", "confine")
}
CAPABILITIES = (
    "CONTROLLER_SERVICE,CREATE_DELETE_VOLUME,LIST_VOLUMES,GET_CAPACITY,CREATE_DELETE_SNAPSHOT,"
    "CLONE_VOLUME,MODIFY_VOLUME,PUBLISH_UNPUBLISH_VOLUME"
)
GATES = "--feature-gates=CrossNamespaceVolumeDataSource=true"
ZONE = "zone.csi.example.org"


@pytest.fixture(scope="module")
def plane(tmp_path_factory):
    with ControlPlane(tmp_path_factory.mktemp("plane"), audit_log=True) as plane:
        yield plane


@pytest.fixture(scope="module")
def api(plane):
    with plane.api() as api:
        install(api)
        yield api


@pytest.fixture
def scene(api):
    scene = Scene(api)
    yield scene
    scene.clean_up()


@pytest.fixture(scope="module")
def driver():
    with DirectoryDriver(
        arguments=[f"--capabilities={CAPABILITIES}", f"--topology={ZONE}=a"]
    ) as driver:
        yield driver


@pytest.fixture(scope="module")
def pod(api, driver):
    """The worker's pod and ReplicaSet, which own capacity, and a node with the driver."""
    meta = {"name": "worker-1", "namespace": NAMESPACE, "labels": {"app": "worker"}}
    container = {"name": "worker", "image": "csi-fleet"}
    template = {"metadata": {"labels": {"app": "worker"}}, "spec": {"containers": [container]}}
    owner = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "worker", "uid": "u-1",
             "controller": True}  # fmt: skip
    sets = api.create(
        {
            "apiVersion": "apps/v1",
            "kind": "ReplicaSet",
            "metadata": {**meta, "name": "worker", "ownerReferences": [owner]},
            "spec": {"replicas": 0, "selector": {"matchLabels": {"app": "worker"}},
                     "template": template},
        }
    )  # fmt: skip
    reference = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "worker",
                 "uid": sets["metadata"]["uid"], "controller": True}  # fmt: skip
    api.create(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {**meta, "ownerReferences": [reference]},
            "spec": {"containers": [container]},
        }
    )
    node = api.create(
        {"apiVersion": "v1", "kind": "Node",
         "metadata": {"name": "node-1", "labels": {ZONE: "a"}}}
    )  # fmt: skip
    assert node["metadata"]["name"] == "node-1"
    api.create(
        {
            "apiVersion": "storage.k8s.io/v1",
            "kind": "CSINode",
            "metadata": {"name": "node-1"},
            "spec": {"drivers": [{"name": driver.name, "nodeID": "n", "topologyKeys": [ZONE]}]},
        }
    )
    return meta["name"]


@pytest.fixture(scope="module")
def redis(redis_binary, tmp_path_factory):
    server = SecureRedis(redis_binary, tmp_path_factory.mktemp("redis")).start()
    yield server
    server.stop()


@pytest.fixture(scope="module")
def parts(plane, pod, driver, redis, tmp_path_factory):
    """Run watcher and worker with the permissions of their accounts and of their Redis users."""
    with Components(tmp_path_factory.mktemp("parts"), redis) as parts:
        parts.start("watcher", kubeconfig_for(plane, "watcher"), f"--namespace={RECORDS}")
        parts.start(
            "worker",
            kubeconfig_for(plane, "worker"),
            f"--csi-address={driver.address}",
            f"--namespace={RECORDS}",
            "--retry-interval-start=200ms",
            "--retry-interval-max=1s",
            "--timeout=8s",
            "--enable-capacity",
            "--capacity-ownerref-level=2",
            # Only events cause a refresh here, not the poll that reads everything again.
            "--capacity-poll-interval=1h",
            "--snapshot-orphan-sweep-interval=2s",
            "--leader-election",
            f"--leader-election-namespace={NAMESPACE}",
            GATES,
            POD_NAME=pod,
            NAMESPACE=NAMESPACE,
        )
        yield parts


@pytest.fixture(autouse=True)
def well_behaved(driver):
    yield
    driver.set_rules()


def test_claims_with_secrets_and_attributes_class(parts, scene, driver):
    scene.secret("login", password=base64.b64encode(b"s").decode())
    attributes = f"gold-{uuid.uuid4().hex[:6]}"
    scene.api.create(
        {"apiVersion": "storage.k8s.io/v1", "kind": "VolumeAttributesClass",
         "metadata": {"name": attributes}, "driverName": driver.name, "parameters": {"a": "b"}}
    )  # fmt: skip
    prefix = "csi.storage.k8s.io/provisioner-secret-"
    storage_class = scene.storage_class(
        driver.name,
        parameters={f"{prefix}name": "login", f"{prefix}namespace": scene.namespace},
    )
    scene.claim("a", storage_class, volumeAttributesClassName=attributes)
    scene.wait_bound()
    assert driver.calls("CreateVolume")[-1].secrets_arrived
    scene.delete("a")
    scene.wait_gone()


def test_clones_and_their_protection(parts, scene, driver):
    storage_class = scene.storage_class(driver.name)
    scene.claim("source", storage_class)
    scene.wait_bound()
    scene.claim("clone", storage_class, dataSource={"kind": "PersistentVolumeClaim",
                                                    "name": "source"})  # fmt: skip
    scene.wait_bound()
    wait_until(
        lambda: not any("clone" in one for one in scene.get("source")["metadata"]["finalizers"]),
        30,
        "the source is free again",
    )


def test_restores_from_a_snapshot_of_another_namespace(parts, scene, driver):
    """The worker reads snapshot, content and grant; later it removes the source finalizer."""
    storage_class = scene.storage_class(driver.name)
    scene.claim("origin", storage_class)
    scene.wait_bound()
    handle = scene.volume_of(scene.get("origin"))["spec"]["csi"]["volumeHandle"]
    snapshot_id = make_snapshot(driver, handle)
    other = Scene(scene.api)
    try:
        path = add_snapshot(other, driver, snapshot_id)
        grant(other, scene.namespace)
        source = {"apiGroup": SNAPSHOT, "kind": "VolumeSnapshot", "name": "snap",
                  "namespace": other.namespace}  # fmt: skip
        scene.claim("restored", storage_class, dataSourceRef=source)
        scene.claim("waits", storage_class, size="900000Gi", dataSourceRef=source)
        scene.wait_bound("restored")
        scene.delete("waits")
        wait_until(
            lambda: not scene.api.get(path)["metadata"].get("finalizers"), 60, "finalizer is gone"
        )
    finally:
        other.clean_up()


def grant(scene, namespace):
    scene.api.create(
        {
            "apiVersion": "gateway.networking.k8s.io/v1beta1",
            "kind": "ReferenceGrant",
            "metadata": {"name": "grant", "namespace": scene.namespace},
            "spec": {
                "from": [{"group": "", "kind": "PersistentVolumeClaim", "namespace": namespace}],
                "to": [{"group": SNAPSHOT, "kind": "VolumeSnapshot", "name": "snap"}],
            },
        }
    )


def test_slow_attempts_leave_and_remove_their_record(parts, scene, driver):
    driver.set_rules({"method": "CreateVolume", "delay_seconds": 4, "times": 1})
    scene.claim("slow", scene.storage_class(driver.name))
    maps = f"/api/v1/namespaces/{RECORDS}/configmaps"

    def copies():
        return scene.api.items(maps, labelSelector="csi-fleet.io/intent")

    wait_until(copies, 20, "the record exists")
    scene.wait_bound()
    wait_until(lambda: not copies(), 20, "the record is gone")


def test_a_claim_deleted_after_a_final_error_gets_its_last_call(parts, scene, driver):
    """The claim had no volume when it was deleted and no PV holds one, so its intent is trusted."""
    # Slow, so that the claim is deleted while a call runs that will fail.
    slow = {"method": "CreateVolume", "code": "INTERNAL", "message": "no", "delay_seconds": 5}
    driver.set_rules(slow)
    claim = scene.claim("lost", scene.storage_class(driver.name))
    wait_until(lambda: any("no" in one["message"] for one in scene.events("lost")), 30, "it failed")
    calls = len(driver.calls("CreateVolume"))
    wait_until(lambda: len(driver.calls("CreateVolume")) > calls, 30, "the next call runs")
    scene.delete("lost")
    driver.set_rules()
    name = f"pvc-{claim['metadata']['uid']}"
    wait_until(lambda: driver.calls("CreateVolume")[-1].code == "OK", 60, "the last call")
    wait_until(lambda: scene.volume(name) is None, 60, "what it found is deleted")


def test_failures_are_told_once_and_counted(parts, scene, driver):
    driver.set_rules({"method": "CreateVolume", "code": "INVALID_ARGUMENT", "message": "no"})
    scene.claim("bad", scene.storage_class(driver.name))
    wait_until(lambda: any(one.get("count", 1) > 1 for one in scene.events("bad")), 30, "counted")


def test_no_room_on_the_node_gives_the_claim_back(parts, scene, driver):
    driver.set_rules({"method": "CreateVolume", "code": "RESOURCE_EXHAUSTED", "times": 1})
    late = scene.storage_class(driver.name, volumeBindingMode="WaitForFirstConsumer")
    scene.claim("late", late)
    scene.select_node("late", "node-1")
    wait_until(
        lambda: (
            "volume.kubernetes.io/selected-node"
            not in scene.get("late")["metadata"].get("annotations", {})
        ),
        30,
        "the node is given back",
    )


def test_capacity_is_published_kept_right_and_removed(parts, scene, driver):
    """A new volume changes the capacity.

    Another client changed the object meanwhile, so it is read again before the update.
    """
    late = scene.storage_class(driver.name, "late", volumeBindingMode="WaitForFirstConsumer")
    path = f"/apis/{STORAGE}/v1/namespaces/{NAMESPACE}/csistoragecapacities"

    def published():
        return [one for one in scene.api.items(path) if one["storageClassName"] == late]

    (found,) = wait_until(published, 30, "capacity is published")
    name = found["metadata"]["name"]
    scene.api.patch(f"{path}/{name}", {"metadata": {"annotations": {"somebody": "else"}}})
    driver.set_capacity(total_bytes=2**33)
    scene.claim("a", late)
    scene.select_node("a", "node-1")
    wait_until(lambda: published()[0]["capacity"] != found["capacity"], 30, "capacity is updated")
    assert published()[0]["metadata"]["annotations"] == {"somebody": "else"}
    scene.delete_class(late)
    wait_until(lambda: not published(), 30, "capacity is removed")


def test_deletion_looks_for_the_class_of_an_older_provisioners_volume(parts, scene, driver):
    """The volume names no deletion secret, so the worker reads its class, which may be gone."""
    storage_class = scene.storage_class(driver.name)
    scene.claim("a", storage_class)
    scene.wait_bound()
    (volume,) = scene.volumes()
    prefix = "volume.kubernetes.io/provisioner-deletion-secret-"
    nothing = {f"{prefix}name": None, f"{prefix}namespace": None}
    path = f"/api/v1/persistentvolumes/{volume['metadata']['name']}"
    scene.api.patch(path, {"metadata": {"annotations": nothing}})
    scene.delete_class(storage_class)
    scene.delete("a")
    scene.wait_gone()


def test_a_watchers_account_writes_pauses_and_no_other_record(plane, api):
    """`kubectl csi-fleet pause` runs in a watcher's pod; the manifests create the ConfigMap."""
    path = f"/api/v1/namespaces/{RECORDS}/configmaps"
    for name in ("csi-fleet-pauses", "another"):
        api.create(
            {"apiVersion": "v1", "kind": "ConfigMap",
             "metadata": {"name": name, "namespace": RECORDS}}
        )  # fmt: skip
    tool = Tool(kubeconfig_for(plane, "watcher"), "")
    tool.ok("pause", "--driver=any.csi.example.org", f"--namespace={RECORDS}")
    assert "driver.any.csi.example.org" in api.get(f"{path}/csi-fleet-pauses")["data"]
    tool.ok("resume", "--driver=any.csi.example.org", f"--namespace={RECORDS}")
    with KubeApi(kubeconfig_for(plane, "watcher")) as own, pytest.raises(KubeApiError):
        own.patch(f"{path}/another", {"data": {"x": "y"}})


def test_a_watchers_account_lists_what_waits(plane, parts, redis, scene, driver):
    """`kubectl csi-fleet pending` and `explain namespace` run in a watcher's pod."""
    driver.set_rules({"method": "CreateVolume", "code": "INTERNAL", "message": "on fire"})
    scene.claim("sick", scene.storage_class(driver.name))
    scene.claim("lost", f"{scene.name}-of-nobody")
    scene.wait_event("sick", "on fire")
    tool = Tool(kubeconfig_for(plane, "watcher"), redis.url)
    tool.flags += redis.login("watcher")
    before = redis.denials()
    for words in (("pending", "-n", scene.namespace), ("explain", "namespace", scene.namespace)):
        found = tool.json(*words)
        waits = found.get("pending", found)
        assert {one["cause"] for one in waits["groups"]} == {"driver-error", "class-missing"}
        assert "persistentvolumeclaims" not in waits["not_looked_at"]
    assert redis.denials() == before


def test_a_lease_is_kept(parts, api):
    path = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases"
    first = wait_until(lambda: api.items(path), 30, "a Lease exists")[0]["spec"]["renewTime"]
    wait_until(lambda: api.items(path)[0]["spec"]["renewTime"] != first, 30, "it is renewed")


def test_roles_in_the_manifests_are_the_table():
    assert rights(manifests()) == ALLOWED | FOR_THE_POLICY


@pytest.mark.parametrize("account", ["watcher", "worker"])
@pytest.mark.parametrize("namespace", [NAMESPACE, RECORDS, "default", "kube-system"])
def test_api_server_grants_nothing_outside_the_table(plane, api, account, namespace):
    """SelfSubjectRulesReview returns the table and what every authenticated user is granted."""
    with KubeApi(kubeconfig_for(plane, account)) as own:
        review = own.create(
            {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectRulesReview",
             "metadata": {}, "spec": {"namespace": namespace}}
        )  # fmt: skip
    found = {
        (group, resource, verb)
        for rule in review["status"]["resourceRules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
        if resource not in EVERYBODY
    }
    wanted = {
        (one.group, one.resource, one.verb)
        for one in ALLOWED | FOR_THE_POLICY
        if one.account == account and one.namespace in {"", namespace}
    }
    assert found == wanted
    for rule in review["status"]["nonResourceRules"]:
        assert set(rule["verbs"]) == {"get"}, rule


def test_beat_flower_and_redis_may_nothing(plane, api):
    with KubeApi(kubeconfig_for(plane, "no-api")) as own:
        review = own.create(
            {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectRulesReview",
             "metadata": {}, "spec": {"namespace": NAMESPACE}}
        )  # fmt: skip
    resources = {r for rule in review["status"]["resourceRules"] for r in rule["resources"]}
    assert resources <= EVERYBODY


MAIN_FLOW = [
    pytest.param("watcher", "persistentvolumeclaims", "list watch", id="watcher sees claims"),
    pytest.param("worker", "persistentvolumeclaims", "get", id="worker reads claims"),
    pytest.param("worker", "persistentvolumes", "create", id="worker saves volumes"),
]


@pytest.mark.parametrize(("account", "resource", "verbs"), MAIN_FLOW)
def test_without_the_right_nothing_is_bound_and_with_it_all_goes_on(
    plane, api, parts, scene, driver, account, resource, verbs
):
    """The permission is removed and restored while the program runs; nothing is lost."""
    name = f"csi-fleet-{account}"
    path = f"/apis/rbac.authorization.k8s.io/v1/clusterroles/{name}"
    role = next(
        one for one in manifests()
        if one["kind"] == "ClusterRole" and one["metadata"]["name"] == name
    )  # fmt: skip
    rules = [dict(one) for one in role["rules"]]
    for rule in rules:
        if resource in rule["resources"]:
            rule["verbs"] = [one for one in rule["verbs"] if one not in verbs.split()]
    others = [{**one, "verbs": one["verbs"] or ["deletecollection"]} for one in rules]
    api.patch(path, {"rules": others})
    try:
        if account == "watcher":
            parts.stop("watcher")
            parts.start(
                "watcher", kubeconfig_for(plane, "watcher"), f"--namespace={RECORDS}",
                wait=False,
            )  # fmt: skip
        scene.claim("a", scene.storage_class(driver.name))
        refused = Right(account, "", "", resource, verbs.split()[0])

        def is_refused():
            return any(
                one._replace(namespace="") == refused for one in audited(plane, account)[403]
            )

        wait_until(is_refused, 30, "the API server refuses")
        assert scene.get("a")["status"]["phase"] == "Pending"
    finally:
        api.patch(path, {"rules": role["rules"]})
    scene.wait_bound(timeout_seconds=90)


@pytest.mark.last
@pytest.mark.parametrize("account", ["watcher", "worker"])
def test_every_right_is_used_and_no_other_is_asked_for(plane, api, parts, account):
    """Checks the audit log of all tests above.

    A permission that no request of this file used is superfluous; a refused request that no test
    provoked shows that one is missing.
    """
    by_code = audited(plane, account)
    used = set().union(*(asked for code, asked in by_code.items() if code < 400 or code == 404))
    mine = {one for one in ALLOWED if one.account == account}
    shapes = {one if one in mine else one._replace(namespace="") for one in used}
    assert mine - shapes == set()
    # One rule of the watcher covers both kinds. `pending` and `explain` report what they cannot
    # read.
    provoked = {
        "watcher": {(one, verb) for one in ("persistentvolumeclaims", "persistentvolumes")
                    for verb in ("list", "watch")}
        | {("configmaps", "patch"), ("namespaces", "get"), ("pods", "list"), ("events", "list")}
        | {(f"volume{one}s", "list") for one in
           ("snapshot", "snapshotcontent", "groupsnapshot", "groupsnapshotcontent")},
        "worker": {("persistentvolumeclaims", "get"), ("persistentvolumes", "create")},
    }[account]  # fmt: skip
    assert {(one.resource, one.verb) for one in by_code[403]} <= provoked

"""Checks what an attacker with the token of a csi-fleet component gets from a real API server.

All accounts, permissions and policies of k8s/ are installed; RBAC and admission are real. The
matrix compares what each account is allowed to do in each relevant namespace. The attacks then act
as the compromised worker of docs/security.md.
"""

from __future__ import annotations

import subprocess
import uuid
from contextlib import suppress
from pathlib import Path

import pytest
import yaml

from tests.support.attacked import (
    ATTACHMENTS,
    CONTENTS,
    HELD,
    MADE,
    SNAPSHOTS,
    VOLUMES,
    attachment,
    claim_body,
    claim_path,
    content,
    existing,
    made,
    merged,
    record,
    snapshot,
    volume,
)
from tests.support.fleet import environment, program
from tests.support.kube_api import KubeApi, KubeApiError
from tests.support.rights_table import ACCOUNTS, Grant, everything, granted, page
from tests.support.shipped import EVERYBODY, NAMESPACE, RECORDS
from tests.support.waiting import wait_until
from workers.controllers import catalogue
from workers.controllers.provisioner.spec import MOST_KEYS
from workers.migration.plugins import PLUGINS

SERVED, FOREIGN = "csi.example.org", "other.example.org"
POLICIES = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies"
GROUP_VERSION = "groupsnapshot.storage.k8s.io/v1"
RESTORED = "provisioner.storage.kubernetes.io/volumesnapshot-as-source-protection"
MAPS = f"/api/v1/namespaces/{RECORDS}/configmaps"
LABELS = [f"example.org/label-{number}" for number in range(MOST_KEYS)]
PLACES = [NAMESPACE, RECORDS, "csi-driver-example", "csi-driver-node-example", "default"]
# Every authenticated user is allowed to review its own permissions.


@pytest.fixture(scope="module")
def admin(kubeconfig):
    """Install everything of k8s/.

    It is removed afterwards, because other tests use this cluster too.
    """
    with KubeApi(kubeconfig) as api:
        for name in PLACES[:4]:
            api.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
        objects = everything()
        name_labels(objects)
        for item in objects:
            api.apply(item)
        yield api
        for path in MADE:
            api.delete(path)
            with suppress(KubeApiError):  # no worker removes our finalizers here
                api.patch(path, {"metadata": {"finalizers": None}})
        MADE.clear()
        for item in objects:
            if item["kind"] != "ServiceAccount":
                api.delete(f"{api._collection(item)}/{item['metadata']['name']}")


def name_labels(objects):
    """Add the labels that workers may copy to PVs to the policy (docs/claim-metadata.md)."""
    (policy,) = (one for one in objects if one["metadata"]["name"] == "csi-fleet-volumes"
                 and one["kind"] == "ValidatingAdmissionPolicy")  # fmt: skip
    variable = policy["spec"]["variables"][0]
    assert variable["name"] == "claimLabels"
    variable["expression"] = str(LABELS)


@pytest.fixture(scope="module")
def login(admin, kubeconfig, tmp_path_factory):
    """Return a function that opens the API with the real token of an account."""
    folder, opened = tmp_path_factory.mktemp("tokens"), {}

    def login(account):
        if account not in opened:
            opened[account] = KubeApi(kubeconfig_of(admin, kubeconfig, account, folder))
        return opened[account]

    yield login
    for one in opened.values():
        one.close()


def kubeconfig_of(admin, kubeconfig, account, folder):
    namespace, name = account
    path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token"
    token = admin.request("POST", path, {"spec": {"expirationSeconds": 3600}})["status"]["token"]
    config = yaml.safe_load(kubeconfig.read_text())
    config["users"] = [{"name": "taken", "user": {"token": token}}]
    for context in config["contexts"]:
        context["context"]["user"] = "taken"
    path = folder / f"{namespace}-{name}"
    path.write_text(yaml.safe_dump(config))
    return path


@pytest.fixture(scope="module")
def worker(admin, login):
    """Log in as central mode's worker, once RBAC and the policies are in force."""
    worker = login(ACCOUNTS["worker"])

    def is_held():
        # The API server compiles each policy shortly after storing it.
        refused = [
            refusal(worker, "POST", VOLUMES, volume("probe", FOREIGN)),
            refusal(worker, "POST", MAPS, record("probe", FOREIGN)),
            refusal(worker, "PATCH", f"{ATTACHMENTS}/{attachment(admin, FOREIGN)}", TOUCH),
            refusal(worker, "PATCH", claim_path(admin, FOREIGN), TOUCH),
            refusal(worker, "PATCH", f"{SNAPSHOTS}/{snapshot(admin, 'attack-alone')}", TOUCH),
        ]
        return all("csi-fleet" in one for one in refused)

    wait_until(is_held, 60, "the policies are in force")
    return worker


def refusal(api, verb, path, body=None, *, dry=True):
    """Return the API server's error message if it refuses the request, else ""."""
    kind = "application/merge-patch+json" if verb == "PATCH" else "application/json"
    params = {"dryRun": "All"} if dry else {}
    try:
        api.request(verb, path, body, content_type=kind, params=params)
    except KubeApiError as error:
        return str(error)
    return ""


TOUCH = {"metadata": {"finalizers": ["example.org/x"]}}
NOBODY = {"apiVersion": "v1", "kind": "ConfigMap", "name": "gone", "uid": "gone"}
IN_USE = "kubernetes.io/pvc-protection"
CLONED = "provisioner.storage.kubernetes.io/cloning-protection"


# The matrix.


@pytest.mark.parametrize("account", ACCOUNTS.values(), ids=ACCOUNTS)
def test_the_api_server_grants_what_the_manifests_say_and_nothing_else(login, account):
    """Compare the rules for all resources, verbs and names per namespace (SEC-2, SEC-3, SEC-5)."""
    known = granted(everything()).get(account, set())
    for namespace in PLACES:
        review = login(account).create(
            {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectRulesReview",
             "metadata": {}, "spec": {"namespace": namespace}}
        )  # fmt: skip
        found = {
            Grant("", group, resource, verb, name)
            for rule in review["status"]["resourceRules"]
            for group in rule["apiGroups"]
            for resource in rule["resources"]
            for verb in rule["verbs"]
            for name in rule.get("resourceNames") or [""]
            if resource not in EVERYBODY
        }
        wanted = {one._replace(namespace="") for one in known if one.namespace in {"", namespace}}
        assert found == wanted, namespace


def test_manifests_give_nothing_that_no_spec_asks_for():
    """Each cluster-wide permission is one that a controller's spec asks for."""
    asked = {
        (one.group, resource, verb)
        for spec in catalogue.SPECS
        for one in spec.permissions
        for resource in one.resources
        for verb in one.verbs
    }
    given = {
        (one.group, one.resource, one.verb)
        for account, grants in granted(everything()).items()
        if account != ACCOUNTS["snapshot-metadata"]  # no controller
        for one in grants
        if not one.namespace and one.group != "csi-fleet.io"
    }
    assert given <= asked
    assert ("", "secrets", "get") not in given


def test_the_page_shows_the_table():
    """docs/security.md contains the table that `python -m tests.support.rights_table` writes."""
    assert (Path(__file__).parents[2] / "docs/security.md").read_text() == page()


# The attacks.

MAKING = [
    pytest.param({"source": {"hostPath": {"path": "/"}}}, "hostPath", id="the node's root"),
    pytest.param({"source": {"local": {"path": "/dev"}}}, "local", id="a local path"),
    pytest.param({"source": {"nfs": {"server": "s", "path": "/"}}}, "nfs", id="nfs"),
    pytest.param({"driver": FOREIGN}, FOREIGN, id="another driver's volume"),
    pytest.param({"claimRef": None}, "for a claim", id="of no claim"),
    pytest.param({"made_by": FOREIGN}, "its own driver", id="in another's name"),
]


@pytest.mark.parametrize(("change", "words"), MAKING)
def test_sec_2_a_taken_worker_makes_no_volume_but_its_drivers(worker, change, words):
    """The API server refuses PVs of any other kind or driver, with or without Redis."""
    change = dict(change)
    body = volume("forged", change.pop("driver", SERVED), **change)
    if body["spec"].get("local"):
        term = {"matchExpressions": [{"key": "a", "operator": "In", "values": ["b"]}]}
        body["spec"]["nodeAffinity"] = {"required": {"nodeSelectorTerms": [term]}}
    assert words in refusal(worker, "POST", VOLUMES, body)


def test_volumes_of_its_driver_are_made(worker):
    assert refusal(worker, "POST", VOLUMES, volume("mine", SERVED)) == ""


@pytest.mark.parametrize("plugin", PLUGINS, ids=lambda one: one.source_field)
def test_a_volume_of_a_migrated_plugin_is_its_drivers(worker, plugin):
    """Each row of the policy's table equals the row of workers/migration (P-601)."""
    sources = {
        "gcePersistentDisk": {"pdName": "x"},
        "awsElasticBlockStore": {"volumeID": "x"},
        "cinder": {"volumeID": "x"},
        "azureDisk": {"diskName": "x", "diskURI": "/subscriptions/x", "kind": "Managed"},
        "azureFile": {"secretName": "x", "shareName": "x", "secretNamespace": "default"},
        "vsphereVolume": {"volumePath": "x"},
        "portworxVolume": {"volumeID": "x"},
    }
    body = volume("x", "", source={plugin.source_field: sources[plugin.source_field]})
    assert f"serve driver {plugin.driver_name}" in refusal(worker, "POST", VOLUMES, body)


CHANGES = [
    pytest.param({"spec": {"claimRef": {"name": "victim"}}}, id="another claim"),
    pytest.param({"spec": {"persistentVolumeReclaimPolicy": "Retain"}}, id="policy"),
    pytest.param({"spec": {"mountOptions": ["suid"]}}, id="mount options"),
    pytest.param({"metadata": {"labels": {"a": "b"}}}, id="labels"),
    # Kubernetes would then delete the volume, even a bound or retained one.
    pytest.param({"metadata": {"ownerReferences": [NOBODY]}}, id="an owner that is not there"),
    pytest.param({"metadata": {"finalizers": []}}, id="what protects it"),
    pytest.param(
        {"metadata": {"annotations": {
            "volume.kubernetes.io/provisioner-deletion-secret-name": "victim"}}},
        id="the secret of its deletion",
    ),
]  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
def test_sec_2_fields_that_are_not_a_workers_stay(admin, worker, change):
    name = existing(admin, SERVED)
    assert "csi-fleet: " in refusal(worker, "PATCH", f"{VOLUMES}/{name}", change)


def test_own_fields_of_own_volumes_change(admin, worker):
    """A worker may change the finalizers, the size and the resizer's annotation."""
    change = {
        "metadata": {
            "finalizers": ["kubernetes.io/pv-protection", "external-attacher/csi-example-org"],
            "annotations": {"volume.alpha.kubernetes.io/pre-resize-capacity": "1Gi"},
        },
        "spec": {"capacity": {"storage": "2Gi"}},
    }
    assert refusal(worker, "PATCH", f"{VOLUMES}/{existing(admin, SERVED)}", change) == ""


ONE, TWO, *_ = LABELS
RED, BLUE = {ONE: "red"}, {ONE: "blue"}


@pytest.mark.parametrize(
    ("driver", "before", "after", "words"),
    [
        pytest.param(SERVED, {}, RED, "", id="adds it"),
        pytest.param(SERVED, {**RED, "own": "x"}, BLUE, "", id="changes it"),
        pytest.param(SERVED, {**RED, TWO: "x"}, {ONE: None, TWO: "y"}, "", id="removes it"),
        pytest.param(SERVED, {}, dict.fromkeys(LABELS, "x" * 63), "", id="as many as allowed"),
        pytest.param(SERVED, {}, {**RED, "other": "b"}, "not a worker's", id="another one too"),
        pytest.param(
            SERVED, {"other": "b"}, {"other": "c"}, "not a worker's", id="changes another"
        ),
        pytest.param(
            SERVED, {"other": "b"}, {"other": None}, "not a worker's", id="removes another"
        ),
        pytest.param(FOREIGN, {}, RED, f"serve driver {FOREIGN}", id="of another driver"),
    ],
)
def test_a_worker_changes_the_named_labels_of_its_own_volumes(
    admin, worker, driver, before, after, words
):
    """The tenant chooses the labels' values, but only the operator chooses their names."""
    path = f"{VOLUMES}/{existing(admin, driver)}"
    current = admin.get(path)["metadata"].get("labels") or {}
    admin.patch(path, {"metadata": {"labels": dict.fromkeys(current) | before}})
    record = {"csi-fleet.io/claim-labels": ",".join(LABELS)}
    change = {"metadata": {"labels": after, "annotations": record}}
    found = refusal(worker, "PATCH", path, change)
    assert (words in found) if words else found == ""


@pytest.mark.parametrize("driver", [SERVED, FOREIGN])
def test_sec_2_no_living_volume_is_deleted(admin, worker, driver):
    words = "only released" if driver == SERVED else f"serve driver {FOREIGN}"
    assert words in refusal(worker, "DELETE", f"{VOLUMES}/{existing(admin, driver)}")


def test_sec_2_no_bound_volume_is_deleted(admin, worker):
    """Its reclaim policy is Delete, so only its phase protects it."""
    place = {"namespace": "default", "name": "attack-bound"}
    claim = claim_body(place["name"], SERVED)
    claim["spec"]["volumeName"] = place["name"]
    class_name = claim["spec"]["storageClassName"]
    made(admin, "/api/v1/namespaces/default/persistentvolumeclaims", claim)
    body = volume(place["name"], SERVED, claimRef=place, storageClassName=class_name)
    path = f"{VOLUMES}/{made(admin, VOLUMES, body)}"
    wait_until(lambda: admin.get(path)["status"].get("phase") == "Bound", 30, "it is bound")
    assert "only released" in refusal(worker, "DELETE", path)


def test_released_volumes_of_its_driver_are_deleted(admin, worker):
    """Kubernetes must notice first that the claim with this UID is gone."""
    name = made(admin, VOLUMES, volume("attack-released", SERVED))
    wait_until(lambda: refusal(worker, "DELETE", f"{VOLUMES}/{name}") == "", 30, "it may be")


@pytest.mark.parametrize(("path", "make"), [(ATTACHMENTS, attachment), (CONTENTS, content)])
def test_objects_of_other_drivers_stay_as_they_are(admin, worker, path, make):
    """A worker may change its own driver's objects, but not another driver's, nor their status."""
    own, foreign = make(admin, SERVED), make(admin, FOREIGN)
    assert refusal(worker, "PATCH", f"{path}/{own}", TOUCH) == ""
    assert f"serve driver {FOREIGN}" in refusal(worker, "PATCH", f"{path}/{foreign}", TOUCH)
    status = {"status": {"attached": False}} if path == ATTACHMENTS else {"status": {}}
    assert "csi-fleet" in refusal(worker, "PATCH", f"{path}/{foreign}/status", status)


@pytest.mark.parametrize(
    ("path", "make", "change"),
    [
        (ATTACHMENTS, attachment, {"metadata": {"ownerReferences": [NOBODY]}}),
        (CONTENTS, content, {"metadata": {"ownerReferences": [NOBODY]}}),
        (CONTENTS, content, {"spec": {"deletionPolicy": "Retain"}}),
    ],
)
def test_objects_of_its_driver_keep_what_is_not_a_workers(admin, worker, path, make, change):
    own = make(admin, SERVED)
    assert "stay as they are" in refusal(worker, "PATCH", f"{path}/{own}", change)


CLAIMS = [
    pytest.param(
        SERVED, {"metadata": {"finalizers": [IN_USE, CLONED]}}, "", id="protects a source"
    ),
    pytest.param(SERVED, {"metadata": {"finalizers": [CLONED]}}, "not a worker's", id="bares it"),
    pytest.param(SERVED, TOUCH, "not a worker's", id="holds it"),
    pytest.param(FOREIGN, TOUCH, f"not serve {FOREIGN}", id="another driver's"),
    pytest.param(SERVED, {"spec": {"volumeName": "x"}}, "its owner's", id="binds it"),
    pytest.param(SERVED, {"metadata": {"labels": {"a": "b"}}}, "not a worker's", id="labels"),
    pytest.param(
        SERVED,
        {"metadata": {"annotations": {"volume.kubernetes.io/storage-provisioner": "x"}}},
        "not a worker's",
        id="gives it away",
    ),
]


@pytest.mark.parametrize(("driver", "change", "words"), CLAIMS)
def test_claims_stay_their_owners(admin, worker, driver, change, words):
    found = refusal(worker, "PATCH", claim_path(admin, driver), change)
    assert (words in found) if words else found == ""


def test_no_worker_says_that_a_claim_is_lost(admin, worker):
    """A claim in phase Lost keeps its pods from starting.

    The policy also covers a claim that names no driver.
    """
    for driver in (SERVED, ""):
        path = claim_path(admin, driver)
        lost = {"status": {"phase": "Lost"}}
        assert "not a worker's" in refusal(worker, "PATCH", f"{path}/status", lost)
        bare = {"metadata": {"finalizers": []}}
        assert "not a worker's" in refusal(worker, "PATCH", path, bare)


# Snapshots name no driver: a worker in one driver's pod could otherwise reach the data of all
# others.
MISUSES = [
    pytest.param({"metadata": {"ownerReferences": [NOBODY]}}, "owners", id="gives it an owner"),
    pytest.param({"metadata": {"finalizers": HELD[1:]}}, "finalizers", id="bares it"),
    pytest.param({"metadata": {"labels": {"a": "b"}}}, "its owner's", id="labels it"),
    pytest.param(
        {"metadata": {"annotations": {"snapshot.storage.kubernetes.io/x": "y"}}},
        "its owner's",
        id="annotates it",
    ),
    pytest.param(
        {"spec": {"volumeSnapshotClassName": "other"}}, "its owner's", id="moves it to a class"
    ),
]


@pytest.mark.parametrize("account", ["worker", "beside a driver", "on each node"])
@pytest.mark.parametrize(("change", "words"), MISUSES)
def test_sec_2_snapshots_of_all_drivers_stay_their_owners(
    admin, worker, login, account, change, words
):
    api, path = login(ACCOUNTS[account]), f"{SNAPSHOTS}/{snapshot(admin, 'attack-alone')}"
    body = merged(api.get(path), change)
    assert words in refusal(api, "PUT", path, body)
    held = {"metadata": {"finalizers": [*HELD, RESTORED]}}
    assert refusal(api, "PUT", path, merged(api.get(path), held)) == ""


def test_sec_2_no_snapshot_is_deleted_but_a_groups(admin, worker):
    group = {**NOBODY, "apiVersion": GROUP_VERSION, "kind": "VolumeGroupSnapshot"}
    alone = snapshot(admin, "attack-alone")
    held = [*HELD, "snapshot.storage.kubernetes.io/volumesnapshot-in-group-protection"]
    member = snapshot(admin, "attack-member", ownerReferences=[group], finalizers=held)
    assert "members of groups" in refusal(worker, "DELETE", f"{SNAPSHOTS}/{alone}")
    assert refusal(worker, "DELETE", f"{SNAPSHOTS}/{member}") == ""


def test_sec_3_no_worker_reaches_the_configuration(admin, login):
    """No account reads or changes the configuration of Redis or the addresses of drivers."""
    for account in ACCOUNTS.values():
        for name in ("redis-config", "drivers"):
            path = f"/api/v1/namespaces/{NAMESPACE}/configmaps/{name}"
            for verb in ("GET", "PATCH", "DELETE"):
                body = {"data": {"x": "y"}} if verb == "PATCH" else None
                assert "forbidden" in refusal(login(account), verb, path, body)
        made_up = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "new"}}
        path = f"/api/v1/namespaces/{NAMESPACE}/configmaps"
        assert "forbidden" in refusal(login(account), "POST", path, made_up)


def test_sec_3_records_are_written_by_their_drivers_workers(admin, worker):
    """Forging or deleting another driver's intent copy would leak its volume.

    Pauses belong to operators.
    """
    made(admin, MAPS, record("theirs", FOREIGN))
    made(admin, MAPS, record("csi-fleet-pauses", ""))
    assert refusal(worker, "POST", MAPS, record("mine", SERVED)) == ""
    assert "does not serve" in refusal(worker, "POST", MAPS, record("forged", FOREIGN))
    for name in ("theirs", "csi-fleet-pauses"):
        stolen = {"metadata": {"annotations": {"csi-fleet.io/driver": SERVED}}}
        assert "does not serve" in refusal(worker, "PATCH", f"{MAPS}/{name}", stolen)
        assert "does not serve" in refusal(worker, "DELETE", f"{MAPS}/{name}")


def test_secrets_are_those_that_classes_name(admin, login, kubeconfig):
    """As shipped, a worker reads no Secret.

    With the output of `secret-roles` it reads, by name, the Secrets that the classes name.
    """
    worker = login(ACCOUNTS["worker"])
    place = f"vault-{uuid.uuid4().hex[:6]}"
    admin.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": place}})
    names = ("used", "other")
    for name in names:
        meta = {"name": name, "namespace": place}
        admin.create({"apiVersion": "v1", "kind": "Secret", "metadata": meta})
    prefix = "csi.storage.k8s.io/provisioner-secret"
    storage_class = {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {"name": place},
        "provisioner": f"{place}.example.org",
        "parameters": {f"{prefix}-name": "used", f"{prefix}-namespace": place},
    }
    admin.create(storage_class)
    paths = {name: f"/api/v1/namespaces/{place}/secrets/{name}" for name in names}
    passwords = f"/api/v1/namespaces/{NAMESPACE}/secrets/redis-passwords"
    assert all("forbidden" in refusal(worker, "GET", one) for one in (*paths.values(), passwords))
    text = subprocess.run(
        [*program(), "secret-roles", f"--driver={place}.example.org", f"--kubeconfig={kubeconfig}",
         "--account=csi-fleet/worker"],
        check=True, capture_output=True, text=True, env=environment(),
    ).stdout  # fmt: skip
    for item in yaml.safe_load_all(text):
        admin.apply(item)
    wait_until(lambda: refusal(worker, "GET", paths["used"]) == "", 30, "RBAC follows")
    assert "forbidden" in refusal(worker, "GET", paths["other"])
    assert "forbidden" in refusal(worker, "GET", f"/api/v1/namespaces/{place}/secrets")
    admin.delete(f"/apis/storage.k8s.io/v1/storageclasses/{place}")
    admin.delete(f"/api/v1/namespaces/{place}")


def test_an_administrator_is_not_held(admin, worker):
    body = volume("by-hand", FOREIGN, source={"hostPath": {"path": "/srv"}})
    assert refusal(admin, "POST", VOLUMES, body) == ""

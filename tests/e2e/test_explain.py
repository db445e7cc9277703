"""Checks the text of `csi-fleet explain` for each cause, on a real API server (issue 10)."""

from __future__ import annotations

import re

import pytest
import yaml

from tests.support.csi_driver import DirectoryDriver
from tests.support.fleet import Fleet
from tests.support.kube_api import KubeApiError
from tests.support.redis_server import RedisServer
from tests.support.tool import Tool
from tests.support.waiting import wait_until

LATE = {"volumeBindingMode": "WaitForFirstConsumer"}
ZONE = "zone.example.org/zone"
# No retry comes during a test, however slow the machine is.
FLAGS = ("--workers=1", "--worker-threads=2", "--timeout=60s", "--retry-interval-start=120s")


@pytest.fixture(scope="module")
def driver_of_file():
    with DirectoryDriver() as driver:
        yield driver


@pytest.fixture(scope="module")
def zoned():
    """A driver with topology."""
    with DirectoryDriver(arguments=["--topology", f"{ZONE}=z1"]) as driver:
        yield driver


@pytest.fixture
def driver(driver_of_file):
    yield driver_of_file
    driver_of_file.set_rules()


@pytest.fixture(scope="module")
def slow():
    """A driver for one test, slow enough to keep its two slots occupied."""
    with DirectoryDriver() as driver:
        driver.set_rules({"method": "CreateVolume", "delay_seconds": 40})
        yield driver


@pytest.fixture(scope="module")
def fleet(tmp_path_factory, kubeconfig, driver_of_file, zoned, slow):
    drivers = [driver_of_file, zoned, slow]
    with Fleet(tmp_path_factory.mktemp("fleet"), kubeconfig, drivers, *FLAGS) as fleet:
        yield fleet


@pytest.fixture
def tool(fleet, kubeconfig):
    return Tool(kubeconfig, fleet.redis_url)


@pytest.fixture
def plain(scene, driver):
    """A class of the driver that binds immediately."""
    return scene.storage_class(driver.name, "plain")


@pytest.fixture
def node(api, scene):
    """A node named after the scene, without a CSINode."""
    metadata = {"name": scene.name}
    api.create({"apiVersion": "v1", "kind": "Node", "metadata": metadata})
    yield scene.name
    for path in ("/apis/storage.k8s.io/v1/csinodes", "/api/v1/nodes"):
        if api.find(f"{path}/{scene.name}"):
            api.delete(f"{path}/{scene.name}")


def csi_node(api, name: str, driver: str, *keys: str) -> None:
    entry = {"name": driver, "nodeID": name, "topologyKeys": list(keys)}
    body = {"apiVersion": "storage.k8s.io/v1", "kind": "CSINode", "metadata": {"name": name}}
    api.create(body | {"spec": {"drivers": [entry]}})


def test_bound_with_the_timeline(tool, scene, plain, driver):
    """The timeline shows each step in order, and each RPC with its duration and code."""
    driver.set_rules({"method": "CreateVolume", "delay_seconds": 0.2})
    scene.claim("data", plain)
    scene.wait_bound("data")
    text = tool.explain("pvc", f"{scene.namespace}/data")
    uid = scene.get("data")["metadata"]["uid"]
    assert f"The claim is bound to volume pvc-{uid}." in text
    steps = [
        "claim created",
        "seen and queued",
        "taken by worker ",
        "attempt recorded, before the driver is called",
        "CreateVolume: OK in ",
        "PersistentVolume saved (201) in ",
        "result: provisioned",
        "claim bound",
    ]
    places = [text.find(step) for step in steps]
    assert -1 not in places, text
    assert places == sorted(places), text
    assert float(re.findall(r"CreateVolume: OK in (\S+) s", text)[0]) >= 0.2
    answer = tool.json("explain", "pvc", f"{scene.namespace}/data")
    assert (answer["cause"], answer["problem"]) == ("bound", False)
    times = [entry["at"] for entry in answer["timeline"]]
    assert times == sorted(times)
    assert f"The volume is bound to claim {scene.namespace}/data." in tool.explain(
        "pv", f"pvc-{uid}"
    )


def test_a_wrong_name_gets_a_hint(tool, scene, plain):
    """A name that does not exist gets a hint: claim, namespace, class or driver."""
    done = tool.run("explain", "pvc", f"{scene.namespace}/nothing")
    assert (done.returncode, done.stderr) == (1, "")
    assert f"There is no claim {scene.namespace}/nothing." in done.stdout
    done = tool.run("explain", "pvc", "nameonly")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "Run `csi-fleet explain pvc NAMESPACE/NAME`" in done.stderr
    name = scene.name
    scene.claim(name, plain)
    other = tool.run("explain", "pvc", f"default/{name}").stdout
    assert f"no claim default/{name}. A claim of this name is in {scene.namespace}." in other
    near = tool.run("explain", "pvc", f"{scene.namespace}/{name}s").stdout
    assert f'Did you mean "{name}"?' in near
    scene.claim("typo", f"{plain}x")
    assert f'Did you mean "{plain}"?' in tool.explain("pvc", f"{scene.namespace}/typo")
    for flag in ("--driver=dir-unknown.example.org", "--class=no-such-class"):
        done = tool.run("pause", flag)
        assert (done.returncode, done.stdout) == (1, "")
        assert "is unknown" in done.stderr or "does not exist" in done.stderr
        assert done.stderr.count("\n") == 1


def test_no_default_class_and_a_class_for_volumes_made_by_hand(tool, scene, api, fleet):
    body = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    claim = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "spec": body}
    api.create(claim | {"metadata": {"name": "plain", "namespace": scene.namespace}})
    text = tool.wait_cause("pvc", f"{scene.namespace}/plain", "no-class")
    assert "The claim names no storage class, and the cluster has no default class." in text
    scene.claim("static", scene.storage_class("kubernetes.io/no-provisioner", "static"))
    text = tool.wait_cause("pvc", f"{scene.namespace}/static", "static-class")
    assert "has no dynamic provisioning; it is for manually created volumes." in text


def test_redis_away_is_one_line(scene, plain, kubeconfig):
    scene.claim("data", plain)
    away = Tool(kubeconfig, "redis://127.0.0.1:1/0")
    done = away.run("explain", "pvc", f"{scene.namespace}/data")
    assert done.returncode == 1
    causes = (": redis-away\n", ": binding\n", ": bound\n")  # the claim may be bound meanwhile
    assert any(one in done.stdout for one in causes)
    assert done.stderr.count("\n") == 1
    for command in (["status"], ["failed"]):
        done = away.run(*command)
        assert done.returncode == 1
        assert done.stdout == ""
        assert done.stderr.count("\n") == 1
        assert "127.0.0.1:1" in done.stderr


@pytest.mark.parametrize(
    ("name", "cause", "said"),
    [
        ("", "no-class", "no storage class (the name is empty), so nothing is provisioned"),
        ("no-such-class", "class-missing", 'Storage class "no-such-class" does not exist.'),
    ],
)
def test_a_class_that_is_not_there(tool, scene, fleet, name, cause, said):
    scene.claim("data", name)
    assert said in tool.wait_cause("pvc", f"{scene.namespace}/data", cause)


def test_unknown_provisioner(tool, scene, driver):
    scene.claim("data", scene.storage_class("nobody.example.org"))
    text = tool.wait_cause("pvc", f"{scene.namespace}/data", "unknown-provisioner")
    assert 'Provisioner "nobody.example.org" is unknown' in text
    assert "Drivers served now: " in text
    assert driver.name in text


def test_driver_installed_but_not_registered(tool, scene, api, fleet):
    name = f"{scene.name}.example.org"
    api.create({"apiVersion": "storage.k8s.io/v1", "kind": "CSIDriver", "metadata": {"name": name}})
    try:
        scene.claim("data", scene.storage_class(name))
        text = tool.wait_cause("pvc", f"{scene.namespace}/data", "driver-not-registered")
        assert f'Driver "{name}" is not served: no worker is connected to it.' in text
    finally:
        api.delete(f"/apis/storage.k8s.io/v1/csidrivers/{name}")


def test_waits_for_first_consumer(tool, scene, driver, fleet):
    scene.claim("data", scene.storage_class(driver.name, "late", **LATE))
    text = tool.wait_cause("pvc", f"{scene.namespace}/data", "waits-for-consumer")
    assert "delays binding, and no pod uses the claim yet." in text
    assert "-> Start a pod that mounts the claim." in text


def test_pod_without_a_node(tool, scene, driver, api, fleet):
    scene.claim("data", scene.storage_class(driver.name, "late", **LATE))
    api.create({"apiVersion": "v1", "kind": "ServiceAccount",
                "metadata": {"name": "own", "namespace": scene.namespace}})  # fmt: skip
    volume = {"name": "v", "persistentVolumeClaim": {"claimName": "data"}}
    spec = {
        "serviceAccountName": "own",
        "automountServiceAccountToken": False,
        "containers": [{"name": "c", "image": "none"}],
        "volumes": [volume],
    }
    metadata = {"name": "reader", "namespace": scene.namespace}
    api.create({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
    text = tool.wait_cause("pvc", f"{scene.namespace}/data", "waits-for-consumer")
    assert "pod reader uses it, but the scheduler has not chosen a node for the pod." in text


def test_a_node_that_does_not_do_gives_the_claim_back(tool, scene, zoned, api, node):
    """The claim is given back if the node has no CSINode, driver or topology label."""
    name = f"{scene.namespace}/data"
    scene.claim("data", scene.storage_class(zoned.name, "late", **LATE))
    given_back = "Provisioning failed for the node that the scheduler chose"
    scene.select_node("data", node)
    text = tool.wait_cause("pvc", name, "rescheduled")
    assert given_back in text
    assert f'csinode.storage.k8s.io "{node}" not found' in text
    csi_node(api, node, "other.example.org", ZONE)
    scene.select_node("data", node)
    wait_until(lambda: "CSINode" in explained(tool, name), 20, "the driver is missing there")
    api.delete(f"/apis/storage.k8s.io/v1/csinodes/{node}")
    csi_node(api, node, zoned.name, ZONE)
    scene.select_node("data", node)
    wait_until(lambda: ZONE in explained(tool, name), 20, "the node lacks the label")


def test_no_node_has_the_drivers_topology(tool, scene, zoned):
    scene.claim("data", scene.storage_class(zoned.name))
    text = tool.wait_cause("pvc", f"{scene.namespace}/data", "no-topology")
    assert f'No node announces topology for driver "{zoned.name}": ' in text
    assert "kubectl get csinodes" in text


def explained(tool, name: str) -> str:
    """Return only the sentence about the cause."""
    return tool.json("explain", "pvc", name)["text"]


def test_secret_missing(tool, scene, driver, fleet):
    prefix = "csi.storage.k8s.io/provisioner-secret"
    parameters = {f"{prefix}-name": "key", f"{prefix}-namespace": scene.namespace}
    scene.claim("data", scene.storage_class(driver.name, "secret", parameters=parameters))
    text = tool.wait_cause("pvc", f"{scene.namespace}/data", "secret-missing")
    assert f'The provisioner secret {scene.namespace}/key of class "{scene.name}-secret"' in text
    assert 'secrets "key" not found' in text


def test_selector(tool, scene, plain, fleet):
    scene.claim("data", plain, selector={"matchLabels": {"a": "b"}})
    text = tool.wait_cause("pvc", f"{scene.namespace}/data", "selector")
    assert "The claim has a selector" in text


def test_quota_used_up(tool, scene, plain, api, fleet):
    metadata = {"name": "few", "namespace": scene.namespace}
    hard = {"persistentvolumeclaims": "1"}
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": metadata}
    api.create({**quota, "spec": {"hard": hard}})
    path = f"/api/v1/namespaces/{scene.namespace}/resourcequotas/few"
    # The test writes the status, because its control plane may have no quota controller.
    api.patch(f"{path}/status", {"status": {"hard": hard, "used": dict.fromkeys(hard, "0")}})
    scene.claim("one", plain)
    with pytest.raises(KubeApiError, match="exceeded quota"):
        scene.claim("two", plain)
    text = tool.wait_cause("pvc", f"{scene.namespace}/two", "quota")
    assert "the namespace's ResourceQuota few is used up: persistentvolumeclaims 1 of 1" in text


def test_storage_full(tool, scene, plain, driver, fleet):
    driver.set_rules(
        {"method": "CreateVolume", "code": "RESOURCE_EXHAUSTED", "message": "pool p1 is full"}
    )
    scene.claim("data", plain)
    text = tool.wait_cause("pvc", f"{scene.namespace}/data", "storage-full")
    assert "The storage backend is full or its quota is used up: rpc error: " in text
    assert "desc = pool p1 is full" in text


def test_limit_queue_position_and_slow_driver(tool, scene, slow, fleet):
    plain = scene.storage_class(slow.name)
    for number in range(4):
        scene.claim(f"data-{number}", plain)

    def causes():
        found = {}
        for number in range(4):
            answer = tool.json("explain", "pvc", f"{scene.namespace}/data-{number}")
            found.setdefault(answer["cause"], []).append(answer["text"])
        counts = {cause: len(texts) for cause, texts in found.items()}
        if counts != {"driver-slow": 2, "limit-reached": 2}:
            raise AssertionError(found)
        return found

    found = wait_until(causes, 40, "two run and two wait")
    assert "The driver has been working on CreateVolume for " in found["driver-slow"][0]
    reached = "The driver's limit is reached: 2 of 2 tasks are running; position"
    assert {text.split(",")[0] for text in found["limit-reached"]} == {
        f"{reached} {place} of 2 among first attempts" for place in (1, 2)
    }


def test_paused_driver_and_resume(tool, scene, plain, driver, fleet):
    tool.ok("pause", f"--driver={driver.name}", "--reason=array upgrade", "--for=1h")
    try:
        scene.claim("data", plain)
        text = tool.wait_cause("pvc", f"{scene.namespace}/data", "paused")
        assert f'An operator paused driver "{driver.name}" until ' in text
        assert ": array upgrade." in text
        assert f"Run next:\n    csi-fleet resume --driver={driver.name}\n" in text
        assert re.search("paused until .*Z: array upgrade", tool.run("status").stdout)
    finally:
        tool.ok("resume", f"--driver={driver.name}")
    scene.wait_bound("data")


def test_paused_class(tool, scene, plain, driver, fleet):
    tool.ok("pause", f"--class={plain}", "--reason=audit")
    scene.claim("data", plain)
    text = tool.wait_cause("pvc", f"{scene.namespace}/data", "class-paused")
    assert "An operator paused the storage class: audit." in text
    tool.ok("resume", f"--class={plain}")
    scene.wait_bound("data")


def test_driver_error_back_off_failed_and_replay(tool, scene, plain, driver, fleet):
    driver.set_rules({"method": "CreateVolume", "code": "INTERNAL", "message": "disk on fire"})
    scene.claim("data", plain)
    text = tool.wait_cause("pvc", f"{scene.namespace}/data", "driver-error")
    assert "ago: rpc error: code = Internal desc = disk on fire" in text
    assert "Attempt 2 starts at " in text
    assert "error: rpc error: code = Internal desc = disk on fire" in text
    listed = tool.ok("failed", scene.namespace)
    assert f"claims  {scene.namespace}/data" in listed
    assert "disk on fire" in listed
    driver.set_rules()
    tool.ok("failed", scene.namespace, "--replay")
    scene.wait_bound("data")


def test_infeasible_then_retry(tool, scene, plain, driver, fleet):
    driver.set_rules(
        {"method": "CreateVolume", "code": "INVALID_ARGUMENT", "message": "no such tier"}
    )
    scene.claim("data", plain)
    name = f"{scene.namespace}/data"
    text = tool.wait_cause("pvc", name, "infeasible")
    assert "The driver reported that this request can never succeed" in text
    assert "no such tier" in text
    driver.set_rules()
    tool.ok("retry", "pvc", name)
    scene.wait_bound("data")


def test_api_server_refuses_the_volume(tool, scene, plain, api, fleet, driver):
    policies = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolic"
    rule = {
        "apiGroups": [""],
        "apiVersions": ["v1"],
        "operations": ["CREATE"],
        "resources": ["persistentvolumes"],
    }
    expression = (
        "!has(object.spec.claimRef) || object.spec.claimRef.namespace != "
        f"'{scene.namespace}' || object.metadata.name == 'allowed'"
    )
    kind = {"apiVersion": "admissionregistration.k8s.io/v1", "metadata": {"name": scene.name}}
    api.create(kind | {"kind": "ValidatingAdmissionPolicy", "spec": {
        "failurePolicy": "Fail",
        "matchConstraints": {"resourceRules": [rule]},
        "validations": [{"expression": expression, "message": "no volumes today"}],
    }})  # fmt: skip
    api.create(kind | {"kind": "ValidatingAdmissionPolicyBinding", "spec": {
        "policyName": scene.name, "validationActions": ["Deny"],
    }})  # fmt: skip
    probe = {"apiVersion": "v1", "kind": "PersistentVolume",
             "metadata": {"name": f"{scene.name}-probe"},
             "spec": {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"],
                      "claimRef": {"namespace": scene.namespace, "name": "x"},
                      "hostPath": {"path": "/none"}}}  # fmt: skip

    def is_refused():
        try:
            api.create(probe)
        except KubeApiError:
            return True
        api.delete(f"/api/v1/persistentvolumes/{scene.name}-probe")
        return False

    try:
        wait_until(is_refused, 30, "the policy works", interval_seconds=0.5)
        calls = len(driver.calls("CreateVolume"))
        scene.claim("data", plain)
        text = tool.wait_cause("pvc", f"{scene.namespace}/data", "save-refused")
        assert "the API server rejects its PersistentVolume" in text
        assert "no volumes today" in text
        report = tool.json("status")
        assert report["counts"]["unsaved_volumes"] == 1
        assert "1 volumes exist whose PV has not been saved" in report["problems"]
        assert len(driver.calls("CreateVolume")) == calls + 1
    finally:
        api.delete(f"{policies}ybindings/{scene.name}")
        api.delete(f"{policies}ies/{scene.name}")
    wait_until(lambda: not is_refused(), 30, "the policy is gone: a refused try has a long pause")
    tool.ok("retry", "pvc", f"{scene.namespace}/data")
    scene.wait_bound("data")


def test_a_volume_that_cannot_be_deleted(tool, scene, plain, driver, fleet):
    scene.claim("data", plain)
    scene.wait_bound("data")
    name = f"pvc-{scene.get('data')['metadata']['uid']}"
    driver.set_rules({"method": "DeleteVolume", "code": "INTERNAL", "message": "still mounted"})
    scene.delete("data")
    text = tool.wait_cause("pv", name, "driver-error")
    assert "The last deletion failed " in text
    assert "desc = still mounted" in text
    driver.set_rules()
    tool.ok("retry", "pv", name)
    scene.wait_gone()


def test_kept_volume_and_foreign_volume(tool, scene, driver, api, fleet):
    retained = scene.storage_class(driver.name, "kept", reclaimPolicy="Retain")
    scene.claim("data", retained)
    scene.wait_bound("data")
    name = f"pvc-{scene.get('data')['metadata']['uid']}"
    scene.delete("data")
    text = tool.wait_cause("pv", name, "kept")
    assert (
        "The volume's reclaim policy is Retain, so the volume is kept after its claim is deleted."
        in text
    )


def test_dead_driver_then_no_worker(tmp_path, scene, kubeconfig, redis_binary):
    """A dead driver is named as the cause; once no worker runs, that is the cause."""
    folder = tmp_path / "redis"
    folder.mkdir()
    own_redis = RedisServer(redis_binary, folder).start()
    try:
        own = Tool(kubeconfig, own_redis.url)
        with DirectoryDriver() as driver:
            plain = scene.storage_class(driver.name)
            with Fleet(tmp_path, kubeconfig, [driver], *FLAGS, redis_url=own_redis.url):
                driver.kill()
                scene.claim("data", plain)
                name = f"{scene.namespace}/data"
                text = own.wait_cause("pvc", name, "driver-lost")
                assert f'No worker is connected to driver "{driver.name}"' in text
                assert "-> Check the driver's pod and log." in text
        # If no worker runs, each `explain` advances the queue's clock by a second at most.
        text = own.wait_cause("pvc", name, "no-worker", 180)
        assert "No csi-fleet worker is running" in text
    finally:
        own_redis.kill()


def test_pending_groups_what_explain_explains(tool, scene, driver, fleet):
    """`pending` groups by cause with the words of `explain`, and filters by driver and namespace.

    `status` shows the driver as `failing`.
    """
    driver.set_rules({"method": "CreateVolume", "code": "INTERNAL", "message": "disk on fire"})
    for number in range(3):
        scene.claim(f"lost-{number}", "no-such-class-x")
    name = scene.storage_class(driver.name)
    for number in range(2):
        scene.claim(f"failing-{number}", name)
        tool.wait_cause("pvc", f"{scene.namespace}/failing-{number}", "driver-error")
    report = tool.json("pending", "-n", scene.namespace)
    found = {one["cause"]: one for one in report["groups"]}
    assert {name: one["count"] for name, one in found.items()} == {
        "class-missing": 3,
        "driver-error": 2,
    }
    assert report["apiVersion"] == "csi-fleet.io/v1"
    assert found["class-missing"]["move"] == "the cluster's administrator"
    assert found["driver-error"]["driver"] == driver.name
    text = tool.ok("pending", "-A", f"--driver={driver.name}")
    assert f"2 x driver-error, driver {driver.name}, oldest " in text
    assert "no-such-class-x" not in text
    assert f"-> csi-fleet explain pvc {scene.namespace}/failing-" in text
    assert tool.run("pending", f"--driver={driver.name}x").returncode == 1
    (line,) = (x for x in tool.run("status").stdout.splitlines() if x.startswith(driver.name))
    assert line.split()[1] == "failing"


def test_a_driver_a_class_and_a_namespace(tool, scene, plain, driver):
    driver.set_rules({"method": "CreateVolume", "code": "INTERNAL", "message": "on fire"})
    scene.claim("data", plain)
    tool.wait_cause("pvc", f"{scene.namespace}/data", "driver-error")
    for word, name in (("driver", driver.name), ("class", plain), ("namespace", scene.namespace)):
        text = tool.ok("explain", word, name)
        assert text.startswith(f"{word} {name}: driver-error\n"), text
        assert "on fire" in text
        assert f"such as: pvc {scene.namespace}/data" in text
    assert "The driver's workers run " in tool.ok("explain", "driver", driver.name)
    assert "There is no namespace nowhere" in tool.run("explain", "ns", "nowhere").stdout


def test_a_claim_that_is_deleted_while_its_volume_is_made(tool, scene, plain, driver):
    """`explain` shows the work until it ends, and its result for an hour."""
    driver.set_rules({"method": "CreateVolume", "delay_seconds": 25})
    scene.claim("short", plain)
    name = f"{scene.namespace}/short"
    wait_until(
        lambda: "the driver is called" in tool.explain("pvc", name), 30, "CreateVolume has begun"
    )
    scene.delete("short")
    wait_until(lambda: scene.get("short") is None, 20, "the claim is gone")
    text = tool.ok("explain", "pvc", name)
    assert f"pvc {name} was deleted, but csi-fleet is still working on volume pvc-" in text
    assert "attempt recorded, before the driver is called" in text
    text = tool.wait_cause("pvc", name, "gone")
    assert text.count("attempt recorded") == 1, "its copy is none"
    assert f"pvc {name} no longer exists. csi-fleet finished its work on it" in text
    assert "CreateVolume: OK in" in text


def test_a_support_bundle_has_the_cause_and_no_login(tool, scene, plain, driver):
    message = "login admin:hunter2-Xy7@array refused, password=hunter2-Xy7"
    driver.set_rules({"method": "CreateVolume", "code": "INTERNAL", "message": message})
    scene.claim("data", plain)
    tool.wait_cause("pvc", f"{scene.namespace}/data", "driver-error")
    text = tool.ok("support-bundle")
    found = yaml.safe_load(text)
    assert found["kind"] == "SupportBundle"
    assert "driver-error" in {one["cause"] for one in found["explained"]}
    assert {one["state"] for one in found["doctor"]} <= {"ok", "warn", "FAIL"}
    assert driver.name in found["drivers"]
    assert any("password=[hidden]" in one["text"] for one in found["explained"])
    assert "hunter2" not in text

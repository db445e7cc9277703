"""`csi-fleet audit`, `dry-run` and `doctor` on a real API server with a real driver."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
import yaml

from csi_client.connection import TlsFiles
from tests.support.certificates import make_ca, make_certificate
from tests.support.csi_driver import DirectoryDriver, create_request
from tests.support.fleet import Fleet, program
from tests.support.processes import free_port
from tests.support.snapshots import make_snapshot
from tests.support.tool import Tool
from tests.support.waiting import wait_until
from workers.queue.connection import connect
from workers.queue.intents import IntentStore
from workers.queue.keys import claim_key
from workers.queue.seal import Seal


@pytest.fixture(scope="module")
def driver_of_file():
    with DirectoryDriver() as driver:
        yield driver


@pytest.fixture
def driver(driver_of_file):
    yield driver_of_file
    driver_of_file.set_rules()


@pytest.fixture(scope="module")
def fleet(tmp_path_factory, kubeconfig, driver_of_file, redis_binary):
    flags = ["--timeout=30s", "--extra-create-metadata"]
    with Fleet(tmp_path_factory.mktemp("fleet"), kubeconfig, [driver_of_file], *flags) as fleet:
        yield fleet


@pytest.fixture
def tool(fleet, kubeconfig):
    return Tool(kubeconfig, fleet.redis_url)


def leak(driver) -> str:
    """Create a volume that belongs to no claim; return its id."""
    client = driver.client()
    try:
        return client.create_volume(create_request("leaked")).volume.volume_id
    finally:
        client.close()


def lose(driver, volume_id: str) -> None:
    """Delete a volume at the driver, without csi-fleet or Kubernetes noticing."""
    client = driver.client()
    try:
        client.delete_volume(volume_id, {})
    finally:
        client.close()


def test_a_leak_and_a_missing_volume_are_found_and_only_the_named_one_is_deleted(
    tool, scene, driver
):
    plain = scene.storage_class(driver.name)
    scene.claim("kept", plain)
    scene.claim("lost", plain)
    claims = scene.wait_bound()
    lost_pv = claims["lost"]["spec"]["volumeName"]
    kept_id = scene.volume(claims["kept"]["spec"]["volumeName"])["spec"]["csi"]["volumeHandle"]
    lost_id = scene.volume(lost_pv)["spec"]["csi"]["volumeHandle"]
    leaked_id = leak(driver)
    leaked_snapshot = make_snapshot(driver, kept_id)
    lose(driver, lost_id)
    audit = ("audit", f"--csi-address={driver.address}", "--grace=1s")

    found = tool.json(*audit)
    assert list(found["orphans"]) == [leaked_id]
    assert found["missing"] == {lost_pv: lost_id}
    assert list(found["snapshots"]["orphans"]) == [leaked_snapshot]

    for wrong in (kept_id, "no-such-id"):
        done = tool.run(*audit, f"--delete={wrong}", f"--confirm={wrong}")
        assert done.returncode == 1
        assert "this audit does not list it as a volume without a PV" in done.stderr
    done = tool.run(*audit, f"--delete={leaked_id}")
    assert "is not confirmed" in done.stderr
    assert {leaked_id, kept_id} <= set(driver.volumes())

    done = tool.run(*audit, f"--delete={leaked_id}", f"--confirm={leaked_id}")
    assert f"volume {leaked_id} was deleted" in done.stdout
    assert set(driver.volumes()) == {kept_id}

    done = tool.run(*audit, f"--delete={leaked_snapshot}", f"--confirm={leaked_snapshot}")
    assert f"snapshot {leaked_snapshot} was deleted" in done.stdout
    assert tool.json(*audit)["snapshots"]["orphans"] == {}


def test_a_volume_in_flight_is_never_listed(tool, scene, driver):
    """The driver has created the volume but has not answered yet, so no PV exists."""
    driver.set_rules({"method": "CreateVolume", "hang": True, "after_work": True, "times": 1})
    scene.claim("slow", scene.storage_class(driver.name))
    wait = tool.wait_cause("pvc", f"{scene.namespace}/slow", "driver-slow")
    assert "CreateVolume" in wait
    assert any(
        one["name"].endswith(scene.get("slow")["metadata"]["uid"])
        for one in driver.volumes().values()
    )
    found = tool.json("audit", f"--csi-address={driver.address}", "--grace=1s")
    assert found["orphans"] == {}
    assert found["undecided"] >= 1
    scene.wait_bound("slow")


def test_dry_run_gives_the_request_without_calling(tool, scene, driver, tmp_path):
    prefix = "csi.storage.k8s.io/provisioner-secret"
    parameters = {
        "tier": "gold",
        f"{prefix}-name": "key",
        f"{prefix}-namespace": scene.namespace,
    }
    name = scene.storage_class(driver.name, parameters=parameters)
    scene.secret("key", password="aHVudGVyMg==")
    before = len(driver.calls("CreateVolume"))
    draft = tmp_path / "claim.yaml"
    claim = {
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "draft", "namespace": scene.namespace},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": name,
            "resources": {"requests": {"storage": "3Gi"}},
        },
    }
    draft.write_text(json.dumps(claim))
    text = tool.ok("dry-run", "-f", str(draft))
    assert "hunter2" not in text
    request = json.loads(text)
    assert request["secrets"] == "***stripped***"
    assert request["capacity_range"]["required_bytes"] == 3 * 2**30
    assert len(driver.calls("CreateVolume")) == before

    scene.claim("real", name, "3Gi")
    scene.wait_bound("real")
    sent = driver.calls("CreateVolume")[-1].request
    planned = json.loads(tool.ok("dry-run", "pvc", f"{scene.namespace}/real"))
    assert planned["name"] == sent["name"]
    assert planned["parameters"] == sent["parameters"]
    assert planned["parameters"]["csi.storage.k8s.io/pvc/name"] == "real"


def strand(fleet, driver, name="gone") -> str:
    """Record a stranded attempt of a deleted claim; return the volume's name.

    The claim's Secret is gone too.
    """
    uid = f"uid-{name}"
    volume = f"pvc-{uid}"
    key = claim_key(driver.name, "shop", name, uid)
    record = {
        "key": key.text,
        "driver": driver.name,
        "claim": {"metadata": {"namespace": "shop", "name": name, "uid": uid}, "spec": {}},
        "stage": "stranded",
        "since": 1.0,
        "problem": 'secrets "creds" not found',
    }
    intents_of(fleet).of(driver.name).put(volume, record)
    return volume


def intents_of(fleet) -> IntentStore:
    """Return the intent store that a worker of the fleet writes to."""
    return IntentStore(connect(fleet.redis_url), Seal.of_lines([fleet.records_key]))


def test_a_stranded_attempt_is_listed_until_it_is_forgotten(tool, fleet, driver):
    """COR-7: `--forget` is the operator's remedy if the Secret never comes back."""
    volume = strand(fleet, driver)
    audit = ("audit", f"--csi-address={driver.address}", "--grace=1s")
    report = tool.json(*audit)
    assert report["stranded"][volume]["claim"] == "shop/gone"
    assert "creds" in report["stranded"][volume]["problem"]
    (failed,) = [one for one in tool.json("failed")["items"] if one["object"] == "shop/gone"]
    assert (failed["stranded"], failed["error"]) == (True, 'secrets "creds" not found')
    assert tool.run(*audit, "--forget=pvc-other").returncode == 1
    assert "was dropped" in tool.ok(*audit, f"--forget={volume}")
    assert volume not in tool.json(*audit)["stranded"]


def test_retry_of_a_claim_that_is_gone_asks_for_its_volume(tool, fleet, driver):
    """COR-7: nothing shows that the attempt is still open, so it is checked and stays stranded."""
    volume = strand(fleet, driver, "again")
    assert "no longer exists" in tool.ok("retry", "pvc", "shop/again")
    looked = "nothing in the API server shows that its attempt is still open"
    wait_until(lambda: looked in fleet.log_text(), 20, "the attempt is looked at")
    assert tool.run("retry", "pvc", "shop/never").returncode == 1
    intents_of(fleet).of(driver.name).finish(volume)


def test_dry_run_of_a_class_that_is_not_there_yet(tool, driver):
    """`dry-run` reads a claim and its class from standard input before either is applied."""
    spec = {
        "accessModes": ["ReadWriteOnce"],
        "storageClassName": "not-there-yet",
        "resources": {"requests": {"storage": "5Gi"}},
    }
    claim = {"kind": "PersistentVolumeClaim", "metadata": {"name": "draft"}, "spec": spec}
    storage_class = {
        "kind": "StorageClass",
        "metadata": {"name": "not-there-yet"},
        "provisioner": driver.name,
        "parameters": {"tier": "gold"},
    }
    done = tool.run("dry-run", "-f", "-", text=yaml.safe_dump_all([storage_class, claim]))
    assert json.loads(done.stdout)["parameters"]["tier"] == "gold"


def test_doctor_and_status_find_nothing_wrong(tool, driver):
    found = tool.json("doctor", f"--csi-address={driver.address}")["items"]
    checks = {one["check"]: one for one in found}
    assert checks["rights"]["state"] == "ok"
    assert checks["versions"]["text"].startswith("csi-fleet 0.")
    assert checks["clock"]["state"] == "ok"
    assert checks["redis eviction"]["text"] == "noeviction"
    assert checks[f"driver {driver.address}"]["state"] == "ok"
    assert driver.name in checks["drivers"]["text"]
    report = tool.json("status")
    assert report["problems"] == []
    assert report["drivers"][driver.name]["state"] == "ok"
    assert "DRIVER" in tool.ok("status")


def test_drain_waits_for_running_work(tool, scene, driver):
    driver.set_rules({"method": "CreateVolume", "delay_seconds": 15})
    scene.claim("data", scene.storage_class(driver.name))
    tool.wait_cause("pvc", f"{scene.namespace}/data", "driver-slow")
    try:
        text = tool.ok("drain", f"--driver={driver.name}", "--reason=upgrade")
        assert text.splitlines()[-2:] == ["1 task runs", "0 tasks run"]
        scene.wait_bound("data", timeout_seconds=60)
    finally:
        tool.ok("resume", f"--driver={driver.name}")


def test_doctor_names_the_rights_that_lack(fleet, scene, api, tmp_path, kubeconfig):
    """`doctor` asks the API server, as the account itself, for each permission."""
    metadata = {"name": "bare", "namespace": scene.namespace}
    api.create({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata})
    config = yaml.safe_load(Path(kubeconfig).read_text())
    path = f"/api/v1/namespaces/{scene.namespace}/serviceaccounts/bare/token"
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    token = api.request("POST", path, request)["status"]["token"]
    for user in config["users"]:
        user["user"] = {"token": token}
    bare = tmp_path / "bare"
    bare.write_text(yaml.safe_dump(config))
    done = Tool(bare, fleet.redis_url).run("doctor")
    assert done.returncode == 1
    line = next(line for line in done.stdout.splitlines() if "not allowed to" in line)
    assert line.startswith("rights")
    assert "FAIL" in line
    assert "get/list/watch/create/delete/patch persistentvolumes," in line


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completions_name_commands_and_flags(shell):
    command = [*program(), "completion", shell]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "explain" in text
    assert "redis-url" in text


@pytest.fixture(scope="module")
def central(tmp_path_factory):
    """A driver that requires mutual TLS, a drivers file that fits, and one with a wrong CA."""
    folder = tmp_path_factory.mktemp("tls")
    for ca in ("ca", "stranger"):
        make_ca(folder, ca, days=60)  # doctor warns 30 days before expiry
    make_certificate(folder, "ca", "driver", "driver.example.org", days=60)
    make_certificate(folder, "ca", "fleet", "fleet.example.org", days=60)
    files = {"tls-certificate": "driver.pem", "tls-key": "driver.key", "tls-client-ca": "ca.pem"}
    given = [part for flag, name in files.items() for part in (f"--{flag}", str(folder / name))]
    own = {"certificate": folder / "fleet.pem", "key": folder / "fleet.key"}
    tls = TlsFiles(folder / "ca.pem", *own.values(), server_name="driver.example.org")
    endpoint = f"tcp://127.0.0.1:{free_port()}"
    with DirectoryDriver(endpoint=endpoint, tls=tls, arguments=given) as driver:
        for ca in ("ca", "stranger"):
            names = {"ca": f"{ca}.pem", "certificate": "fleet.pem", "key": "fleet.key"}
            drivers = [
                {
                    "name": driver.name,
                    "endpoint": driver.address,
                    "pool": "gold",
                    "tls": {**names, "serverName": "driver.example.org"},
                },
                {"name": "other.example.org", "endpoint": "unix:///nowhere"},
            ]
            (folder / f"{ca}.yaml").write_text(yaml.safe_dump({"drivers": drivers}))
        yield driver, folder


def test_audit_and_doctor_reach_a_driver_as_its_central_worker_does(tool, central):
    """They use mutual TLS with the files of the worker's drivers file (SEC-3), for any pool."""
    driver, folder = central
    leaked_id = leak(driver)
    drivers_file = f"--drivers-file={folder / 'ca.yaml'}"
    audit = ("audit", drivers_file, f"--driver={driver.name}", "--grace=0s")
    assert list(tool.json(*audit)["orphans"]) == [leaked_id]
    assert (
        "was deleted" in tool.run(*audit, f"--delete={leaked_id}", f"--confirm={leaked_id}").stdout
    )
    assert driver.volumes() == {}

    assert "Set --csi-address once" in tool.run("audit", drivers_file).stderr
    checks = {one["check"]: one["state"] for one in tool.json("doctor", drivers_file)["items"]}
    assert (checks[f"driver {driver.name}"], checks["driver other.example.org"]) == ("ok", "FAIL")

    strange = f"--drivers-file={folder / 'stranger.yaml'}"
    done = tool.run("audit", strange, f"--driver={driver.name}", "--grace=0s")
    assert (done.returncode, done.stdout) == (1, "")
    assert "the TLS connection fails" in done.stderr
    assert "Check tls.ca" in done.stderr

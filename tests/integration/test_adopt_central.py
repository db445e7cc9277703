"""adopt --as central on a real API server, with a real haproxy, workers and the example driver.

The test plays the kubelet. For each pod with the gateway's container it runs the gateway with the
files of the Secret that the pod mounts. Workers see the ConfigMap as the kubelet would mount it.
"""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.support.adopted import (
    DRIVER,
    NAMESPACE,
    PODS,
    PROGRAMS,
    Cluster,
    Player,
    allow_all,
    deployment,
    has,
    plane,  # noqa: F401 - a fixture
    played,
    prepare,
)
from tests.support.controlplane import ControlPlane
from tests.support.csi_driver import DirectoryDriver
from tests.support.fleet import Fleet, Scene, is_running_here
from tests.support.gateway import Gateway
from tests.support.kube_api import JsonObject, KubeApi
from tests.support.waiting import let_pass, wait_until
from workers.cli import gateway
from workers.cli.adoptcentral import ADOPTED, CLIENT
from workers.cli.adoptplan import RECORD

NAME = gateway.name_of(DRIVER)
ENTRIES = f"/api/v1/namespaces/csi-fleet/configmaps/{ADOPTED}"


class CentralPlayer(Player):
    """Also runs the gateways and writes the workers' mounted files."""

    def __init__(self, api: KubeApi, driver: DirectoryDriver, folder: Path) -> None:
        self.folder, self.files = folder / "drivers", folder / "files"
        self.files.mkdir()
        self.folder.mkdir()
        self.gateway: Gateway | None = None
        self.driver, self.made = driver, 0
        super().__init__(api)

    def stop(self) -> None:
        super().stop()
        if self.gateway is not None:
            self.gateway.stop()

    def _step(self) -> None:
        pods = self.api.items(PODS)
        found = [one for one in pods if has(one, gateway.NAME)]
        self.both += bool(found and any(has(one, *PROGRAMS) for one in pods))
        if found and self.gateway is None:
            self._run_gateway(found[0])
        elif not found and self.gateway is not None:
            self.gateway.stop()
            self.gateway = None
        self._show()
        super()._step()

    def _hold(self, program: str, go: list[JsonObject], ours: list[JsonObject]) -> None:
        super()._hold(program, go, [])

    def _run_gateway(self, pod: JsonObject) -> None:
        """Run the pod's own command with the certificates of the pod's Secret."""
        made = Gateway(self.files / f"gateway-{self.made}", self.driver.address)
        self.made += 1
        self._files("Secret", NAMESPACE, NAME, made.folder)
        (own,) = [one for one in pod["spec"]["containers"] if one["name"] == gateway.NAME]
        given = {one["name"]: one for one in own["env"]}["GATEWAY_CONFIG"]["value"]
        socket = self.driver.address.removeprefix("unix://")
        config = given.replace("/csi/csi.sock", socket).replace(":10443", f":{made.port}")
        made.container["command"] = own["command"]
        made.container["env"][1]["value"] = config
        self.gateway = made.start()

    def _files(self, kind: str, place: str, name: str, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        path = f"/api/v1/namespaces/{place}/{kind.lower()}s/{name}"
        for key, text in ((self.api.find(path) or {}).get("data") or {}).items():
            (folder / key).write_bytes(base64.b64decode(text))

    def _show(self) -> None:
        """Write the workers' mounts. The Service's name becomes an address of this machine."""
        self._files("Secret", "csi-fleet", CLIENT, self.files / "client")
        data = (self.api.find(ENTRIES) or {}).get("data") or {}
        wanted = {f"{key}": self._local(text) for key, text in data.items()}
        for path in self.folder.glob("*.yaml"):
            if path.name not in wanted:
                path.unlink()
        for key, text in wanted.items():
            path = self.folder / key
            if not path.exists() or path.read_text() != text:
                path.with_suffix(".draft").write_text(text)
                path.with_suffix(".draft").replace(path)

    def _local(self, text: str) -> str:
        (entry,) = yaml.safe_load(text)["drivers"]
        host = entry["endpoint"].partition(":")[0]
        port = self.gateway.port if self.gateway else 1
        entry["endpoint"] = f"127.0.0.1:{port}"
        folder = "/etc/csi-fleet/driver-tls"
        tls = {
            key: path.replace(folder, str(self.files / "client"))
            for key, path in entry["tls"].items()
        }
        entry["tls"] = tls | {"serverName": host}
        return yaml.safe_dump({"drivers": [entry]})


@pytest.fixture
def driver() -> Iterator[DirectoryDriver]:
    with DirectoryDriver(DRIVER) as made:
        yield made


@pytest.fixture
def cluster(
    plane: ControlPlane,  # noqa: F811 - a fixture
    driver: DirectoryDriver,
    tmp_path: Path,
) -> Iterator[Cluster]:
    with plane.api() as api:
        prepare(api)
        env = [{"name": "CSI_FLEET_REDIS_URL", "value": "rediss://redis:6379/0"}]
        controllers = {"name": "CSI_FLEET_CONTROLLERS", "value": "provisioner,attacher"}
        for name in ("watcher", "worker"):
            args = [name, "--drivers-file=/etc/csi-fleet/drivers"]
            container = {"name": name, "image": "csi-fleet:1", "args": args}
            wanted = deployment(name, "csi-fleet", [container | {"env": [*env, controllers]}])
            labels = wanted["spec"]["template"]["metadata"]["labels"]
            labels |= {"app.kubernetes.io/name": name, "csi-fleet.io/redis-client": "true"}
            api.apply(wanted)
        allow_all(api, "central", "csi-fleet", "worker")
        allow_all(api, "watches", "csi-fleet", "watcher")
        with played(plane, CentralPlayer(api, driver, tmp_path)) as made:
            yield made


@pytest.fixture
def fleet(cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Fleet]:
    """Run a watcher and two workers on the mounted folder; a fake `kubectl exec` reaches them."""
    player = cluster.player
    assert isinstance(player, CentralPlayer)
    flags = (f"--drivers-file={player.folder}", "--workers=2", "-v=4")
    flags = (*flags, "--controllers=provisioner,attacher")
    with Fleet(tmp_path / "f", cluster.plane.kubeconfig, [], *flags) as made:
        program = tmp_path / "kubectl"
        program.write_text(
            f"#!{sys.executable}\nimport json, subprocess, sys\n"
            "if 'exec' in sys.argv:\n"
            "    words = sys.argv[sys.argv.index('csi-fleet') + 1:]\n"
            f"    command = [{sys.executable!r}, '-m', 'workers', *words,\n"
            f"               {f'--redis-url={made.redis_url}'!r}]\n"
            "    if words[0] == 'explain':\n"
            f"        command.append({f'--kubeconfig={cluster.plane.kubeconfig}'!r})\n"
            "    sys.exit(subprocess.run(command).returncode)\n"
            f"print(json.dumps({{'items': [{POD!r}]}}))\n"
        )
        program.chmod(0o755)
        monkeypatch.setenv("KUBECTL", str(program))
        yield made


POD = {
    "metadata": {"name": "worker-1", "namespace": "csi-fleet"},
    "spec": {"containers": [{"name": "worker", "env": [{"name": "CSI_FLEET_REDIS_URL"}]}]},
    "status": {"phase": "Running"},
}


def made_volume(cluster: Cluster, scene: Scene, name: str, storage_class: str) -> bool:
    """Create a claim and wait for its PersistentVolume."""
    scene.claim(name, storage_class)
    claim = cluster.api.get(f"{scene.claims_path}/{name}")
    path = f"/api/v1/persistentvolumes/pvc-{claim['metadata']['uid']}"
    wait_until(lambda: cluster.api.find(path), 30, f"the volume of {name} is there")
    return True


def test_a_driver_is_served_by_central_workers_and_released(
    cluster: Cluster, fleet: Fleet, driver: DirectoryDriver
) -> None:
    before = cluster.start(replicas=2, elects=True)
    scene = Scene(cluster.api)
    storage_class = scene.storage_class(DRIVER)
    for number in range(2):
        assert "central workers serve it" in cluster.run("adopt", "--as=central", "--any-replica")
        assert cluster.names() == ["driver", gateway.NAME]
        assert made_volume(cluster, scene, f"claim-{number}", storage_class)
        generation = cluster.workload()["metadata"]["generation"]
        cluster.run("adopt", "--as=central")
        assert cluster.workload()["metadata"]["generation"] == generation
        assert "is released" in cluster.run("release")
        assert cluster.workload()["spec"] == before["spec"]
        assert RECORD not in (cluster.workload()["metadata"].get("annotations") or {})
        assert not cluster.api.get(ENTRIES).get("data")
        for path in (f"/api/v1/namespaces/{NAMESPACE}/services", PODS.replace("pods", "secrets")):
            assert NAME not in {one["metadata"]["name"] for one in cluster.api.items(path)}
    assert cluster.player.both == 0, "no pod with a gateway beside one with Go sidecars"
    assert len(driver.volumes()) == 2
    scene.clean_up(is_running_here)


@pytest.mark.parametrize("binding", ["Immediate", "WaitForFirstConsumer"])
def test_adoption_is_verified_by_a_claim(
    cluster: Cluster, fleet: Fleet, driver: DirectoryDriver, binding: str
) -> None:
    cluster.start(replicas=1, elects=True)
    scene = Scene(cluster.api)
    scene.storage_class(DRIVER, volumeBindingMode=binding, reclaimPolicy="Retain")
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}}
    csi_node = {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "CSINode",
        "metadata": {"name": "n1"},
        "spec": {"drivers": [{"name": DRIVER, "nodeID": "n1"}]},
    }
    for one in (node, csi_node):
        cluster.api.apply(one)
    ready = {"conditions": [{"type": "Ready", "status": "True"}]}
    cluster.api.patch("/api/v1/nodes/n1/status", {"status": ready})
    assert "was Bound" in cluster.run("adopt", "--as=central", "--verify")
    assert len(driver.calls("CreateVolume")) == 1
    assert driver.volumes() == {}, "the volume is deleted, though its class retains"
    driver.set_rules({"method": "CreateVolume", "code": "INTERNAL", "message": "no disk today"})
    child = cluster.command("adopt", "--as=central", "--verify", "--wait=20s")
    output, _ = child.communicate(timeout=120)
    assert child.returncode == 1
    assert "was not Bound" in output
    assert "no disk today" in output, "the cause that explain knows"
    assert cluster.names() == ["driver", gateway.NAME], "the driver stays adopted"
    driver.set_rules()
    cluster.run("release")
    scene.clean_up(is_running_here)


def test_a_central_command_that_is_killed_is_repeated_to_the_end(
    cluster: Cluster, fleet: Fleet
) -> None:
    """A central command that was killed at any moment of its run can be repeated."""
    before = cluster.start(replicas=1, elects=True)
    for seconds in (1.2, 2.0, 3.0, 4.5):
        for command, flags in (("adopt", ["--as=central"]), ("release", [])):
            child = cluster.command(command, *flags)
            let_pass(seconds)
            child.kill()
            child.communicate()
            names = cluster.names()
            assert (gateway.NAME in names) != ("csi-provisioner" in names)
            cluster.run(command, *flags)
    assert cluster.workload()["spec"] == before["spec"]
    assert cluster.player.both == 0


def test_claims_survive_whatever_happens_to_the_gateway(
    cluster: Cluster, fleet: Fleet, driver: DirectoryDriver
) -> None:
    """Claims get one volume each after a killed or
    frozen gateway and after a restart of the driver.
    """
    cluster.start(replicas=1, elects=True)
    cluster.run("adopt", "--as=central")
    player = cluster.player
    assert isinstance(player, CentralPlayer)
    found = player.gateway
    assert found is not None
    scene = Scene(cluster.api)
    storage_class = scene.storage_class(DRIVER)

    def again() -> None:
        found.crash()
        found.start()

    def thawed() -> None:
        found.freeze()
        scene.claim("while-frozen", storage_class)
        let_pass(3)
        found.thaw()

    def restarted() -> None:
        driver.kill()
        driver.start()

    happenings = {"crash": again, "freeze": thawed, "restart": restarted}
    for name, happen in happenings.items():
        happen()
        assert made_volume(cluster, scene, f"after-{name}", storage_class)
    names = {one["metadata"]["name"] for one in cluster.api.items(scene.claims_path)}
    uids = [one["metadata"]["uid"] for one in cluster.api.items(scene.claims_path)]
    for uid in uids:
        path = f"/api/v1/persistentvolumes/pvc-{uid}"
        wait_until(lambda path=path: cluster.api.find(path), 30, "each claim has its volume")
    assert len(driver.volumes()) == len(names), "and each one volume"
    assert json.dumps(sorted(names))
    cluster.run("release")
    scene.clean_up(is_running_here)

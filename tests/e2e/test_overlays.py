"""Each overlay as shipped: its pods' own arguments, accounts, mounts, Redis users and probes.

A control plane with RBAC takes all objects of the overlay; watcher, workers, beat and Flower run as
the manifests say, on tokens of their accounts, over the shipped Redis with TLS and ACL. Claims
are bound and deleted, and neither the API server nor Redis had to refuse anything.
"""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

import pytest
import requests
import yaml

from csi_client.connection import TlsFiles
from tests.support.certificates import make_ca, make_certificate
from tests.support.controlplane import ControlPlane
from tests.support.csi_driver import DirectoryDriver
from tests.support.fleet import Scene
from tests.support.kustomize import render
from tests.support.pods import Kubelet
from tests.support.processes import free_port
from tests.support.secure_redis import SecureRedis
from tests.support.shipped import K8S, NAMESPACE, audited
from tests.support.waiting import wait_until

CRDS = Path(__file__).parents[1] / "integration" / "manifest_crds" / "monitoring.yaml"
ZONE = "topology.csi.example.org/node"
NODES = ("node-a", "node-b")
DRIVER_NAME = "csi.example.org"
SECRETS = Path("/etc/csi-fleet/driver-tls")


@dataclass(frozen=True, slots=True)
class Shape:
    """Where an overlay's workers are: kind, namespace and name of their workload, its account."""

    kind: str
    namespace: str
    name: str
    account: str
    owner: str = ""  # kind of the owner of capacity objects, where the overlay publishes them


SHAPES = {
    "dev": Shape("Deployment", NAMESPACE, "example-driver", "worker"),
    "prod-central": Shape("Deployment", NAMESPACE, "worker", "worker", "Deployment"),
    "prod-sidecar": Shape("Deployment", "csi-driver-example", "driver", "driver", "Deployment"),
    "prod-node": Shape("DaemonSet", "csi-driver-node-example", "driver", "driver", "DaemonSet"),
}


class World:
    """One control plane, one Redis and the drivers' processes for one overlay."""

    def __init__(self, overlay: str, redis_binary: str, directory: Path) -> None:
        self.overlay, self.shape = overlay, SHAPES[overlay]
        self.folder = Path(tempfile.mkdtemp(prefix="pods-"))
        self.plane = ControlPlane(directory / "plane", audit_log=True).start()
        self.redis = SecureRedis(redis_binary, directory / "redis")
        self.redis.directory.mkdir()
        self.redis.start()
        self.api = self.plane.api()
        self.api.apply_file(CRDS)
        for plural in ("servicemonitors", "prometheusrules"):
            path = f"/apis/monitoring.coreos.com/v1/{plural}"
            wait_until(lambda path=path: self.api.find(path), 30, f"{plural} are served")
        objects = render(K8S / "overlays" / overlay)
        self.kubelet = Kubelet(self.plane, self.api, self.redis, self.folder, objects)
        self.kubelet.install()
        self.drivers: dict[str, DirectoryDriver] = {}

    def close(self) -> None:
        self.kubelet.__exit__()
        for driver in self.drivers.values():
            driver.close()
        self.api.close()
        self.redis.stop()
        self.plane.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def start(self) -> None:
        self.add_nodes()
        self.kubelet.start("Deployment", NAMESPACE, "watcher")
        self.kubelet.start("Deployment", NAMESPACE, "watcher")
        self.kubelet.start("Deployment", NAMESPACE, "beat")
        self.flower = self.kubelet.start("Deployment", NAMESPACE, "flower")
        for node in NODES:
            mounts = self.central_driver() if self.overlay == "prod-central" else self.beside(node)
            shape = self.shape
            self.kubelet.start(shape.kind, shape.namespace, shape.name, node=node, mounts=mounts)

    def add_nodes(self) -> None:
        for node in NODES:
            meta = {"name": node, "labels": {ZONE: node}}
            self.api.create({"apiVersion": "v1", "kind": "Node", "metadata": meta})
            spec = {"drivers": [{"name": DRIVER_NAME, "nodeID": node, "topologyKeys": [ZONE]}]}
            self.api.create(
                {"apiVersion": "storage.k8s.io/v1", "kind": "CSINode", "metadata": {"name": node},
                 "spec": spec}
            )  # fmt: skip

    def beside(self, node: str) -> dict[str, Path]:
        """A driver in the worker's pod; both pods of a Deployment see one storage."""
        is_local = self.shape.kind == "DaemonSet"
        place = node if is_local else "shared"
        folder = self.folder / place
        if place not in self.drivers:
            folder.mkdir()
            self.drivers[place] = DirectoryDriver(
                DRIVER_NAME,
                endpoint=f"unix://{folder / 'csi.sock'}",
                arguments=[f"--topology={ZONE}={node}", f"--node-id={node}"],
            ).start()
        return {"socket": folder}

    def central_driver(self) -> dict[str, Path]:
        """A driver over TCP that asks for certificates; only its address in the file changes."""
        folder = self.folder / "driver-tls"
        if self.drivers:
            return {"driver-tls": folder}
        folder.mkdir()
        given = yaml.safe_load(self.kubelet.file("ConfigMap", "drivers", "drivers.yaml"))
        (entry,) = given["drivers"]
        host = entry["endpoint"].rpartition(":")[0]
        make_ca(folder, "ca")
        for name, names in (("driver", host), ("tls", "csi-fleet")):
            make_certificate(folder, "ca", name, names)
        for old, new in (("ca.pem", "ca.crt"), ("tls.pem", "tls.crt")):
            (folder / old).rename(folder / new)
        tls = TlsFiles(folder / "ca.crt", folder / "tls.crt", folder / "tls.key", server_name=host)
        driver = DirectoryDriver(
            entry["name"],
            endpoint=f"tcp://127.0.0.1:{free_port()}",
            tls=tls,
            arguments=[
                f"--topology={ZONE}={NODES[0]}",
                *("--tls-certificate", str(folder / "driver.pem")),
                *("--tls-key", str(folder / "driver.key")),
                *("--tls-client-ca", str(folder / "ca.crt")),
            ],
        )
        self.drivers["shared"] = driver.start()
        entry["endpoint"] = driver.address
        entry["tls"] = {key: text.replace(str(SECRETS), str(folder))
                        for key, text in entry["tls"].items()}  # fmt: skip
        entry["tls"]["serverName"] = host
        content = yaml.safe_dump(given).encode()
        self.kubelet.provide("ConfigMap", "drivers", {"drivers.yaml": content})
        return {"driver-tls": folder}


@pytest.fixture
def world(overlay, redis_binary, tmp_path):
    world = World(overlay, redis_binary, tmp_path)
    try:
        world.start()
        yield world
    finally:
        world.close()


@pytest.mark.timeout(600)
@pytest.mark.parametrize("overlay", sorted(one.name for one in (K8S / "overlays").iterdir()))
def test_overlay_works_as_shipped(world):
    scene = Scene(world.api)
    late = scene.storage_class(DRIVER_NAME, "late", volumeBindingMode="WaitForFirstConsumer")
    soon = scene.storage_class(DRIVER_NAME, "soon")
    for number in range(4):
        scene.claim(f"late-{number}", late)
        scene.select_node(f"late-{number}", NODES[number % 2 if len(world.drivers) > 1 else 0])
    scene.claim("soon", soon)
    scene.wait_bound(timeout_seconds=90)
    assert sum(len(one.volumes()) for one in world.drivers.values()) == 5
    if len(world.drivers) > 1:
        for node in NODES:
            assert len(world.drivers[node].volumes()) >= 2, "each node made its own volumes"
    assert_capacity_is_owned(world, late)
    assert_flower_shows_workers(world)
    assert_everybody_has_a_user_of_its_own(world)
    for name in scene.claims():
        scene.delete(name)
    scene.wait_gone()
    assert [one.volumes() for one in world.drivers.values()] == [{}] * len(world.drivers)
    for account, home in (("watcher", NAMESPACE), (world.shape.account, world.shape.namespace)):
        by_code = audited(world.plane, account, home)
        assert set().union(*by_code.values()), f"{home}/{account} asked for something"
        assert by_code[403] == set()
    assert world.redis.denials() == []
    assert all(pod.process.is_running() for pod in world.kubelet.pods)
    assert "Traceback" not in world.kubelet.log_text()


def assert_capacity_is_owned(world, storage_class):
    if not world.shape.owner:
        return
    path = f"/apis/storage.k8s.io/v1/namespaces/{world.shape.namespace}/csistoragecapacities"

    def published():
        found = world.api.items(path)
        return [one for one in found if one["storageClassName"] == storage_class]

    found = wait_until(lambda: len(published()) >= len(world.drivers) and published(), 60, "sizes")
    owners = {(ref["kind"], ref["name"]) for one in found
              for ref in one["metadata"]["ownerReferences"]}  # fmt: skip
    assert owners == {(world.shape.owner, world.shape.name)}


def assert_flower_shows_workers(world):
    login = world.kubelet.file("Secret", "flower-login", "login").decode().strip()
    url = f"http://127.0.0.1:{world.flower.port}/api/workers"

    def workers():
        answer = requests.get(url, auth=tuple(login.split(":")), params={"refresh": 1}, timeout=20)
        return len(answer.json()) >= 2

    wait_until(workers, 60, "Flower knows both workers")
    assert requests.get(url, timeout=10).status_code == 401


def assert_everybody_has_a_user_of_its_own(world):
    """Redis listens with TLS only, so each of these connections is encrypted."""
    with world.redis.client("tester") as client:
        users = {one["user"] for one in client.client_list()}
    assert {"watcher", "beat", "flower"} <= users
    # Beside a driver the worker's user is that driver's own.
    assert users & {"worker", f"worker.{DRIVER_NAME}"}
    assert "default" not in users

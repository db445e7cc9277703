"""A cluster that runs one overlay as shipped: control plane, Redis, its pods and its drivers.

```
world = World("prod-central", redis_binary, directory)
world.start()
```
"""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import yaml

from csi_client.connection import TlsFiles
from tests.support.certificates import make_ca, make_certificate
from tests.support.controlplane import ControlPlane
from tests.support.csi_driver import DirectoryDriver
from tests.support.kustomize import render
from tests.support.pods import Kubelet, Pod
from tests.support.processes import free_port
from tests.support.secure_redis import SecureRedis
from tests.support.shipped import K8S, NAMESPACE
from tests.support.waiting import wait_until

CRDS = Path(__file__).parents[1] / "integration" / "manifest_crds" / "monitoring.yaml"
ZONE = "topology.csi.example.org/node"
NODES = ("node-a", "node-b")
DRIVER_NAME = "csi.example.org"
SECRETS = Path("/etc/csi-fleet/driver-tls")


@dataclass(frozen=True, slots=True)
class Shape:
    """The workers of an overlay: kind, namespace and name of their workload, and their account."""

    kind: str
    namespace: str
    name: str
    account: str
    owner: str = ""  # The kind of the owner of capacity objects, if the overlay publishes them.


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
        self.redis = SecureRedis(redis_binary, directory / "redis").start()
        self.api = self.plane.api()
        self.api.apply_file(CRDS)
        for plural in ("servicemonitors", "prometheusrules"):
            path = f"/apis/monitoring.coreos.com/v1/{plural}"
            wait_until(partial(self.api.find, path), 30, f"{plural} are served")
        objects = render(K8S / "overlays" / overlay)
        self.kubelet = Kubelet(self.plane, self.api, self.redis, self.folder, objects)
        self.kubelet.install()
        self.drivers: dict[str, DirectoryDriver] = {}
        self.flower: Pod | None = None

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
        """Start a driver next to the worker in its pod; both pods of a Deployment share one
        storage."""
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
        """Start a driver over TCP that requires client certificates; only its address in the
        file changes."""
        folder = self.folder / "driver-tls"
        if self.drivers:
            return {"driver-tls": folder}
        folder.mkdir()
        given = yaml.safe_load(self.kubelet.file("ConfigMap", "drivers", "drivers.yaml"))
        (entry,) = given["drivers"]
        host = entry["endpoint"].rpartition(":")[0]
        make_driver_certificates(folder, host)
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


def make_driver_certificates(folder: Path, host: str) -> None:
    """Create certificates for both sides, signed by a separate authority, in place of the
    existing ones."""
    with tempfile.TemporaryDirectory() as name:
        fresh = Path(name)
        make_ca(fresh, "ca")
        for side, names in (("driver", host), ("tls", "csi-fleet")):
            make_certificate(fresh, "ca", side, names)
        for old, new in (
            ("ca.pem", "ca.crt"), ("tls.pem", "tls.crt"), ("tls.key", "tls.key"),
            ("driver.pem", "driver.pem"), ("driver.key", "driver.key"),
        ):  # fmt: skip
            shutil.copy(fresh / old, folder / f".{new}")
            (folder / f".{new}").replace(folder / new)

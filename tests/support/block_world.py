"""A cluster with ready snapshots, and `csi-fleet snapshot-metadata` as it is shipped: with the
account and the permissions of k8s/components/snapshot-metadata, TLS and a drivers file.

```
with BlockWorld(folder, control_plane, ["a.csi.example.org"]) as world:
    world.snapshot("snap", "a.csi.example.org", "honest:10:64")
    client = world.client("a.csi.example.org")
    list(blocks(client.allocated("snap")))
```
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import yaml

from tests.support.block_client import BlockClient, add_service, token_of
from tests.support.block_driver import BlockDrivers
from tests.support.certificates import make_ca, make_certificate
from tests.support.controlplane import ControlPlane
from tests.support.fleet import environment, program
from tests.support.kube_api import KubeApi
from tests.support.processes import Process, free_port, start_process
from tests.support.running import Running
from tests.support.shipped import K8S, NAMESPACE
from tests.support.waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]
GROUP = "snapshot.storage.k8s.io/v1"
READY = "snapshot-metadata.ready"
USER, OUTSIDER = "backup", "outsider"


class BlockWorld(Running):
    """The drivers, the server and the objects.

    Args:
        folder: for sockets, certificates and logs.
        plane: the control plane.
        names: the drivers in the drivers file.
        others: drivers that run, but are not in the drivers file.
        flags: more flags of the server.
    """

    def __init__(
        self,
        folder: Path,
        plane: ControlPlane,
        names: Sequence[str],
        *,
        others: Sequence[str] = (),
        flags: Sequence[str] = (),
    ) -> None:
        self.folder = folder
        self.plane = plane
        self.names = list(names)
        self.flags = list(flags)
        self.namespace = f"blocks-{uuid.uuid4().hex[:8]}"
        self.drivers = BlockDrivers(folder / "d", [*names, *others])
        self.port = free_port()
        self.api = KubeApi(plane.kubeconfig)
        self.server: Process | None = None
        self._clients: list[BlockClient] = []

    def start(self) -> Self:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.drivers.start()
        make_ca(self.folder, "ca")
        make_certificate(self.folder, "ca", "server", "localhost")
        self._make_objects()
        entries = [{"name": name, "endpoint": self.drivers.address(name)} for name in self.names]
        (self.folder / "drivers.yaml").write_text(yaml.safe_dump({"drivers": entries}))
        self.start_server()
        return self

    def stop(self) -> None:
        for one in self._clients:
            one.close()
        if self.server is not None:
            self.server.kill()
        self.drivers.stop()
        self.api.close()

    def start_server(self) -> None:
        """Start the server again, on the same port."""
        state = self.folder / "state"
        state.mkdir(exist_ok=True)
        (state / READY).unlink(missing_ok=True)
        kubeconfig = self.plane.service_account_kubeconfig(NAMESPACE, "snapshot-metadata")
        self.server = start_process(
            "snapshot-metadata",
            [
                *(*program(), "snapshot-metadata", f"--drivers-file={self.folder}/drivers.yaml"),
                *(f"--kubeconfig={kubeconfig}", f"--port={self.port}", f"--state-dir={state}"),
                *(f"--tls-cert={self.folder}/server.pem", f"--tls-key={self.folder}/server.key"),
                *("--kube-api-qps=1000", "--kube-api-burst=1000", *self.flags),
            ],
            log=self.folder / "server.log",
            env=environment(),
            cwd=ROOT,
        )
        wait_until((state / READY).exists, 60, "the server is ready")

    def client(self, driver: str, account: str = USER, namespace: str = "") -> BlockClient:
        """Return a client with its own connection; it is closed with the world."""
        found = BlockClient(self.api, driver, namespace or self.namespace, account)
        self._clients.append(found)
        return found

    def token(self, audience: str) -> str:
        """Return a token of the allowed account for another audience."""
        return token_of(self.api, self.namespace, USER, audience)

    def snapshot(
        self,
        name: str,
        driver: str,
        handle: str,
        *,
        is_ready: bool = True,
        snapshot_class: str | None = None,
    ) -> None:
        """Create a VolumeSnapshot, its content and their status."""
        content = f"{self.namespace}-{name}"
        snapshot = self.api.create(
            {
                "apiVersion": GROUP,
                "kind": "VolumeSnapshot",
                "metadata": {"name": name, "namespace": self.namespace},
                "spec": {
                    "source": {"volumeSnapshotContentName": content},
                    "volumeSnapshotClassName": snapshot_class or self._class(driver),
                },
            }
        )
        reference = {"name": name, "namespace": self.namespace, "uid": snapshot["metadata"]["uid"]}
        self.api.create(
            {
                "apiVersion": GROUP,
                "kind": "VolumeSnapshotContent",
                "metadata": {"name": content},
                "spec": {
                    "driver": driver,
                    "deletionPolicy": "Retain",
                    "volumeSnapshotRef": {"kind": "VolumeSnapshot", **reference},
                    "source": {"snapshotHandle": handle},
                },
            }
        )
        status = {"readyToUse": is_ready, "boundVolumeSnapshotContentName": content}
        path = f"/apis/{GROUP}/namespaces/{self.namespace}/volumesnapshots/{name}"
        self.api.patch(f"{path}/status", {"status": status})
        self.api.patch(
            f"/apis/{GROUP}/volumesnapshotcontents/{content}/status",
            {"status": {"readyToUse": is_ready, "snapshotHandle": handle}},
        )

    def memory_mib(self) -> float:
        """Return the server's resident memory."""
        assert self.server is not None
        status = Path(f"/proc/{self.server.pid}/status").read_text()
        found = re.search(r"VmRSS:\s+(\d+) kB", status)
        assert found is not None
        return int(found[1]) / 1024

    def cpu_seconds(self) -> float:
        """Return the CPU time that the server has used."""
        assert self.server is not None
        fields = Path(f"/proc/{self.server.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / 100

    def log_text(self) -> str:
        """Return the server's log."""
        return (self.folder / "server.log").read_text()

    def _class(self, driver: str) -> str:
        return f"{self.namespace}-{driver}"

    def _make_objects(self) -> None:
        for name in (NAMESPACE, self.namespace, f"{self.namespace}-other"):
            self.api.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
        folder = K8S / "components" / "snapshot-metadata"
        for file in ("serviceaccounts", "clusterroles", "clusterrolebindings"):
            self.api.apply_file(folder / f"{file}.yaml")
        for account in (USER, OUTSIDER):
            self._account(self.namespace, account)
        self.bind("csi-fleet-snapshot-metadata-client", USER)
        for driver in [*self.names, "absent.csi.example.org"]:
            add_service(self.api, driver, f"localhost:{self.port}", self.folder / "ca.pem")
        for driver in self.drivers.names:
            self.make_class(self._class(driver), driver)

    def make_class(self, name: str, driver: str, **parameters: str) -> None:
        """Create a VolumeSnapshotClass."""
        self.api.apply(
            {
                "apiVersion": GROUP,
                "kind": "VolumeSnapshotClass",
                "metadata": {"name": name},
                "driver": driver,
                "deletionPolicy": "Delete",
                "parameters": parameters,
            }
        )

    def bind(self, role: str, account: str) -> None:
        """Let an account of the namespace use a ClusterRole in the namespace."""
        self.api.apply(
            {
                "apiVersion": "rbac.authorization.k8s.io/v1",
                "kind": "RoleBinding",
                "metadata": {"name": f"{role}-{account}", "namespace": self.namespace},
                "roleRef": _role("ClusterRole", role),
                "subjects": [_subject(self.namespace, account)],
            }
        )

    def allow_secret(self, name: str, **values: str) -> None:
        """Create a Secret, and let the server read it."""
        metadata = {"name": name, "namespace": self.namespace}
        self.api.apply(
            {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": values}
        )
        rules = [
            {"apiGroups": [""], "resources": ["secrets"], "resourceNames": [name], "verbs": ["get"]}
        ]
        rbac = "rbac.authorization.k8s.io/v1"
        self.api.apply({"apiVersion": rbac, "kind": "Role", "metadata": metadata, "rules": rules})
        self.api.apply(
            {
                "apiVersion": rbac,
                "kind": "RoleBinding",
                "metadata": metadata,
                "roleRef": _role("Role", name),
                "subjects": [_subject(NAMESPACE, "snapshot-metadata")],
            }
        )

    def _account(self, namespace: str, name: str) -> None:
        metadata = {"name": name, "namespace": namespace}
        self.api.apply({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata})


def _role(kind: str, name: str) -> dict[str, Any]:
    return {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": name}


def _subject(namespace: str, name: str) -> dict[str, Any]:
    return {"kind": "ServiceAccount", "name": name, "namespace": namespace}

"""A cluster of one node: its parts, their order, and what a test may do to them.

```
with NodeCluster(directory) as cluster:       # the node is Ready
    cluster.api ...                           # as administrator
    cluster.stop_part("kubelet")          # and `start_part`
```
Etcd, API server, full controller manager and scheduler see the node's network only; containerd and
kubelet live in its mount and process namespaces too. There is no kube-proxy: `dns` answers with
addresses of pods, and the API server listens at its own ClusterIP.
"""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Self

import grpc

from tests.support.controlplane import ControlPlane
from tests.support.controlplane_binaries import NODE_BINARIES, binaries_directory
from tests.support.fleet import ROOT
from tests.support.kube_api import JsonObject, KubeApi
from tests.support.node import cgroups, debian, images, settings
from tests.support.node.namespaces import Inside, Namespaces, NamespacesError
from tests.support.processes import Process, start_process
from tests.support.running import Running
from tests.support.waiting import wait_until

NODE = "node-1"
LABELS = "topology.kubernetes.io/zone=z1"
PARTS = ("containerd", "kubelet")


class PartEndedError(RuntimeError):
    """A part of the node is not running."""


class NodeCluster(Running):
    """The cluster; it leaves nothing behind after `stop`, or when this process dies.

    Args:
        images: further images for the node's pods.
    """

    def __init__(self, images: Sequence[images.Image] = ()) -> None:
        # Short: sockets are created below it, and their paths have at most 107 bytes.
        self.directory = Path(tempfile.mkdtemp(prefix="csi-node-"))
        self.directory.chmod(0o755)
        self._images = list(images)
        self._cgroup = f"/csi-fleet-{uuid.uuid4().hex[:8]}"
        self._parts: dict[str, Inside] = {}
        self._kubelet_since = ""
        self._helpers: list[Process] = []
        self.namespaces = Namespaces(self.directory)
        self._debian = debian.programs()
        self._binaries = binaries_directory(names=NODE_BINARIES)
        self.plane = ControlPlane(self.directory / "plane")
        self._api: KubeApi | None = None

    @property
    def api(self) -> KubeApi:
        """A client with an administrator's permissions."""
        assert self._api is not None, "the cluster is not started"
        return self._api

    def start(self) -> Self:
        """Start everything and wait until the node is Ready."""
        atexit.register(self.stop)
        self.namespaces.start()
        entered = self.namespaces.entered()
        node_user = f"system:node:{NODE}"
        self.plane = ControlPlane(
            self.directory / "plane",
            users={node_user: ("system:nodes",)},
            controllers=["*"],
            within=entered,
            address=self.namespaces.address,
            disabled_admission=(),
            api_server_flags=[
                f"--advertise-address={self.namespaces.address}",
                "--bind-address=0.0.0.0",
                "--kubelet-preferred-address-types=InternalIP",
            ],
        )
        # The port of the service `kubernetes`, whose ClusterIP is assigned to the node.
        self.plane.ports = replace(self.plane.ports, api=443)
        self.plane.start()
        self._api = self.plane.api()
        self._configure()
        self._import_and_start()
        self._help("dns", [*_python("dns"), self.plane.kubeconfig, self.namespaces.address])
        scheduler = self._binaries / "kube-scheduler"
        flags = [f"--kubeconfig={self.plane.kubeconfig}", "--leader-elect=false", "--secure-port=0"]
        self._help("kube-scheduler", [scheduler, *flags])
        wait_until(self.is_ready, 120, "the node is Ready", fatal=PartEndedError)
        return self

    def stop(self) -> None:
        """Stop everything and remove its files, mounts, cgroups and loop devices."""
        atexit.unregister(self.stop)
        if self._api is not None:
            self._api.close()
        for helper in self._helpers:
            helper.kill()
        self.namespaces.stop()
        for part in ("kube-controller-manager", "kube-apiserver", "etcd"):
            self.plane.kill(part)  # nothing is kept, so a clean shutdown is not needed
        self.plane.stop()
        for inside in self._parts.values():
            inside.process.kill()
        _detach_loops(self.directory)
        cgroups.remove(self._cgroup.strip("/"))
        shutil.rmtree(self.directory, ignore_errors=True)

    def is_ready(self) -> bool:
        """Return True if the running kubelet reports Ready; an earlier kubelet's report does not
        count.

        Raises:
            PartEndedError: it, or containerd, has ended; with the end of its log.
        """
        for part in self._parts.values():
            if not part.is_running():
                raise PartEndedError(f"{part.process.name} ended:\n{part.process.log_tail()}")
        node = self.api.get(f"/api/v1/nodes/{NODE}")
        return any(
            one["type"] == "Ready"
            and one["status"] == "True"
            and one["lastHeartbeatTime"] >= self._kubelet_since
            for one in node["status"].get("conditions", [])
        )

    def stop_part(self, part: str, number: int = signal.SIGTERM) -> None:
        """Stop containerd or kubelet; the pods keep running."""
        self._parts.pop(part).stop(number)

    def start_part(self, part: str) -> None:
        """Start the part again, and wait until containerd answers, because kubelet ends without
        it."""
        self._kubelet_since = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"
        command = {"containerd": self._containerd, "kubelet": self._kubelet}[part]()
        process = start_process(
            part,
            [*self.namespaces.entered(fully=True), *command],
            log=self.directory / f"{part}.log",
            env={**os.environ, "PATH": debian.search_path(self._debian)},
        )
        self._parts[part] = Inside(process)
        if part == "containerd":
            wait_until(self._serves_pods, 60, "containerd serves pods")

    def _serves_pods(self) -> bytes:
        """Send containerd the request that kubelet sends first; it answers other requests
        earlier."""
        with grpc.insecure_channel(f"unix://{self.directory}/containerd.sock") as channel:
            ask = channel.unary_unary("/runtime.v1.RuntimeService/Version", bytes, bytes)
            answer: bytes = ask(b"", timeout=5)
            return answer

    def ctr(self, *arguments: str) -> str:
        """Run one command of containerd's own client, in the namespace of Kubernetes."""
        return self.namespaces.run(*self._ctr(), *arguments)

    def ctr_command(self) -> list[str]:
        """Return the command prefix with which a program of this machine does the same."""
        return [*self.namespaces.entered(fully=True), *self._ctr()]

    def _ctr(self) -> list[str]:
        program = str(self._debian / "usr/bin/ctr")
        return [program, "-a", f"{self.directory}/containerd.sock", "-n", "k8s.io"]

    def kill_container(self, status: JsonObject) -> None:
        """Send SIGKILL to a container, found by its status in the pod; kubelet restarts it."""
        identity = status["containerID"].removeprefix("containerd://")
        self.ctr("tasks", "kill", "--signal", "SIGKILL", identity)

    def mounts(self, text: str) -> list[str]:
        """Return the lines of the node's mount table that contain the text."""
        table = Path(f"/proc/{self.namespaces.pid}/mountinfo").read_text()
        return [line for line in table.splitlines() if text in line]

    def logs(self, namespace: str, pod: str, container: str) -> str:
        """Return what a container printed."""
        path = f"/api/v1/namespaces/{namespace}/pods/{pod}/log?container={container}"
        return self.api.text(path)

    def csi_node(self) -> JsonObject:
        """Return the node's CSINode."""
        return self.api.get(f"/apis/storage.k8s.io/v1/csinodes/{NODE}")

    def _help(self, name: str, command: list[str | Path]) -> None:
        """Start a program that needs only the node's network."""
        command = [*self.namespaces.entered(), *command]
        log = self.directory / f"{name}.log"
        self._helpers.append(start_process(name, command, log=log, cwd=ROOT))

    def _configure(self) -> None:
        cgroups.make(self._cgroup.strip("/"))
        (self.directory / "cni").mkdir()
        (self.directory / "cni/10-pods.conflist").write_text(settings.network(self.directory))
        content = settings.containerd(self.directory, self._debian)
        (self.directory / "containerd.toml").write_text(content)
        content = settings.kubelet(self.directory, self.namespaces.address, self._cgroup)
        (self.directory / "kubelet.yaml").write_text(content)

    def _import_and_start(self) -> None:
        self.start_part("containerd")
        with tempfile.TemporaryDirectory(dir=self.directory) as scratch:
            archive = Path(scratch, "images.tar")
            images.write_archive(archive, [*images.standard_images(Path(scratch)), *self._images])
            self.ctr("images", "import", str(archive))
        for reference, image in images.held_by_digest().items():
            self.ctr("images", "tag", "--force", images.full_name(image), reference)
        self.start_part("kubelet")

    def _containerd(self) -> list[str]:
        program = f"{self._debian}/usr/bin/containerd"
        return [program, "--config", f"{self.directory}/containerd.toml", "--log-level=warn"]

    def _kubelet(self) -> list[str]:
        return [
            f"{self._binaries}/kubelet",
            f"--config={self.directory}/kubelet.yaml",
            f"--kubeconfig={self.plane.kubeconfig_for(f'system:node:{NODE}')}",
            f"--hostname-override={NODE}",
            f"--node-ip={self.namespaces.address}",
            f"--node-labels={LABELS}",
        ]


def _python(module: str) -> list[str | Path]:
    return [sys.executable, "-m", f"tests.support.node.{module}"]


def _detach_loops(directory: Path) -> None:
    """Remove loop devices, which outlive the namespace in which they were created."""
    listed = subprocess.run(
        ["losetup", "--list", "--noheadings", "--output", "NAME,BACK-FILE"],
        check=False, capture_output=True, text=True,
    ).stdout  # fmt: skip
    for line in listed.splitlines():
        if str(directory) in line:
            subprocess.run(["losetup", "--detach", line.split()[0]], check=False)


__all__ = ["NODE", "NamespacesError", "NodeCluster"]

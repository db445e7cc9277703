"""A vendor's driver that `adopt` moves, on a real API server with a simulated kubelet."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

import pytest

from tests.support.controlplane import ControlPlane
from tests.support.kube_api import JsonObject, KubeApi, KubeApiError
from tests.support.waiting import wait_until
from workers.cli.onecontainer import NAME
from workers.controllers import catalogue

DRIVER = "adopted.csi.example.org"
NAMESPACE = "vendor"
PROGRAMS = ("csi-provisioner", "csi-attacher")
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
LEASES = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases"
SECONDS = 2  # the duration of a Lease in these tests


def namespace(name: str, **labels: str) -> JsonObject:
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}


def deployment(name: str, place: str, containers: list[JsonObject], **spec: object) -> JsonObject:
    labels = {"app": name}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "namespace": place},
        "spec": {
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": {"containers": containers}},
            **spec,
        },
    }


def vendor(*, replicas: int, elects: bool) -> JsonObject:
    args = ["--csi-address=$(ADDRESS)", *(["--leader-election"] if elects else [])]
    containers: list[JsonObject] = [{"name": "driver", "image": "driver"}]
    containers += [
        {
            "name": program,
            "image": f"registry.example.org/{program}:v1",
            "args": args,
            "env": [{"name": "ADDRESS", "value": "/csi/csi.sock"}],
            "volumeMounts": [{"name": "socket", "mountPath": "/csi"}],
        }
        for program in PROGRAMS
    ]
    found = deployment("controller", NAMESPACE, containers, replicas=replicas)
    found["spec"]["template"]["spec"]["volumes"] = [{"name": "socket", "emptyDir": {}}]
    return found


class Player:
    """Simulates the kubelet and the programs in the pods.

    It sets the pods' status to running, and holds the Leases as the containers would: a Go sidecar
    or a worker takes each Lease that is free.
    """

    def __init__(self, api: KubeApi) -> None:
        self.api, self.both, self.elects = api, 0, True
        self.errors: list[KubeApiError] = []
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._ends.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ends.wait(0.1):
            try:
                self._step()
            # 404 and 409: another client has deleted the pod meanwhile.
            except KubeApiError as error:
                self.errors += [error] * (error.status not in {404, 409})

    def _step(self) -> None:
        pods = self.api.items(PODS)
        ours = [one for one in pods if has(one, NAME)]
        go = [one for one in pods if has(one, *PROGRAMS)]
        self.both += bool(ours and go and not self.elects)
        for one in (*pods, *self.api.items("/api/v1/namespaces/csi-fleet/pods")):
            if (one["status"].get("phase") or "Pending") == "Pending":
                self._start(one)
        for program in PROGRAMS if self.elects else ():
            self._hold(program, go, ours)

    def _start(self, pod: JsonObject) -> None:
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        ready = {"type": "Ready", "status": "True", "lastTransitionTime": now}
        status = {"phase": "Running", "startTime": now, "conditions": [ready]}
        metadata = pod["metadata"]
        path = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}/status"
        body = {"metadata": {"uid": pod["metadata"]["uid"]}, "status": status}
        self.api.patch(path, body)

    def _hold(self, program: str, go: list[JsonObject], ours: list[JsonObject]) -> None:
        spec = catalogue.program(program)
        assert spec is not None
        assert spec.lease_name is not None
        name = spec.lease_name(DRIVER)
        alive = {_holder(one) for one in (*go, *ours)}
        lease = self.api.find(f"{LEASES}/{name}")
        held = (lease or {}).get("spec") or {}
        ended = datetime.now(UTC) - timedelta(seconds=SECONDS)
        is_free = held.get("renewTime", "") < ended.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        holder = held.get("holderIdentity")
        if holder not in alive:
            holder = min(alive) if alive and is_free else None
        if holder is None:
            return
        moment = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        wanted = {"holderIdentity": holder, "renewTime": moment, "leaseDurationSeconds": SECONDS}
        metadata = {"name": name, "namespace": NAMESPACE}
        self.api.apply(
            {
                "apiVersion": "coordination.k8s.io/v1",
                "kind": "Lease",
                "metadata": metadata,
                "spec": wanted,
            }
        )


def has(pod: JsonObject, *names: str) -> bool:
    return any(one["name"] in names for one in pod["spec"]["containers"])


def _holder(pod: JsonObject) -> str:
    name: str = pod["metadata"]["name"]
    return f"{name}_csi-fleet-x" if has(pod, NAME) else name


class Cluster:
    """A vendor's driver in a cluster with csi-fleet."""

    def __init__(self, plane: ControlPlane, api: KubeApi, player: Player) -> None:
        self.plane, self.api, self.player = plane, api, player

    def start(self, *, replicas: int, elects: bool, **pod: object) -> JsonObject:
        """Install the driver as its vendor ships it; return its workload.

        `pod` adds fields to the spec of its pods.
        """
        self.player.elects = elects
        item = vendor(replicas=replicas, elects=elects)
        item["spec"]["template"]["spec"] |= pod
        self.api.create(item)
        wait_until(lambda: self.is_available(replicas), 60, "the vendor's pods run")
        if elects:
            wait_until(lambda: len(self.api.items(LEASES)) == 2, 30, "the sidecars lead")
        return self.workload()

    def is_available(self, replicas: int) -> bool:
        status: JsonObject = self.workload().get("status") or {}
        return status.get("availableReplicas") == replicas

    def workload(self) -> JsonObject:
        return self.api.get(f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments/controller")

    def names(self) -> list[str]:
        """Return the names of the containers."""
        pod = self.workload()["spec"]["template"]["spec"]
        return [one["name"] for one in pod["containers"]]

    def command(self, *words: str) -> subprocess.Popen[str]:
        argv = [sys.executable, "-m", "workers", words[0], DRIVER, *words[1:]]
        return subprocess.Popen(
            [*argv, f"--kubeconfig={self.plane.kubeconfig}"],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, *words: str) -> str:
        """Run the command and return when it has ended."""
        child = self.command(*words)
        output, _ = child.communicate(timeout=120)
        assert child.returncode == 0, output
        return output


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """Yield a control plane that runs the Deployment controller, unlike the shared one."""
    folder = tmp_path_factory.mktemp("adopt")
    with ControlPlane(folder, controllers=["deployment", "replicaset", "garbagecollector"]) as made:
        yield made


def prepare(api: KubeApi) -> None:
    """Create the namespaces of csi-fleet and of the vendor."""
    part = {"app.kubernetes.io/part-of": "csi-fleet"}
    for one in (
        namespace("csi-fleet"),
        namespace("csi-fleet-records", **part),
        namespace(NAMESPACE),
    ):
        api.apply(one)


def allow_all(api: KubeApi, binding: str, place: str, name: str) -> None:
    """Let a service account do everything."""
    account = {"kind": "ServiceAccount", "name": name, "namespace": place}
    rbac = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole"}
    api.apply(
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": binding},
            "roleRef": rbac | {"name": "cluster-admin"},
            "subjects": [account],
        }
    )


@contextmanager
def played(plane: ControlPlane, player: Player) -> Iterator[Cluster]:
    """Yield the cluster while the simulated kubelet runs; remove the vendor's driver afterwards."""
    api = player.api
    path = "/apis/apps/v1/namespaces/csi-fleet/deployments/watcher"
    wait_until(lambda: api.get(path)["status"].get("availableReplicas"), 60, "the watcher runs")
    try:
        yield Cluster(plane, api, player)
    finally:
        api.delete(f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments/controller")
        wait_until(lambda: not api.items(PODS), 60, "the pods are gone")
        player.stop()
        for one in api.items(LEASES):
            api.delete(f"{LEASES}/{one['metadata']['name']}")
    assert player.errors == []

"""Parts of node and driver stop and restart while one pod keeps writing to its volume."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import pytest

from tests.support.kube_api import JsonObject
from tests.support.node.cluster import NODE, NodeCluster
from tests.support.node.scene import SECONDS, NodeScene, of_claim
from tests.support.node.workloads import DRIVER, NAMESPACE, ZONE, is_available
from tests.support.waiting import wait_until

pytestmark = pytest.mark.timeout(1200)
WRITE = "while :; do echo line | tee -a /v0/log; sleep 1; done"
SOCKET = f"plugins_registry/{DRIVER}-reg.sock"
REGISTERED = '"registration status" registered=true'
NODE_PODS = f"/apis/apps/v1/namespaces/{NAMESPACE}/daemonsets/directory-node"


@pytest.fixture(scope="module")
def writing(cluster: NodeCluster) -> Iterator[NodeScene]:
    """A pod that survives all faults. In the end its volume has every line."""
    with NodeScene(cluster) as scene:
        scene.claim("old")
        scene.pod("writer", WRITE, of_claim("old"))
        scene.wait_phase("writer", "Running")
        yield scene
        written = _lines(scene)
        scene.delete_pod("writer")
        assert int(scene.printed("reader", "wc -l < /v0/log", of_claim("old"))) >= written


def driver_pod_deleted(cluster: NodeCluster) -> None:
    """Delete the pod of the node's driver and registrar, and wait for a new one."""
    old = set(_pods(cluster, "directory-node"))
    for name in old:
        cluster.api.delete(f"/api/v1/namespaces/{NAMESPACE}/pods/{name}")
    wait_until(lambda: not old & set(_pods(cluster, "directory-node")), SECONDS, "the pod is gone")
    wait_until(lambda: is_available(cluster.api.get(NODE_PODS)), SECONDS, "a new one is ready")


def workers_killed(cluster: NodeCluster) -> None:
    """Kill all workers at once; kubelet restarts their containers."""
    before = {name: _worker(cluster, name) for name in _pods(cluster, "driver")}
    for worker in before.values():
        cluster.kill_container(worker)
    for name, worker in before.items():
        restarted = partial(_is_restarted, cluster, name, worker["restartCount"])
        wait_until(restarted, SECONDS, "the worker is ready again")


def node_rebooted(cluster: NodeCluster) -> None:
    """Stop and start kubelet and containerd; kubelet finds driver and mounts again.

    If kubelet ends between NodeUnpublishVolume and NodeUnstageVolume, it forgets that volume
    forever (kubernetes#121937). The function therefore waits until only the writer's volume is on
    the node.
    """
    attached = "/apis/storage.k8s.io/v1/volumeattachments"
    wait_until(lambda: len(cluster.api.items(attached)) == 1, SECONDS, "one volume is attached")
    before = _registrations(cluster)
    for part in ("kubelet", "containerd"):
        cluster.stop_part(part)
    for part in ("containerd", "kubelet"):
        cluster.start_part(part)
    wait_until(cluster.is_ready, SECONDS, "the node is Ready")
    wait_until(lambda: _registrations(cluster) > before, SECONDS, "it is registered anew")


def registration_socket_lost(cluster: NodeCluster) -> None:
    """Delete the socket from kubelet's directory; the registrar creates it again."""
    before = _registrations(cluster)
    (cluster.directory / "kubelet" / SOCKET).unlink()
    wait_until(lambda: _registrations(cluster) > before, SECONDS, "it is registered anew")


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(driver_pod_deleted, id="NR-014-driver-pod-deleted"),
        pytest.param(workers_killed, id="workers-killed"),
        pytest.param(node_rebooted, id="NR-015-kubelet-and-containerd-restarted"),
        pytest.param(registration_socket_lost, id="NRD-003-registration-socket-lost"),
    ],
)
def test_a_pod_writes_on_and_the_next_volume_is_made(
    cluster: NodeCluster, writing: NodeScene, fault: Callable[[NodeCluster], None]
) -> None:
    """Afterwards the driver is registered, the old mount is writable, and a new claim is usable."""
    fault(cluster)
    wait_until(lambda: _is_registered(cluster), SECONDS, "CSINode names the driver")
    written = _lines(writing)
    claim = fault.__name__.replace("_", "-")
    writing.claim(claim)
    writing.printed(f"user-{claim}", "echo new > /v0/file", of_claim(claim))
    wait_until(lambda: _lines(writing) > written, SECONDS, "the pod writes on")
    assert writing.phase("writer") == "Running"


def test_a_drained_pod_gives_its_volume_back(cluster: NodeCluster, scene: NodeScene) -> None:
    """Cordoning and evicting the pod as `kubectl drain` does detaches its volume.

    The claim stays.
    """
    scene.claim("data")
    scene.pod("writer", WRITE, of_claim("data"))
    scene.wait_phase("writer", "Running")
    volume = scene.volume_of("data")["metadata"]["name"]
    node = f"/api/v1/nodes/{NODE}"
    cluster.api.patch(node, {"spec": {"unschedulable": True}})
    try:
        meta = {"name": "writer", "namespace": scene.namespace}
        eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": meta}
        cluster.api.request("POST", f"{scene.pod_path('writer')}/eviction", eviction)
        wait_until(lambda: not _attachments(cluster, volume), SECONDS, "the volume is detached")
        assert not cluster.mounts(volume)
    finally:
        cluster.api.patch(node, {"spec": {"unschedulable": None}})
    assert int(scene.printed("reader", "wc -l < /v0/log", of_claim("data"))) >= 1


def test_the_kubelet_writes_what_the_driver_says(cluster: NodeCluster) -> None:
    """NR-001, NR-010: csi-fleet's registrar alone gets the driver into CSINode and Node.

    They have its name, node id and topology.
    """
    wait_until(lambda: _is_registered(cluster), SECONDS, "CSINode names the driver")
    assert cluster.csi_node()["spec"]["drivers"] == [
        {"name": DRIVER, "nodeID": NODE, "topologyKeys": [ZONE]}
    ]
    assert cluster.api.get(f"/api/v1/nodes/{NODE}")["metadata"]["labels"][ZONE] == "z1"
    assert (cluster.directory / "kubelet" / SOCKET).stat().st_mode & 0o777 == 0o700


def _is_registered(cluster: NodeCluster) -> bool:
    drivers = cluster.csi_node()["spec"]["drivers"] or []
    return DRIVER in [one["name"] for one in drivers]


def _registrations(cluster: NodeCluster) -> int:
    """Return how often the running registrars logged that kubelet registered the driver."""
    pods = _pods(cluster, "directory-node")
    return sum(cluster.logs(NAMESPACE, one, "node").count(REGISTERED) for one in pods)


def _lines(scene: NodeScene) -> int:
    return len(scene.log("writer").splitlines())


def _pods(cluster: NodeCluster, app: str) -> list[str]:
    selector = f"app.kubernetes.io/name={app}"
    found = cluster.api.items(f"/api/v1/namespaces/{NAMESPACE}/pods", labelSelector=selector)
    return [one["metadata"]["name"] for one in found]


def _worker(cluster: NodeCluster, pod: str) -> JsonObject:
    found = cluster.api.get(f"/api/v1/namespaces/{NAMESPACE}/pods/{pod}")
    return next(one for one in found["status"]["containerStatuses"] if one["name"] == "worker")


def _is_restarted(cluster: NodeCluster, pod: str, restarts: int) -> bool:
    now = _worker(cluster, pod)
    return now["restartCount"] > restarts and bool(now["ready"])


def _attachments(cluster: NodeCluster, volume: str) -> list[str]:
    found = cluster.api.items("/apis/storage.k8s.io/v1/volumeattachments")
    return [
        one["metadata"]["name"]
        for one in found
        if one["spec"]["source"].get("persistentVolumeName") == volume
    ]

"""The attacher with kube-controller-manager's attach/detach controller and real drivers.

Pods are bound to nodes as API objects only; the cluster's own controller creates and deletes the
VolumeAttachments. MA-060: once all work is done, the API server and the drivers agree on what is
attached.
"""

from __future__ import annotations

import os
import signal
import time

import pytest

from csi_client import messages as csi
from tests.support.attach_cluster import (
    ATTACHMENTS,
    CAPABILITIES,
    CONTROLLER,
    CSI_NODES,
    NODES,
    OUT_OF_SERVICE,
    AttachCluster,
)
from tests.support.controlplane import ControlPlane
from tests.support.csi_driver import DirectoryDriver
from tests.support.fleet import Fleet
from tests.support.waiting import wait_until

NODE_COUNT = 20
VOLUMES_PER_NODE = 10


@pytest.fixture(scope="module")
def plane(tmp_path_factory):
    with ControlPlane(tmp_path_factory.mktemp("plane"), controllers=[CONTROLLER]) as plane:
        yield plane


@pytest.fixture(scope="module")
def attaching():
    """Two drivers with the capability to attach."""
    flags = [f"--capabilities={CAPABILITIES}"]
    with DirectoryDriver(arguments=flags) as one, DirectoryDriver(arguments=flags) as two:
        yield one, two


@pytest.fixture(scope="module")
def program(plane, attaching, tmp_path_factory):
    """Two workers that attach for both drivers."""
    flags = ("--controllers=attacher", "--workers=2", "--timeout=4s", "-v=4")
    retry = ("--retry-interval-start=200ms", "--retry-interval-max=2s", "--reconcile-sync=1h")
    directory = tmp_path_factory.mktemp("fleet")
    with Fleet(directory, plane.kubeconfig, attaching, *flags, *retry) as fleet:
        yield fleet


@pytest.fixture
def cluster(plane, attaching, program):
    with plane.api() as api:
        cluster = AttachCluster(api, attaching)
        yield cluster
        for driver in attaching:
            if not driver.is_running:
                driver.start()
            driver.set_rules()
        cluster.clean_up()
    assert "Traceback" not in program.log_text()


def use(cluster, driver, nodes, mode="ReadWriteOnce"):
    """Create one volume and one pod per node; return the volumes and pods."""
    volumes = cluster.add_volumes(driver, len(nodes), mode)
    cluster.wait_bound()
    pods = [cluster.add_pod(node, [one]) for node, one in zip(nodes, volumes, strict=True)]
    return volumes, pods


def overlapping(driver, cluster, since):
    """Return Publish and Unpublish calls that overlapped another call for the same volume (I-3)."""
    return [
        call
        for call in driver.concurrent_calls()
        if call.started_at >= since and "Publish" in call.method
    ]


def test_two_hundred_attachments_over_twenty_nodes_and_two_drivers(cluster, attaching):
    """A-034, MA-011: all volumes are attached, and after the pods are deleted all are detached."""
    started = time.time()
    nodes = cluster.add_nodes(NODE_COUNT)
    volumes = [
        one
        for driver in attaching
        for one in cluster.add_volumes(driver, NODE_COUNT * VOLUMES_PER_NODE // 2)
    ]
    cluster.wait_bound()
    wanted = {(one, nodes[index % NODE_COUNT]) for index, one in enumerate(volumes)}
    pods = [
        cluster.add_pod(node, [one for one, where in sorted(wanted) if where == node])
        for node in nodes
    ]
    cluster.wait_attached(wanted, 180)
    for volume in volumes[:: len(volumes) // 10]:
        assert len(cluster.finalizers(volume)) == 1
    publishes = [
        call
        for driver in attaching
        for call in driver.calls("ControllerPublishVolume")
        if call.started_at >= started
    ]
    # DA-009: each pair is published once; csi-attacher repeats a quarter of them.
    assert len(publishes) == len(wanted)
    for pod in pods:
        cluster.delete_pod(pod)
    cluster.wait_detached(180)
    assert [call for driver in attaching for call in overlapping(driver, cluster, started)] == []


def test_one_volume_on_eight_nodes(cluster, attaching):
    """DA-015, TA-037: the PV gets one finalizer, and each pair one call without an error."""
    started = time.time()
    nodes = cluster.add_nodes(8)
    (volume,) = cluster.add_volumes(attaching[0], 1, "ReadWriteMany")
    cluster.wait_bound()
    for node in nodes:
        cluster.add_pod(node, [volume])
    cluster.wait_attached({(volume, node) for node in nodes})
    assert len(cluster.finalizers(volume)) == 1
    calls = [c for c in attaching[0].calls("ControllerPublishVolume") if c.started_at >= started]
    assert sorted(call.request["node_id"] for call in calls) == [f"id-{node}" for node in nodes]


def test_volume_moves_to_the_next_node(cluster, attaching):
    """MA-012: the second node's publish follows the unpublish from the first node."""
    first, second = cluster.add_nodes(2)
    (volume,), (pod,) = use(cluster, attaching[0], [first])
    cluster.wait_attached({(volume, first)})
    attaching[0].set_rules({"method": "ControllerUnpublishVolume", "delay_seconds": 1})
    cluster.delete_pod(pod)
    cluster.add_pod(second, [volume])
    cluster.wait_attached({(volume, second)})
    codes = [call.code for call in attaching[0].calls("ControllerPublishVolume")]
    assert "FAILED_PRECONDITION" not in codes


def test_force_detach_from_a_node_out_of_service(cluster, attaching):
    """A-069: once the cluster force-detaches, the driver is called.

    It is called although the node reports the volume as in use.
    """
    (node,) = cluster.add_nodes(1)
    (volume,), (pod,) = use(cluster, attaching[0], [node])
    cluster.wait_attached({(volume, node)})
    cluster.in_use(node, attaching[0], [volume])
    cluster.delete_pod(pod)
    taint = {"key": OUT_OF_SERVICE, "value": "nodeshutdown", "effect": "NoExecute"}
    cluster.api.patch(f"{NODES}/{node}", {"spec": {"taints": [taint]}})
    cluster.wait_detached()


def test_node_is_deleted(cluster, attaching):
    """A-065, TA-056: the attachment itself stores the driver's id of the node."""
    (node,) = cluster.add_nodes(1)
    (volume,), (pod,) = use(cluster, attaching[0], [node])
    cluster.wait_attached({(volume, node)})
    cluster.api.delete(f"{CSI_NODES}/{node}")
    cluster.api.delete(f"{NODES}/{node}")
    cluster.delete_pod(pod)
    for attachment in cluster.attachments():
        cluster.api.delete(f"{ATTACHMENTS}/{attachment['metadata']['name']}")
    cluster.wait_detached()


@pytest.mark.parametrize(
    "rule",
    [
        pytest.param({"delay_seconds": 2}, id="late"),
        pytest.param({"code": "ABORTED", "times": 3}, id="aborted"),
        pytest.param({"code": "DEADLINE_EXCEEDED", "after_work": True, "times": 2}, id="lost"),
        pytest.param({"hang": True, "times": 1}, id="hangs"),
    ],
)
def test_driver_in_trouble(cluster, attaching, rule):
    """A-043, A-120, MA-014, TA-028: attach and detach are retried until they succeed."""
    started = time.time()
    nodes = cluster.add_nodes(2)
    attaching[0].set_rules(*({"method": f"Controller{m}*", **rule} for m in ("Publish", "Unpub")))
    volumes, pods = use(cluster, attaching[0], nodes)
    cluster.wait_attached(set(zip(volumes, nodes, strict=True)))
    cluster.wait_noticed(len(volumes))
    for pod in pods:
        cluster.delete_pod(pod)
    cluster.wait_detached()
    assert overlapping(attaching[0], cluster, started) == []


def test_ta114_driver_is_lost_and_comes_back(cluster, attaching):
    """P-003: the lost driver's attachment waits without an error; the other is attached."""
    away, well = attaching
    nodes = cluster.add_nodes(2)
    volumes = cluster.add_volumes(away, 1) + cluster.add_volumes(well, 1)
    cluster.wait_bound()
    away.kill()
    for node, volume in zip(nodes, volumes, strict=True):
        cluster.add_pod(node, [volume])
    wait_until(lambda: (volumes[1], nodes[1]) in cluster.attached(), 60, "the other one's")
    assert (volumes[0], nodes[0]) not in cluster.attached()
    away.start()
    cluster.wait_attached(set(zip(volumes, nodes, strict=True)))
    errors = [one["status"].get("attachError") for one in cluster.attachments()]
    assert errors == [None, None]


def test_ta118_worker_is_killed_during_the_publish(cluster, attaching, program):
    """DA-031, MA-016, I-6: another worker repeats the call at once, without waiting for a Lease."""
    (node,) = cluster.add_nodes(1)
    # A delay would not do: a call that ends a minute later publishes volumes again that later tests
    # have detached.
    rule = {"method": "ControllerPublishVolume", "hang": True, "times": 1}
    attaching[0].set_rules(rule)
    (volume,), _ = use(cluster, attaching[0], [node])
    wait_until(
        lambda: any(one.ended_at is None for one in attaching[0].calls("ControllerPublishVolume")),
        30,
        "the call runs",
    )
    for worker in program.workers():
        os.kill(worker, signal.SIGKILL)
    cluster.wait_attached({(volume, node)})


def test_drivers_truth_wins(plane, attaching, tmp_path, cluster):
    """A-090, A-095, DA-011: a volume that someone detached at the driver is published again."""
    (node,) = cluster.add_nodes(1)
    (volume,), _ = use(cluster, attaching[0], [node])
    cluster.wait_attached({(volume, node)})
    client = attaching[0].client()
    handle = cluster.handle(volume)
    client.call("Controller/ControllerUnpublishVolume", *unpublish(handle, f"id-{node}"))
    client.close()
    assert cluster.published() == set()
    flags = ("--controllers=attacher", "--reconcile-sync=1s")
    with Fleet(tmp_path / "other", plane.kubeconfig, attaching[:1], *flags):
        wait_until(lambda: cluster.published() == {(handle, f"id-{node}")}, 30, "published again")


def unpublish(handle, node_id):
    request = csi.ControllerUnpublishVolumeRequest(volume_id=handle, node_id=node_id)
    return request, csi.ControllerUnpublishVolumeResponse

"""SIGTERM while every controller has a call at the driver: each call ends and its result is saved.

The Go programs cut their calls (SND-028) and leave a Lease that the next one waits for (DA-031).
"""

from __future__ import annotations

import pytest

from tests.support.attach_cluster import ATTACHMENTS, AttachCluster
from tests.support.csi_driver import DirectoryDriver
from tests.support.fleet import Fleet
from tests.support.waiting import wait_until

SNAPSHOTS = "/apis/snapshot.storage.k8s.io/v1"
CAPABILITIES = (
    "CONTROLLER_SERVICE,CREATE_DELETE_VOLUME,PUBLISH_UNPUBLISH_VOLUME,EXPAND_VOLUME,"
    "CREATE_DELETE_SNAPSHOT,LIST_SNAPSHOTS"
)
METHODS = (
    "CreateVolume",
    "DeleteVolume",
    "ControllerPublishVolume",
    "ControllerExpandVolume",
    "CreateSnapshot",
)
CONTROLLERS = "provisioner,attacher,resizer,snapshotter,snapshot-controller"


@pytest.fixture(scope="module")
def driver():
    with DirectoryDriver(arguments=[f"--capabilities={CAPABILITIES}"]) as driver:
        yield driver


def test_every_call_under_way_is_finished_and_saved(kubeconfig, api, scene, driver, tmp_path):
    """A-008, SNA-110, SND-028: exit code 0, and nothing is called after the signal."""
    cluster = AttachCluster(api, [driver])
    storage_class = scene.storage_class(driver.name, allowVolumeExpansion=True)
    snapshot_class = {"kind": "VolumeSnapshotClass", "metadata": {"name": f"{scene.name}-s"}}
    api.create(
        {
            "apiVersion": "snapshot.storage.k8s.io/v1",
            **snapshot_class,
            "driver": driver.name,
            "deletionPolicy": "Delete",
        }
    )
    fleet = Fleet(tmp_path / "f", kubeconfig, [driver], f"--controllers={CONTROLLERS}")
    fleet.start()
    try:
        (node,) = cluster.add_nodes(1)
        for name in ("grows", "is-cut", "goes"):
            scene.claim(name, storage_class)
        scene.wait_bound("grows", "is-cut", "goes")
        going = scene.volume_of(scene.get("goes"))["metadata"]["name"]
        (volume,) = cluster.add_volumes(driver, 1)
        driver.set_rules(*({"method": one, "delay_seconds": 4} for one in METHODS))
        before = {one: len(driver.calls(one)) for one in METHODS}
        scene.claim("comes", storage_class)
        api.delete(f"{scene.claims_path}/goes")
        grown = {"spec": {"resources": {"requests": {"storage": "3Gi"}}}}
        api.patch(f"{scene.claims_path}/grows", grown)
        cut(api, scene, snapshot_class["metadata"]["name"], "is-cut")
        attach(api, cluster, driver, node, volume)
        for one in METHODS:
            wait_until(lambda one=one: len(driver.calls(one)) > before[one], 60, f"{one} runs")
        assert fleet.stop() == 0
        assert {one: len(driver.calls(one)) - before[one] for one in METHODS} == dict.fromkeys(
            METHODS, 1
        )
        saved(api, scene, cluster, going, (volume, node))
    finally:
        fleet.stop()
        driver.set_rules()
        for one in cluster.attachments():
            # Nobody is left to take the finalizer off.
            path = f"{ATTACHMENTS}/{one['metadata']['name']}"
            api.patch(path, {"metadata": {"finalizers": None}})
            api.delete(path)
        cluster.clean_up()
        api.delete(f"{SNAPSHOTS}/volumesnapshotclasses/{scene.name}-s")


def cut(api, scene, snapshot_class, claim):
    api.create(
        {
            "apiVersion": "snapshot.storage.k8s.io/v1",
            "kind": "VolumeSnapshot",
            "metadata": {"name": "snap", "namespace": scene.namespace},
            "spec": {
                "source": {"persistentVolumeClaimName": claim},
                "volumeSnapshotClassName": snapshot_class,
            },
        }
    )


def attach(api, cluster, driver, node, volume):
    source = {"persistentVolumeName": volume}
    api.create(
        {
            "apiVersion": "storage.k8s.io/v1",
            "kind": "VolumeAttachment",
            "metadata": {"name": f"{cluster.name}-va"},
            "spec": {"attacher": driver.name, "nodeName": node, "source": source},
        }
    )


def saved(api, scene, cluster, going, pair):
    """What each call did stands at the API server; nobody of ours is left to write it later."""
    uid = scene.get("comes")["metadata"]["uid"]
    volumes = {one["metadata"]["name"]: one for one in api.items("/api/v1/persistentvolumes")}
    assert f"pvc-{uid}" in volumes
    assert going not in volumes
    assert cluster.attached() == {pair}
    grown = scene.get("grows")
    assert volumes[grown["spec"]["volumeName"]]["spec"]["capacity"]["storage"] == "3Gi"
    assert grown["status"]["capacity"]["storage"] == "3Gi"
    (content,) = [
        one
        for one in api.items(f"{SNAPSHOTS}/volumesnapshotcontents")
        if one["spec"]["volumeSnapshotRef"]["namespace"] == scene.namespace
    ]
    assert content["status"]["readyToUse"]

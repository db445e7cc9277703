"""Snapshots in the state in which a snapshotter leaves them: object, content and status."""

from __future__ import annotations

import uuid

import grpc

from csi_client import messages
from csi_client._generated import csi_pb2_grpc
from tests.support.csi_driver import DirectoryDriver
from tests.support.fleet import Scene

GROUP = "snapshot.storage.k8s.io"


def make_snapshot(driver: DirectoryDriver, volume_id: str) -> str:
    """Let the driver create a snapshot of a volume; return its id."""
    with grpc.insecure_channel(f"unix:{driver.address}") as channel:
        stub = csi_pb2_grpc.ControllerStub(channel)
        request = messages.CreateSnapshotRequest(source_volume_id=volume_id, name=f"s-{volume_id}")
        return str(stub.CreateSnapshot(request).snapshot.snapshot_id)


def add_snapshot(scene: Scene, driver: DirectoryDriver, snapshot_id: str) -> str:
    """Create the objects of a ready snapshot `snap`; return its path."""
    api = scene.api
    content = f"content-{uuid.uuid4().hex[:8]}"
    version = f"{GROUP}/v1"
    created = api.create(
        {
            "apiVersion": version,
            "kind": "VolumeSnapshot",
            "metadata": {"name": "snap", "namespace": scene.namespace},
            "spec": {"source": {"volumeSnapshotContentName": content}},
        }
    )
    reference = {
        "name": "snap",
        "namespace": scene.namespace,
        "uid": created["metadata"]["uid"],
        "kind": "VolumeSnapshot",
    }
    api.create(
        {
            "apiVersion": version,
            "kind": "VolumeSnapshotContent",
            "metadata": {"name": content},
            "spec": {
                "driver": driver.name,
                "deletionPolicy": "Delete",
                "volumeSnapshotRef": reference,
                "source": {"snapshotHandle": snapshot_id},
            },
        }
    )
    status = {"readyToUse": True, "restoreSize": "1Gi", "boundVolumeSnapshotContentName": content}
    path = f"/apis/{version}/namespaces/{scene.namespace}/volumesnapshots/snap"
    api.patch(f"{path}/status", {"status": status})
    api.patch(
        f"/apis/{version}/volumesnapshotcontents/{content}/status",
        {"status": {"readyToUse": True, "restoreSize": 2**30, "snapshotHandle": snapshot_id}},
    )
    return path

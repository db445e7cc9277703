"""Objects that a worker under an attacker's control tries to change, in
tests/e2e/test_attacks.py."""

from __future__ import annotations

from typing import Any, Final

from tests.support.kube_api import JsonObject, KubeApi
from tests.support.shipped import RECORDS

VOLUMES: Final = "/api/v1/persistentvolumes"
ATTACHMENTS: Final = "/apis/storage.k8s.io/v1/volumeattachments"
SNAPSHOTS: Final = "/apis/snapshot.storage.k8s.io/v1/namespaces/default/volumesnapshots"
CONTENTS: Final = "/apis/snapshot.storage.k8s.io/v1/volumesnapshotcontents"
HELD: Final = [
    "example.org/backup",
    "snapshot.storage.kubernetes.io/volumesnapshot-bound-protection",
]
# Paths of the created objects, which are removed at the end.
MADE: list[str] = []


def volume(name: str, driver: str, **spec: Any) -> JsonObject:
    """Return a PV with a CSI source, or with the given source."""
    source = spec.pop("source", {"csi": {"driver": driver, "volumeHandle": "h"}})
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {
            "name": name,
            "annotations": {"pv.kubernetes.io/provisioned-by": spec.pop("made_by", driver)},
        },
        "spec": {
            "capacity": {"storage": "1Gi"},
            "accessModes": ["ReadWriteOnce"],
            "persistentVolumeReclaimPolicy": "Delete",
            "claimRef": {"namespace": "default", "name": "data", "uid": "u"},
            **source,
            **spec,
        },
    }


def record(name: str, driver: str) -> JsonObject:
    """Return the copy of an attempt of a driver; "" for no driver."""
    annotations = {"csi-fleet.io/driver": driver} if driver else {}
    meta = {"name": name, "namespace": RECORDS, "annotations": annotations}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": {"record": "{}"}}


def made(admin: KubeApi, path: str, body: JsonObject) -> str:
    """Create an object that belongs to another program, once; return its name."""
    name: str = body["metadata"]["name"]
    if f"{path}/{name}" not in MADE:
        MADE.append(f"{path}/{name}")
        admin.request("POST", path, body)
    return name


def attachment(admin: KubeApi, driver: str) -> str:
    """Create a VolumeAttachment; return its name."""
    return made(admin, ATTACHMENTS, attachment_body(f"attack-{driver}", driver))


def attachment_body(name: str, driver: str) -> JsonObject:
    """Return a VolumeAttachment of a driver."""
    return {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "VolumeAttachment",
        "metadata": {"name": name},
        "spec": {"attacher": driver, "nodeName": "n", "source": {"persistentVolumeName": "pv"}},
    }


def content(admin: KubeApi, driver: str) -> str:
    """Create a VolumeSnapshotContent; return its name."""
    return made(admin, CONTENTS, content_body(f"attack-{driver}", driver))


def content_body(name: str, driver: str) -> JsonObject:
    """Return a VolumeSnapshotContent of a driver."""
    return {
        "apiVersion": "snapshot.storage.k8s.io/v1",
        "kind": "VolumeSnapshotContent",
        "metadata": {"name": name},
        "spec": {
            "driver": driver,
            "deletionPolicy": "Delete",
            "source": {"volumeHandle": "h"},
            "volumeSnapshotRef": {"name": "s", "namespace": "default"},
        },
    }


def claim_path(admin: KubeApi, driver: str) -> str:
    """Create a claim and return its path; a driver "" stands for no driver."""
    path = "/api/v1/namespaces/default/persistentvolumeclaims"
    name = f"attack-{driver or 'by-hand'}"
    return f"{path}/{made(admin, path, claim_body(name, driver))}"


def claim_body(name: str, driver: str) -> JsonObject:
    """Return a claim; a driver "" stands for no driver."""
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {
            "name": name,
            "namespace": "default",
            "annotations": {"volume.kubernetes.io/storage-provisioner": driver} if driver else {},
        },
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "1Gi"}},
            "storageClassName": "none-such",
        },
    }


def snapshot(admin: KubeApi, name: str, **metadata: Any) -> str:
    """Create a VolumeSnapshot; return its name."""
    return made(admin, SNAPSHOTS, snapshot_body(name, **metadata))


def snapshot_body(name: str, **metadata: Any) -> JsonObject:
    """Return a VolumeSnapshot."""
    return {
        "apiVersion": "snapshot.storage.k8s.io/v1",
        "kind": "VolumeSnapshot",
        "metadata": {"name": name, "namespace": "default", "finalizers": HELD, **metadata},
        "spec": {"source": {"persistentVolumeClaimName": "c"}, "volumeSnapshotClassName": "mine"},
    }


def merged(item: JsonObject, change: JsonObject) -> JsonObject:
    """Return the object with another value at the given place, for a PUT."""
    return {
        **item,
        **{part: {**item[part], **change[part]} for part in ("metadata", "spec") if part in change},
    }


def existing(admin: KubeApi, driver: str) -> str:
    """Create a PV that is bound to another user's claim; return its name."""
    claim = {"namespace": "default", "name": "data"}
    return made(admin, VOLUMES, volume(f"attack-{driver}", driver, claimRef=claim))

"""Objects that a taken-over worker reaches for, in tests/e2e/test_attacks.py."""

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
# Paths of what was made, to be removed.
MADE: list[str] = []


def volume(name: str, driver: str, **spec: Any) -> JsonObject:
    """A PV with a CSI source, or the given one."""
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
    """The copy of an attempt of a driver, "" for none."""
    annotations = {"csi-fleet.io/driver": driver} if driver else {}
    meta = {"name": name, "namespace": RECORDS, "annotations": annotations}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": {"record": "{}"}}


def made(admin: KubeApi, path: str, body: JsonObject) -> str:
    """An object of somebody else, made once; returns its name."""
    name: str = body["metadata"]["name"]
    if f"{path}/{name}" not in MADE:
        MADE.append(f"{path}/{name}")
        admin.request("POST", path, body)
    return name


def attachment(admin: KubeApi, driver: str) -> str:
    """Makes a VolumeAttachment; returns its name."""
    return made(admin, ATTACHMENTS, attachment_body(f"attack-{driver}", driver))


def attachment_body(name: str, driver: str) -> JsonObject:
    """A VolumeAttachment of a driver."""
    return {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "VolumeAttachment",
        "metadata": {"name": name},
        "spec": {"attacher": driver, "nodeName": "n", "source": {"persistentVolumeName": "pv"}},
    }


def content(admin: KubeApi, driver: str) -> str:
    """Makes a VolumeSnapshotContent; returns its name."""
    return made(admin, CONTENTS, content_body(f"attack-{driver}", driver))


def content_body(name: str, driver: str) -> JsonObject:
    """A VolumeSnapshotContent of a driver."""
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
    """Makes a claim, of no driver for ""; returns its path."""
    path = "/api/v1/namespaces/default/persistentvolumeclaims"
    name = f"attack-{driver or 'by-hand'}"
    return f"{path}/{made(admin, path, claim_body(name, driver))}"


def claim_body(name: str, driver: str) -> JsonObject:
    """A claim, of no driver for ""."""
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
    """Makes a VolumeSnapshot; returns its name."""
    return made(admin, SNAPSHOTS, snapshot_body(name, **metadata))


def snapshot_body(name: str, **metadata: Any) -> JsonObject:
    """A VolumeSnapshot."""
    return {
        "apiVersion": "snapshot.storage.k8s.io/v1",
        "kind": "VolumeSnapshot",
        "metadata": {"name": name, "namespace": "default", "finalizers": HELD, **metadata},
        "spec": {"source": {"persistentVolumeClaimName": "c"}, "volumeSnapshotClassName": "mine"},
    }


def merged(item: JsonObject, change: JsonObject) -> JsonObject:
    """The object with another part in it, to be put."""
    return {
        **item,
        **{part: {**item[part], **change[part]} for part in ("metadata", "spec") if part in change},
    }


def existing(admin: KubeApi, driver: str) -> str:
    """Makes a PV of somebody's claim; returns its name."""
    claim = {"namespace": "default", "name": "data"}
    return made(admin, VOLUMES, volume(f"attack-{driver}", driver, claimRef=claim))

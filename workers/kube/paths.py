"""The API paths of each kind, built from its group, version and plural."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final
from urllib.parse import quote


@dataclass(frozen=True, slots=True)
class Resource:
    """One kind of object, as the API serves it; `group` is empty for core/v1."""

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool = False

    @property
    def api_version(self) -> str:
        """Return `group/version`, or `v1` for the core group."""
        return f"{self.group}/{self.version}" if self.group else self.version

    def at(self, version: str) -> Resource:
        """Return the same kind in a different served version."""
        return replace(self, version=version)

    def path(self, name: str = "", *, namespace: str = "") -> str:
        """Return the path of one object, or of the whole collection if `name` is empty.

        Without `namespace`, the collection of a namespaced kind covers all namespaces.
        """
        root = f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"
        if namespace:
            root += f"/namespaces/{quote(namespace, safe='')}"
        root += f"/{self.plural}"
        return f"{root}/{quote(name, safe='')}" if name else root


_STORAGE: Final = "storage.k8s.io"
_SNAPSHOT: Final = "snapshot.storage.k8s.io"
_GROUP_SNAPSHOT: Final = "groupsnapshot.storage.k8s.io"

NAMESPACES: Final = Resource("", "v1", "namespaces", "Namespace")
CLAIMS: Final = Resource(
    "", "v1", "persistentvolumeclaims", "PersistentVolumeClaim", namespaced=True
)
VOLUMES: Final = Resource("", "v1", "persistentvolumes", "PersistentVolume")
SECRETS: Final = Resource("", "v1", "secrets", "Secret", namespaced=True)
EVENTS: Final = Resource("", "v1", "events", "Event", namespaced=True)
NODES: Final = Resource("", "v1", "nodes", "Node")
PODS: Final = Resource("", "v1", "pods", "Pod", namespaced=True)
CONFIG_MAPS: Final = Resource("", "v1", "configmaps", "ConfigMap", namespaced=True)
STORAGE_CLASSES: Final = Resource(_STORAGE, "v1", "storageclasses", "StorageClass")
CSI_NODES: Final = Resource(_STORAGE, "v1", "csinodes", "CSINode")
ATTACHMENTS: Final = Resource(_STORAGE, "v1", "volumeattachments", "VolumeAttachment")
CAPACITIES: Final = Resource(
    _STORAGE, "v1", "csistoragecapacities", "CSIStorageCapacity", namespaced=True
)
ATTRIBUTES_CLASSES: Final = Resource(
    _STORAGE, "v1", "volumeattributesclasses", "VolumeAttributesClass"
)
SNAPSHOTS: Final = Resource(_SNAPSHOT, "v1", "volumesnapshots", "VolumeSnapshot", namespaced=True)
SNAPSHOT_CONTENTS: Final = Resource(
    _SNAPSHOT, "v1", "volumesnapshotcontents", "VolumeSnapshotContent"
)
SNAPSHOT_CLASSES: Final = Resource(_SNAPSHOT, "v1", "volumesnapshotclasses", "VolumeSnapshotClass")
GROUP_SNAPSHOTS: Final = Resource(
    _GROUP_SNAPSHOT, "v1", "volumegroupsnapshots", "VolumeGroupSnapshot", namespaced=True
)
GROUP_SNAPSHOT_CONTENTS: Final = Resource(
    _GROUP_SNAPSHOT, "v1", "volumegroupsnapshotcontents", "VolumeGroupSnapshotContent"
)
GROUP_SNAPSHOT_CLASSES: Final = Resource(
    _GROUP_SNAPSHOT, "v1", "volumegroupsnapshotclasses", "VolumeGroupSnapshotClass"
)
SNAPSHOT_METADATA_SERVICES: Final = Resource(
    "cbt.storage.k8s.io", "v1beta1", "snapshotmetadataservices", "SnapshotMetadataService"
)
REFERENCE_GRANTS: Final = Resource(
    "gateway.networking.k8s.io", "v1beta1", "referencegrants", "ReferenceGrant", namespaced=True
)
POPULATORS: Final = Resource(
    "populator.storage.k8s.io", "v1beta1", "volumepopulators", "VolumePopulator"
)
LEASES: Final = Resource("coordination.k8s.io", "v1", "leases", "Lease", namespaced=True)
DEPLOYMENTS: Final = Resource("apps", "v1", "deployments", "Deployment", namespaced=True)
STATEFUL_SETS: Final = Resource("apps", "v1", "statefulsets", "StatefulSet", namespaced=True)
DAEMON_SETS: Final = Resource("apps", "v1", "daemonsets", "DaemonSet", namespaced=True)
REPLICA_SETS: Final = Resource("apps", "v1", "replicasets", "ReplicaSet", namespaced=True)

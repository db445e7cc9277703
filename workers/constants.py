"""Upstream's exact annotation, finalizer and label names, each with its source.

Unless stated otherwise, the names are from kubernetes-csi/external-provisioner v6.3 and
sig-storage-lib-external-provisioner v13.
"""

from __future__ import annotations

from typing import Final

# These are annotations of claims, except the first one, which is set on the copy of an intent. It
# names the copy's driver, because the admission policy does not let a worker write copies for other
# drivers.
ANN_RECORD_DRIVER: Final = "csi-fleet.io/driver"

ANN_STORAGE_PROVISIONER: Final = "volume.kubernetes.io/storage-provisioner"
ANN_STORAGE_PROVISIONER_BETA: Final = "volume.beta.kubernetes.io/storage-provisioner"
ANN_STORAGE_CLASS_BETA: Final = "volume.beta.kubernetes.io/storage-class"
ANN_SELECTED_NODE: Final = "volume.kubernetes.io/selected-node"
ANN_SELECTED_NODE_ALPHA: Final = "volume.alpha.kubernetes.io/selected-node"
ANN_MIGRATED_TO: Final = "pv.kubernetes.io/migrated-to"

# Annotations of volumes.
ANN_PROVISIONED_BY: Final = "pv.kubernetes.io/provisioned-by"
ANN_DELETION_SECRET_NAME: Final = "volume.kubernetes.io/provisioner-deletion-secret-name"
ANN_DELETION_SECRET_NAMESPACE: Final = "volume.kubernetes.io/provisioner-deletion-secret-namespace"
ANN_MODIFY_SECRET_NAME: Final = "volume.kubernetes.io/controller-modify-secret-name"
ANN_MODIFY_SECRET_NAMESPACE: Final = "volume.kubernetes.io/controller-modify-secret-namespace"

# csi-fleet's own annotation of volumes: the keys of the labels that were taken from the claim.
ANN_CLAIM_LABELS: Final = "csi-fleet.io/claim-labels"

# Annotations of snapshot contents, SNA-006 (external-snapshotter v8.6, pkg/utils/util.go).
ANN_ALLOW_MODE_CHANGE: Final = "snapshot.storage.kubernetes.io/allow-volume-mode-change"
ANN_BEING_CREATED: Final = "snapshot.storage.kubernetes.io/volumesnapshot-being-created"
ANN_BEING_DELETED: Final = "snapshot.storage.kubernetes.io/volumesnapshot-being-deleted"
ANN_SNAPSHOT_SECRET_NAME: Final = "snapshot.storage.kubernetes.io/deletion-secret-name"
ANN_SNAPSHOT_SECRET_NAMESPACE: Final = "snapshot.storage.kubernetes.io/deletion-secret-namespace"
ANN_GROUP_HANDLE: Final = "groupsnapshot.storage.k8s.io/volumeGroupSnapshotHandle"
ANN_GROUP_BEING_CREATED: Final = (
    "groupsnapshot.storage.kubernetes.io/volumegroupsnapshot-being-created"
)
ANN_GROUP_BEING_DELETED: Final = (
    "groupsnapshot.storage.kubernetes.io/volumegroupsnapshot-being-deleted"
)
ANN_GROUP_SECRET_NAME: Final = "groupsnapshot.storage.kubernetes.io/deletion-secret-name"
ANN_GROUP_SECRET_NAMESPACE: Final = "groupsnapshot.storage.kubernetes.io/deletion-secret-namespace"
LABEL_SNAPSHOT_NODE: Final = "snapshot.storage.kubernetes.io/managed-by"

# Annotations of snapshot classes.
ANN_DEFAULT_SNAPSHOT_CLASS: Final = "snapshot.storage.kubernetes.io/is-default-class"
ANN_DEFAULT_GROUP_CLASS: Final = "groupsnapshot.storage.kubernetes.io/is-default-class"

# Volume attribute.
ATTR_IDENTITY: Final = "storage.kubernetes.io/csiProvisionerIdentity"

# Finalizers.
FINALIZER_VOLUME: Final = "external-provisioner.volume.kubernetes.io/finalizer"
FINALIZER_CLONE_SOURCE: Final = "provisioner.storage.kubernetes.io/cloning-protection"
FINALIZER_SNAPSHOT_SOURCE: Final = (
    "provisioner.storage.kubernetes.io/volumesnapshot-as-source-protection"
)

# Finalizers of snapshots, SNA-005. The provisioner sets FINALIZER_SNAPSHOT_SOURCE (above) while it
# restores from a snapshot.
FINALIZER_SNAPSHOT_AS_SOURCE: Final = (
    "snapshot.storage.kubernetes.io/volumesnapshot-as-source-protection"
)
FINALIZER_SNAPSHOT_BOUND: Final = "snapshot.storage.kubernetes.io/volumesnapshot-bound-protection"
FINALIZER_SNAPSHOT_IN_GROUP: Final = (
    "snapshot.storage.kubernetes.io/volumesnapshot-in-group-protection"
)
FINALIZER_CONTENT: Final = "snapshot.storage.kubernetes.io/volumesnapshotcontent-bound-protection"
FINALIZER_CLAIM_AS_SOURCE: Final = "snapshot.storage.kubernetes.io/pvc-as-source-protection"
FINALIZER_GROUP_BOUND: Final = (
    "groupsnapshot.storage.kubernetes.io/volumegroupsnapshot-bound-protection"
)
FINALIZER_GROUP_CONTENT: Final = (
    "groupsnapshot.storage.kubernetes.io/volumegroupsnapshotcontent-bound-protection"
)

# Labels of CSIStorageCapacity objects.
LABEL_DRIVER_NAME: Final = "csi.storage.k8s.io/drivername"
LABEL_MANAGED_BY: Final = "csi.storage.k8s.io/managed-by"

# API groups.
GROUP_SNAPSHOT: Final = "snapshot.storage.k8s.io"
GROUP_GROUP_SNAPSHOT: Final = "groupsnapshot.storage.k8s.io"

# Prefix of reserved storage class parameters.
PARAMETER_PREFIX: Final = "csi.storage.k8s.io/"

# Event reasons.
REASON_PROVISIONING: Final = "Provisioning"
REASON_PROVISIONING_SUCCEEDED: Final = "ProvisioningSucceeded"
REASON_PROVISIONING_FAILED: Final = "ProvisioningFailed"
REASON_PROVISIONING_CLEANUP_FAILED: Final = "ProvisioningCleanupFailed"
REASON_VOLUME_FAILED_DELETE: Final = "VolumeFailedDelete"
# csi-fleet's own reason: provisioning is suspended.
REASON_PROVISIONING_WAITING: Final = "ProvisioningWaiting"

# In-tree migration (csi-translation-lib).
ANN_AZURE_FILE_RESOURCE_GROUP: Final = "kubernetes.io/azure-file-resource-group"
ANN_PORTWORX_SECRET_NAME: Final = "openstorage.io/auth-secret-name"
ANN_PORTWORX_SECRET_NAMESPACE: Final = "openstorage.io/auth-secret-namespace"
LABEL_REGION: Final = "topology.kubernetes.io/region"
LABEL_REGION_BETA: Final = "failure-domain.beta.kubernetes.io/region"
LABEL_ZONE: Final = "topology.kubernetes.io/zone"
LABEL_ZONE_BETA: Final = "failure-domain.beta.kubernetes.io/zone"

# Label of the copies of intents in csi-fleet's own namespace.
LABEL_INTENT: Final = "csi-fleet.io/intent"

"""Builds the VolumeSnapshotContent of a dynamic snapshot, without I/O (SNC-044)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from workers import constants as k
from workers.errors import AttemptError, State
from workers.translate import snapshot_objects as objects
from workers.translate import snapshot_secrets
from workers.translate.fields import Json, optional_text, text, text_map
from workers.translate.snapshot_secrets import SecretUse

if TYPE_CHECKING:
    from workers.translate.secrets import SecretRef


def secret_of(snapshot: Json, snapshot_class: Json) -> SecretRef | None:
    """Return the reference to the secret for CreateSnapshot and DeleteSnapshot (SNA-020).

    Raises:
        AttemptError: the templates in the class cannot be resolved.
    """
    return snapshot_secrets.resolve(
        SecretUse.SNAPSHOT,
        text_map(snapshot_class, "parameters"),
        objects.content_name(snapshot),
        name=objects.name_of(snapshot),
        namespace=objects.namespace_of(snapshot),
    )


def check_driver(snapshot_class: Json, volume: Json) -> None:
    """Checks that the class and the volume name the same driver (SND-008).

    Upstream does not check this, and would call the wrong driver.

    Raises:
        AttemptError: the two drivers differ.
    """
    wanted, found = text(snapshot_class, "driver"), text(volume, "spec", "csi", "driver")
    if wanted != found:
        raise AttemptError(
            f"snapshot class {objects.name_of(snapshot_class)} is for driver {wanted}, but volume "
            f"{objects.name_of(volume)} belongs to driver {found}",
            State.NO_CHANGE,
        )


def build(
    snapshot: Json,
    snapshot_class: Json,
    volume: Json,
    *,
    secret: SecretRef | None,
    node: str,
    keeps_mode: bool,
) -> dict[str, Any]:
    """Return the VolumeSnapshotContent to create.

    The content has its finalizer from the start. snapshot-controller adds the finalizer later; a
    deletion before that moment leaves the snapshot behind in the storage system (SND-002).

    Args:
        snapshot: the dynamic snapshot.
        snapshot_class: the snapshot's class.
        volume: the volume that the snapshot's claim is bound to, with `spec.csi`.
        secret: the reference to the class's secret, with templates resolved.
        node: the value of the node label in distributed mode; "" for no label.
        keeps_mode: whether the content records the volume's mode (SNC-081).
    """
    metadata: dict[str, Any] = {
        "name": objects.content_name(snapshot),
        "finalizers": [k.FINALIZER_CONTENT],
    }
    if node:
        metadata["labels"] = {k.LABEL_SNAPSHOT_NODE: node}
    if secret is not None:
        metadata["annotations"] = {
            k.ANN_SNAPSHOT_SECRET_NAME: secret.name,
            k.ANN_SNAPSHOT_SECRET_NAMESPACE: secret.namespace,
        }
    spec: dict[str, Any] = {
        "volumeSnapshotRef": {
            "apiVersion": f"{k.GROUP_SNAPSHOT}/v1",
            "kind": "VolumeSnapshot",
            "namespace": objects.namespace_of(snapshot),
            "name": objects.name_of(snapshot),
            "uid": objects.uid_of(snapshot),
            "resourceVersion": text(snapshot, "metadata", "resourceVersion"),
        },
        "source": {"volumeHandle": text(volume, "spec", "csi", "volumeHandle")},
        "volumeSnapshotClassName": objects.name_of(snapshot_class),
        "deletionPolicy": text(snapshot_class, "deletionPolicy"),
        "driver": text(snapshot_class, "driver"),
    }
    # If the mode is not recorded, null is sent, as snapshot-controller does.
    spec["sourceVolumeMode"] = optional_text(volume, "spec", "volumeMode") if keeps_mode else None
    return {
        "apiVersion": f"{k.GROUP_SNAPSHOT}/v1",
        "kind": "VolumeSnapshotContent",
        "metadata": metadata,
        "spec": spec,
    }

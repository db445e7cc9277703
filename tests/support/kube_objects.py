"""Builders of API objects as the watcher's structs or as JSON; every argument has a default."""

from __future__ import annotations

from typing import Any

import msgspec

from workers.constants import (
    ANN_MIGRATED_TO,
    ANN_PROVISIONED_BY,
    ANN_SELECTED_NODE,
    ANN_STORAGE_PROVISIONER,
    FINALIZER_VOLUME,
)
from workers.kube.objects import Claim, Volume


def claim_json(
    name: str = "claim1",
    *,
    namespace: str = "default",
    uid: str = "u1",
    version: str = "1",
    provisioner: str | None = "foo",
    migrated_to: str | None = None,
    selected_node: str | None = None,
    annotations: dict[str, str] | None = None,
    storage_class: str | None = "class1",
    volume_name: str = "",
    phase: str = "Pending",
    **extra: Any,
) -> dict[str, Any]:
    """Return a PersistentVolumeClaim; `extra` goes to metadata (finalizers, deletionTimestamp)
    or spec."""
    named = {
        ANN_STORAGE_PROVISIONER: provisioner,
        ANN_MIGRATED_TO: migrated_to,
        ANN_SELECTED_NODE: selected_node,
    }
    notes = {
        **(annotations or {}),
        **{key: value for key, value in named.items() if value is not None},
    }
    metadata: dict[str, Any] = {
        "name": name,
        "namespace": namespace,
        "uid": uid,
        "resourceVersion": version,
        "annotations": notes,
    }
    spec: dict[str, Any] = {"volumeName": volume_name}
    if storage_class is not None:
        spec["storageClassName"] = storage_class
    for key, value in extra.items():
        (spec if key.startswith("dataSource") else metadata)[key] = value
    return {"metadata": metadata, "spec": spec, "status": {"phase": phase}}


def make_claim(name: str = "claim1", **fields: Any) -> Claim:
    """Return the claim as the watcher's struct."""
    return msgspec.convert(claim_json(name, **fields), Claim)


def volume_json(
    name: str = "pv1",
    *,
    uid: str = "v1",
    version: str = "1",
    provisioned_by: str | None = "foo",
    migrated_to: str | None = None,
    csi_driver: str | None = None,
    policy: str = "Delete",
    phase: str = "Released",
    deleting: bool = False,
    finalizer: bool = True,
    **spec: Any,
) -> dict[str, Any]:
    """Return a PersistentVolume; `spec` is merged into its spec."""
    notes = {}
    if provisioned_by is not None:
        notes[ANN_PROVISIONED_BY] = provisioned_by
    if migrated_to is not None:
        notes[ANN_MIGRATED_TO] = migrated_to
    metadata: dict[str, Any] = {
        "name": name,
        "uid": uid,
        "resourceVersion": version,
        "annotations": notes,
        "finalizers": ["kubernetes.io/pv-protection"] + [FINALIZER_VOLUME] * finalizer,
    }
    if deleting:
        metadata["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    body: dict[str, Any] = {"persistentVolumeReclaimPolicy": policy, **spec}
    if csi_driver is not None:
        body["csi"] = {"driver": csi_driver, "volumeHandle": "h"}
    return {"metadata": metadata, "spec": body, "status": {"phase": phase}}


def make_volume(name: str = "pv1", **fields: Any) -> Volume:
    """Return the volume as the watcher's struct."""
    return msgspec.convert(volume_json(name, **fields), Volume)


def own_conditions(status: Any) -> list[dict[str, str]]:
    """Return the conditions in a claim's status, without the one that Kubernetes 1.37 itself puts
    on each claim."""
    return [one for one in status.get("conditions") or () if one["type"] != "Unused"]

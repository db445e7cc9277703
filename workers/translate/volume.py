"""Checks the driver's response to CreateVolume, and builds the PersistentVolume.

There are two steps, as in csi-provisioner: `build_volume` builds the PV, and `complete_volume` adds
the claim and the class. For a migrated class, the caller translates the PV back between the two
steps (P-606).
Source: external-provisioner, pkg/controller/controller.go Provision; sig-storage-lib, controller.go
provisionClaimOperation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from workers.constants import (
    ANN_DELETION_SECRET_NAME,
    ANN_DELETION_SECRET_NAMESPACE,
    ANN_MODIFY_SECRET_NAME,
    ANN_MODIFY_SECRET_NAMESPACE,
    ANN_PROVISIONED_BY,
    ATTR_IDENTITY,
    FINALIZER_VOLUME,
)
from workers.errors import AttemptError, State
from workers.translate import claims, quantity
from workers.translate.fields import Json, annotations_of, optional_mapping, text, text_list
from workers.translate.secrets import SecretRef, VolumeSecrets

if TYPE_CHECKING:
    from collections.abc import Mapping

    from csi_client import messages as csi


@dataclass(frozen=True, slots=True)
class Rejection:
    """Why a created volume is unusable; the caller deletes it (P-430), then raises `error`."""

    volume_id: str
    volume_name: str
    message: str
    cleanup_word: str
    """`Cleanup` or `cleanup`: upstream's two messages differ in this letter."""

    def error(self, cleanup_error: object = None) -> AttemptError:
        """Return the InBackground error of the attempt (P-150, P-152).

        Args:
            cleanup_error: why the volume could not be deleted; None if it was deleted.
        """
        message = self.message
        if cleanup_error is not None:
            message += (
                f". {self.cleanup_word} of volume {self.volume_name} failed, volume is orphaned: "
                f"{cleanup_error}"
            )
        return AttemptError(message, State.BACKGROUND)


def _content_problem(requested: csi.VolumeContentSource, answered: csi.VolumeContentSource) -> str:
    """Return how the response's source differs from the requested one; "" if equal (D-020)."""
    kind = requested.WhichOneof("type")
    answered_kind = answered.WhichOneof("type")
    if answered_kind is None:
        return ""
    if answered_kind != kind:
        return f"volume content source is a {answered_kind}, requested a {kind}"
    wanted = requested.snapshot.snapshot_id or requested.volume.volume_id
    found = answered.snapshot.snapshot_id or answered.volume.volume_id
    if found and found != wanted:
        return f"volume content source is {kind} {found}, requested {wanted}"
    return ""


def check_response(
    request: csi.CreateVolumeRequest, response: csi.CreateVolumeResponse
) -> Rejection | None:
    """Compare a CreateVolume response with its request; return None if they agree (P-150, P-152).

    A volume is also rejected if its content source is not the requested one; csi-provisioner
    only checks that the response has a content source (D-020). As in csi-provisioner, a source
    without an id is accepted.
    """
    volume = response.volume
    required = request.capacity_range.required_bytes
    if volume.capacity_bytes != 0 and volume.capacity_bytes < required:
        return Rejection(
            volume.volume_id,
            request.name,
            f"created volume capacity {volume.capacity_bytes} less than requested capacity "
            f"{required}",
            "Cleanup",
        )
    if not request.HasField("volume_content_source"):
        return None
    problem = "volume content source missing"
    if volume.HasField("content_source"):
        problem = _content_problem(request.volume_content_source, volume.content_source)
    return Rejection(volume.volume_id, request.name, problem, "cleanup") if problem else None


def granted_bytes(volume: csi.Volume, required_bytes: int) -> int:
    """Return the PV's size: the volume's, or the requested size if the driver sent 0 (P-150)."""
    return volume.capacity_bytes or required_bytes


def _annotations(provisioner: SecretRef | None, modify: SecretRef | None) -> dict[str, str]:
    """Return the annotations of P-170.

    The annotations for the deletion secret are always set, even if the value is empty.
    """
    found = {
        ANN_DELETION_SECRET_NAME: provisioner.name if provisioner else "",
        ANN_DELETION_SECRET_NAMESPACE: provisioner.namespace if provisioner else "",
    }
    if modify is not None:
        found[ANN_MODIFY_SECRET_NAME] = modify.name
        found[ANN_MODIFY_SECRET_NAMESPACE] = modify.namespace
    return found


def _secret_refs(secrets: VolumeSecrets) -> dict[str, dict[str, str] | None]:
    refs = {
        "controllerPublishSecretRef": secrets.controller_publish,
        "nodeStageSecretRef": secrets.node_stage,
        "nodePublishSecretRef": secrets.node_publish,
        "controllerExpandSecretRef": secrets.controller_expand,
        "nodeExpandSecretRef": secrets.node_expand,
    }
    return {
        key: {"name": ref.name, "namespace": ref.namespace} if ref else None
        for key, ref in refs.items()
    }


def _without_unset(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Drop unset optional fields: None, "", False and empty lists are left out of a PV (P-906)."""
    return {key: value for key, value in fields.items() if value not in (None, "", False, [], {})}


def _build(
    *,
    name: str,
    driver_name: str,
    identity: str,
    claim: Json,
    storage_class: Json,
    volume: csi.Volume,
    required_bytes: int,
    fs_type: str,
    provisioner_secret: SecretRef | None,
    secrets: VolumeSecrets,
    node_affinity: Json | None,
    attributes_class: str,
    read_only: bool,
) -> dict[str, Any]:
    source = {
        "driver": driver_name,
        "volumeHandle": volume.volume_id,
        "volumeAttributes": {ATTR_IDENTITY: identity} | dict(sorted(volume.volume_context.items())),
        "fsType": "" if claims.is_block(claim) else fs_type,
        "readOnly": read_only,
        **_secret_refs(secrets),
    }
    spec = {
        "accessModes": claims.access_modes(claim),
        "mountOptions": text_list(storage_class, "mountOptions"),
        "capacity": {"storage": quantity.canonical(granted_bytes(volume, required_bytes))},
        "persistentVolumeReclaimPolicy": text(storage_class, "reclaimPolicy"),
        "volumeMode": claims.volume_mode(claim),
        "nodeAffinity": node_affinity,
        "volumeAttributesClassName": attributes_class,
        "csi": _without_unset(source),
    }
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {
            "name": name,
            "annotations": _annotations(provisioner_secret, secrets.controller_modify),
        },
        "spec": _without_unset(spec),
    }


def build_volume(
    *,
    name: str,
    driver_name: str,
    identity: str,
    claim: Json,
    storage_class: Json,
    volume: csi.Volume,
    required_bytes: int,
    fs_type: str = "",
    provisioner_secret: SecretRef | None = None,
    secrets: VolumeSecrets | None = None,
    node_affinity: Json | None = None,
    attributes_class: str = "",
    read_only: bool = False,
) -> dict[str, Any]:
    """Build the PV of one attempt, field by field as in P-170 and P-906.

    Args:
        name: the result of `names.volume_name`; the name in the request.
        driver_name: the name of the running driver.
        identity: `<ms>-<n>-<driver>` of this process (P-010); the driver's volume context takes
            precedence over it (P-171).
        claim: the claim.
        storage_class: the class before translation, for its mount options and reclaim policy
            (P-602).
        volume: the volume in the response, accepted by `check_response`.
        required_bytes: the requested size, used if the driver returned 0.
        fs_type: the file system type in the request; left out for block volumes.
        provisioner_secret: the secret that is kept in annotations for the deletion.
        secrets: the secret references for later calls.
        node_affinity: the affinity from the response's topology; None if topology is off (P-340).
        attributes_class: the VolumeAttributesClass that was sent (P-160).
        read_only: the result of `capability.is_read_only` (P-701).

    Raises:
        AttemptError: InBackground, because the volume exists; a field of the claim or class is
            invalid.
    """
    try:
        return _build(
            name=name,
            driver_name=driver_name,
            identity=identity,
            claim=claim,
            storage_class=storage_class,
            volume=volume,
            required_bytes=required_bytes,
            fs_type=fs_type,
            provisioner_secret=provisioner_secret,
            secrets=secrets or VolumeSecrets(),
            node_affinity=node_affinity,
            attributes_class=attributes_class,
            read_only=read_only,
        )
    except AttemptError as error:
        raise AttemptError(error.message, State.BACKGROUND) from error


def complete_volume(volume: Json, *, claim: Json, storage_class: Json) -> dict[str, Any]:
    """Return the PV to save, with the claim reference, the class and our finalizer (P-190).

    The finalizer is added only once, even if the PV already has it (C-022).

    Args:
        volume: the result of `build_volume`, translated back if the class is migrated.
        claim: the volume's claim; it may already have been deleted (P-401).
        storage_class: the class before translation; its provisioner is stored in `provisioned-by`.

    Raises:
        AttemptError: InBackground, because the volume exists; the claim's namespace, name or UID is
            missing.
    """
    try:
        return _complete(volume, claim, storage_class)
    except AttemptError as error:
        raise AttemptError(error.message, State.BACKGROUND) from error


def _complete(volume: Json, claim: Json, storage_class: Json) -> dict[str, Any]:
    finalizers = text_list(volume, "metadata", "finalizers")
    if FINALIZER_VOLUME not in finalizers:
        finalizers.append(FINALIZER_VOLUME)
    provisioned_by = {ANN_PROVISIONED_BY: text(storage_class, "provisioner")}
    metadata = {
        "annotations": annotations_of(volume) | provisioned_by,
        "finalizers": finalizers,
    }
    spec = {
        "claimRef": claims.claim_reference(claim),
        "storageClassName": claims.claim_class_name(claim),
    }
    return {
        **volume,
        "metadata": {**(optional_mapping(volume, "metadata") or {}), **metadata},
        "spec": {**(optional_mapping(volume, "spec") or {}), **_without_unset(spec)},
    }

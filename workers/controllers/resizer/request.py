"""Builds the driver's requests from live objects, without I/O (R-040, R-041, R-104)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from csi_client import messages as csi
from workers.constants import ANN_MODIFY_SECRET_NAME, ANN_MODIFY_SECRET_NAMESPACE
from workers.errors import AttemptError, State
from workers.migration.to_csi import volume_to_csi
from workers.translate.fields import Json, annotations_of, text, value_at
from workers.translate.published import volume_capability
from workers.translate.secrets import SecretRef

if TYPE_CHECKING:
    from collections.abc import Mapping

    from workers.kube.objects import JsonObject


def csi_volume(volume: JsonObject) -> JsonObject:
    """Return the volume in its CSI form.

    Raises:
        AttemptError: NO_CHANGE; the volume has no CSI form or no handle.
    """
    if value_at(volume, "spec", "csi") is None:
        # Only drivers that replace in-tree plugins have such claims (`decide.is_ours`), so R-040's
        # message "is not migrated to CSI" never occurs.
        try:
            volume = volume_to_csi(volume)
        except AttemptError as error:
            message = f"failed to translate persistent volume: {error.message}"
            raise AttemptError(message, State.NO_CHANGE) from error
    if not text(volume, "spec", "csi", "volumeHandle"):
        raise AttemptError("empty volume handle", State.NO_CHANGE)
    return volume


def expand_secret(volume: Json) -> SecretRef | None:
    """Return the ControllerExpandVolume secret that a volume in CSI form names, or None."""
    name = text(volume, "spec", "csi", "controllerExpandSecretRef", "name")
    namespace = text(volume, "spec", "csi", "controllerExpandSecretRef", "namespace")
    return SecretRef(name, namespace) if name or namespace else None


def modify_secret(volume: Json) -> SecretRef | None:
    """Return the annotated secret for ControllerModifyVolume, else the expand secret.

    The annotated secret is used only if the annotations give both its name and its namespace.
    """
    found = annotations_of(volume)
    name, namespace = found.get(ANN_MODIFY_SECRET_NAME), found.get(ANN_MODIFY_SECRET_NAMESPACE)
    return SecretRef(name, namespace) if name and namespace else expand_secret(volume)


def expand_request(
    volume: Json,
    size_bytes: int,
    secrets: Mapping[str, str],
    *,
    default_fs_type: str,
    multi_writer: bool,
) -> csi.ControllerExpandVolumeRequest:
    """Build the expand request for a volume in CSI form.

    Raises:
        AttemptError: NO_CHANGE; CSI cannot express the access modes.
    """
    try:
        capability = volume_capability(
            volume, default_fs_type=default_fs_type, multi_writer=multi_writer
        )
    except AttemptError as error:
        name = text(volume, "metadata", "name")
        message = f"failed to get capabilities of volume {name} with {error.message}"
        raise AttemptError(message, State.NO_CHANGE) from error
    return csi.ControllerExpandVolumeRequest(
        volume_id=text(volume, "spec", "csi", "volumeHandle"),
        capacity_range=csi.CapacityRange(required_bytes=size_bytes),
        secrets=dict(secrets),
        volume_capability=capability,
    )


def modify_request(
    volume: Json, parameters: Mapping[str, str], secrets: Mapping[str, str]
) -> csi.ControllerModifyVolumeRequest:
    """Build the modify request for a volume in CSI form."""
    return csi.ControllerModifyVolumeRequest(
        volume_id=text(volume, "spec", "csi", "volumeHandle"),
        secrets=dict(secrets),
        mutable_parameters=dict(parameters),
    )

"""Decides whether a claim may be cloned from another claim, and returns the source's handle.

Checks the rows of P-220 in order, on objects that the caller has read. The caller calls
`source_volume_name` first, and then `content_source`. Rows 8 to 13 share one event message, because
users and dashboards rely on it; the exact cause is in `SourceError.detail`, for the log.
Source: external-provisioner, pkg/controller/controller.go getPVCSource.
"""

from __future__ import annotations

from typing import Final

from workers.constants import FINALIZER_CLONE_SOURCE
from workers.translate import claims
from workers.translate.fields import (
    Json,
    has_finalizer,
    is_deleting,
    optional_mapping,
    optional_text,
    text,
)
from workers.translate.sources import ContentSource, DataSource, SourceError

_BOUND: Final = "Bound"
_INVALID: Final = "claim in dataSource not bound or invalid"
_MODE_MISMATCH: Final = (
    "the source PVC and destination PVCs must have the same volume mode for cloning.  "
)


def read_failed(source: DataSource, error: object) -> SourceError:
    """Return the error for a source claim that could not be read (row 1).

    The message names the namespace that was searched; csi-provisioner names the namespace of the
    new claim (D-034).
    """
    return SourceError(
        source,
        f'error getting PVC {source.name} (namespace "{source.namespace}") from api server: '
        f"{error}",
    )


def not_found(source: DataSource) -> SourceError:
    """Return the error for a missing source claim, with client-go's message (row 1)."""
    return read_failed(source, f'persistentvolumeclaim "{source.name}" not found')


def source_volume_name(source: DataSource, source_claim: Json, claim: Json) -> str:
    """Return the name of the source's volume, for the caller to read next (rows 2 to 7).

    Raises:
        SourceError: NoChange; one of these checks fails. The first one that fails is reported.
    """
    name = source.name
    phase = text(source_claim, "status", "phase")
    if phase != _BOUND:
        raise SourceError(
            source, f"the PVC DataSource {name} must have a status of Bound.  Got {phase}"
        )
    if is_deleting(source_claim):
        raise SourceError(source, f"the PVC DataSource {name} is currently being deleted")
    if optional_text(source_claim, "spec", "storageClassName") is None:
        raise SourceError(source, f"the source PVC ({name}) storageclass cannot be empty")
    if optional_text(claim, "spec", "storageClassName") is None:
        raise SourceError(
            source, f"the requested PVC ({source.claim_name}) storageclass cannot be empty"
        )
    requested = claims.requested_bytes(claim)
    source_size = claims.requested_bytes(source_claim)
    if requested < source_size:
        raise SourceError(
            source,
            "error, new PVC request must be greater than or equal in size to the specified PVC "
            f"data source, requested {requested} but source is {source_size}",
        )
    volume_name = text(source_claim, "spec", "volumeName")
    if not volume_name:
        raise SourceError(source, f"volume name is empty in source PVC {name}")
    return volume_name


def volume_read_failed(source: DataSource, error: object) -> SourceError:
    """Return the error for a source volume that could not be read (row 8)."""
    return SourceError(source, _INVALID, detail=str(error))


def _volume_problem(source_claim: Json, volume: Json, driver_name: str) -> str:
    """Return the violation of rows 9 to 13, or "" if there is none."""
    name = text(volume, "metadata", "name")
    if optional_mapping(volume, "spec", "csi") is None:
        return f"volume {name} has no CSI source"
    driver = text(volume, "spec", "csi", "driver")
    if driver != driver_name:
        return f"volume {name} belongs to driver {driver}, not {driver_name}"
    if optional_mapping(volume, "spec", "claimRef") is None:
        return f"volume {name} has no claimRef"
    for key in ("uid", "namespace", "name"):
        bound_to = text(volume, "spec", "claimRef", key)
        expected = text(source_claim, "metadata", key)
        if bound_to != expected:
            return f"volume {name} is bound to a claim with {key} {bound_to}, not {expected}"
    phase = text(volume, "status", "phase")
    return "" if phase == _BOUND else f"volume {name} is in phase {phase or 'unknown'}"


def _mode_problem(volume: Json, claim: Json) -> str:
    """Return the violation of rows 14 and 15, or "" if there is none."""
    source_mode = optional_text(volume, "spec", "volumeMode")
    if claims.is_block(claim):
        if source_mode != claims.BLOCK:
            return f"{_MODE_MISMATCH}Source is Filesystem, but new PVC requested Block"
    elif source_mode is not None and source_mode != claims.FILESYSTEM:
        return f"{_MODE_MISMATCH}Source is Block, but new PVC requested Filesystem"
    return ""


def content_source(
    source: DataSource, *, source_claim: Json, source_volume: Json, claim: Json, driver_name: str
) -> ContentSource:
    """Return the handle of the source volume for the request (rows 9 to 15, P-222).

    Args:
        source: the normalised source.
        source_claim: the claim to clone.
        source_volume: the volume of the source claim; an in-tree volume is already translated
            to CSI (D-004).
        claim: the new claim.
        driver_name: the name of the running driver.

    Raises:
        SourceError: NoChange; one of these checks fails. The first one that fails is reported.
    """
    problem = _volume_problem(source_claim, source_volume, driver_name)
    if problem:
        raise SourceError(source, _INVALID, detail=problem)
    mismatch = _mode_problem(source_volume, claim)
    if mismatch:
        raise SourceError(source, mismatch)
    return ContentSource(volume_id=text(source_volume, "spec", "csi", "volumeHandle"))


def needs_finalizer(source_claim: Json) -> bool:
    """Return True if our finalizer must be added to the source before the call (P-226)."""
    return not has_finalizer(source_claim, FINALIZER_CLONE_SOURCE)

"""Decides whether a claim may be restored from a VolumeSnapshot, and returns the snapshot's handle.

Checks the rows of P-210 in order, on objects that the caller has read live. The caller calls
`content_name` first, and then `content_source`.
Source: external-provisioner, pkg/controller/controller.go getSnapshotSource, validateVolumeMode.
"""

from __future__ import annotations

from workers.constants import ANN_ALLOW_MODE_CHANGE, FINALIZER_SNAPSHOT_SOURCE
from workers.translate import claims, quantity
from workers.translate.fields import (
    Json,
    annotations_of,
    flag,
    has_finalizer,
    is_deleting,
    optional_text,
    text,
    value_at,
)
from workers.translate.go_text import parse_bool
from workers.translate.snapshot_objects import node_affinity
from workers.translate.sources import ContentSource, DataSource, SourceError


def read_failed(source: DataSource, error: object) -> SourceError:
    """Return the error for a snapshot that could not be read (row 1)."""
    return SourceError(source, f"error getting snapshot {source.name} from api server: {error}")


def content_name(source: DataSource, snapshot: Json) -> str:
    """Return the name of the bound content, for the caller to read next (rows 2 and 3).

    A snapshot that is being deleted can still be used if it has our finalizer: an earlier attempt
    has begun, and finishing it avoids a leaked volume (P-211).

    Raises:
        SourceError: NoChange; the snapshot is being deleted, or is not bound to a content.
    """
    if is_deleting(snapshot) and not has_finalizer(snapshot, FINALIZER_SNAPSHOT_SOURCE):
        raise SourceError(source, f"snapshot {source.name} is being deleted")
    bound = optional_text(snapshot, "status", "boundVolumeSnapshotContentName")
    if bound is None:
        raise SourceError(source, f"snapshot {source.name} not bound")
    if not bound:
        raise content_read_failed(source, "", "resource name may not be empty")
    return bound


def content_read_failed(source: DataSource, content: str, error: object) -> SourceError:
    """Return the error for an unreadable content (row 4); only the log has the cause."""
    return SourceError(
        source,
        f"error getting snapshotcontent {content} for snapshot {source.name}",
        detail=str(error),
    )


def _is_bound_to(content: Json, snapshot: Json) -> bool:
    return all(
        text(content, "spec", "volumeSnapshotRef", key) == text(snapshot, "metadata", key)
        for key in ("uid", "namespace", "name")
    )


def _check_size(source: DataSource, snapshot: Json, claim: Json) -> str:
    """Check rows 9 and 10; return a warning if the volume must grow (P-212)."""
    restore_size = value_at(snapshot, "status", "restoreSize")
    if restore_size is None:
        return ""
    if not claims.has_storage_request(claim):
        raise SourceError(
            source,
            f"error getting capacity for PVC {source.claim_name} when creating snapshot "
            f"{source.name}",
        )
    requested = claims.requested_bytes(claim)
    try:
        size = quantity.parse(restore_size)
    except quantity.QuantityError as error:
        raise SourceError(source, f"restore size of snapshot: {error.message}") from error
    if requested < size:
        raise SourceError(
            source,
            f"requested volume size {requested} is less than the size {size} for the source "
            f"snapshot {source.name}",
        )
    if requested == size:
        return ""
    return (
        f"requested volume size {requested} is greater than the size {size} for the source "
        f"snapshot {source.name}. Volume plugin needs to handle volume expansion."
    )


def _check_mode(source: DataSource, content: Json, claim: Json) -> None:
    """Check that the content allows a change of the volume mode (P-214)."""
    source_mode = optional_text(content, "spec", "sourceVolumeMode")
    mode = claims.volume_mode(claim)
    if source_mode is None or not mode or source_mode == mode:
        return
    name = text(content, "metadata", "name")
    value = annotations_of(content).get(ANN_ALLOW_MODE_CHANGE)
    problem = f"{ANN_ALLOW_MODE_CHANGE} is set to false on snapshotcontent {name}"
    if value is None:
        problem = f"{ANN_ALLOW_MODE_CHANGE} annotation is not present on snapshotcontent {name}"
    else:
        try:
            if parse_bool(value):
                return
        except ValueError as error:
            problem = (
                f"failed to convert {ANN_ALLOW_MODE_CHANGE} annotation value to boolean with "
                f"error: {error}"
            )
    raise SourceError(
        source,
        f"requested volume {source.claim_namespace}/{source.claim_name} modifies the mode of the "
        f"source volume but does not have permission to do so. {problem}",
    )


def content_source(
    source: DataSource,
    *,
    snapshot: Json,
    content: Json,
    claim: Json,
    class_name: str,
    driver_name: str,
    prevent_mode_conversion: bool = True,
    has_topology: bool = False,
) -> ContentSource:
    """Return the snapshot handle for the request (rows 5 to 11, P-215).

    Args:
        source: the normalised source.
        snapshot: the VolumeSnapshot.
        content: the VolumeSnapshotContent named by `content_name`.
        claim: the claim that the snapshot is being restored to.
        class_name: the claim's class, for a message.
        driver_name: the name of the running driver. csi-provisioner compares the content's
            driver with the class's provisioner. For a migrated class, that is the in-tree name,
            so such a restore never works there (D-004).
        prevent_mode_conversion: the flag `--prevent-volume-mode-conversion`.
        has_topology: the gate `VolumeSnapshotTopology`; without it, nodeAffinity is not read.

    Raises:
        SourceError: NoChange; one of these checks fails. The first one that fails is reported.
    """
    content_named = text(content, "metadata", "name")
    where = f"snapshotcontent {content_named} for snapshot {source.name}"
    if not _is_bound_to(content, snapshot):
        raise SourceError(source, f"{where} is bound to a different snapshot")
    if text(content, "spec", "driver") != driver_name:
        raise SourceError(
            source, f"{where} is not handled by CSI driver of StorageClass {class_name}"
        )
    if not flag(snapshot, "status", "readyToUse"):
        raise SourceError(source, f"snapshot {source.name} is not Ready")
    handle = text(content, "status", "snapshotHandle")
    if not handle:
        raise SourceError(source, f"snapshot handle {source.name} is not available")
    warning = _check_size(source, snapshot, claim)
    if prevent_mode_conversion:
        _check_mode(source, content, claim)
    affinity = node_affinity(content) if has_topology else ()
    return ContentSource(handle, warning=warning, node_affinity=tuple(affinity))


def needs_finalizer(snapshot: Json) -> bool:
    """Return True if our finalizer must be added to the source before the call (P-217)."""
    return not has_finalizer(snapshot, FINALIZER_SNAPSHOT_SOURCE)

"""Finds the sources of claims, and whether a snapshot is still needed as a source.

A reference is (kind, namespace, name). Two finalizers protect a snapshot: the provisioner's
finalizer during a restore, and the snapshot controller's, which is kept while a pending claim names
the snapshot or the provisioner's finalizer is set (SNC-058 row 2). So neither program deletes a
snapshot that the other is still reading, even if one of them is a Go sidecar.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from workers.constants import FINALIZER_SNAPSHOT_SOURCE, GROUP_SNAPSHOT
from workers.translate.fields import Json, has_finalizer, optional_mapping, text

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

KIND_CLAIM: Final = "PersistentVolumeClaim"
KIND_SNAPSHOT: Final = "VolumeSnapshot"

Reference = tuple[str, str, str]


def source_references(claim: Mapping[str, Any]) -> set[Reference]:
    """Return the sources of a claim: source claims from both fields, and at most one snapshot.

    The rule for the snapshot is csi-provisioner's (P-242): dataSource takes precedence over
    dataSourceRef, and the group must be absent or the snapshot group. Claims in dataSourceRef count
    too (CL-009, D-018).
    """
    found: set[Reference] = set()
    has_snapshot = False
    for field in ("dataSource", "dataSourceRef"):
        source = optional_mapping(claim, "spec", field) or {}
        kind, group, name = (text(source, part) for part in ("kind", "apiGroup", "name"))
        place = text(source, "namespace") or text(claim, "metadata", "namespace")
        if kind == KIND_CLAIM and not group:
            found.add((KIND_CLAIM, place, name))
        elif kind == KIND_SNAPSHOT and group in {"", GROUP_SNAPSHOT} and not has_snapshot:
            found.add((KIND_SNAPSHOT, place, name))
            has_snapshot = True
    return found


def phase_of(claim: Mapping[str, Any]) -> str:
    """Return the claim's phase, or "" if it has none yet."""
    return (claim.get("status") or {}).get("phase") or ""


def references_of(claims: Iterable[Mapping[str, Any]], phases: frozenset[str]) -> set[Reference]:
    """Return the sources of all claims that are in one of these phases."""
    return {
        reference
        for claim in claims
        if phase_of(claim) in phases
        for reference in source_references(claim)
    }


# Claims in one of these phases still need their source (P-242).
UNBOUND: Final = frozenset({"", "Pending"})


def is_being_restored(snapshot: Json) -> bool:
    """Return True while a provisioner is restoring from the snapshot, even if the claim is gone."""
    return has_finalizer(snapshot, FINALIZER_SNAPSHOT_SOURCE)

"""Which claims still need a claim or snapshot as the source of their volume (CL-006, P-242)?

A reference is (kind, namespace, name). Claims are looked at as they are in the API server, and as
the records of attempts under way have them: a claim deleted in the middle of its attempt is in no
list any more, but the storage may still copy for it (D-016).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from workers.constants import GROUP_SNAPSHOT

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from workers.engine.context import Runtime

KIND_CLAIM: Final = "PersistentVolumeClaim"
KIND_SNAPSHOT: Final = "VolumeSnapshot"

Reference = tuple[str, str, str]


def source_references(claim: Mapping[str, Any]) -> set[Reference]:
    """Return what a claim is made from: claims by both fields, a snapshot by the first with one.

    The snapshot rule is the reference's (P-242): dataSource wins over dataSourceRef, and the group
    must be absent or the snapshot group. Claims by dataSourceRef count as well (CL-009, D-018).
    """
    namespace = claim["metadata"].get("namespace") or ""
    spec = claim.get("spec") or {}
    found: set[Reference] = set()
    has_snapshot = False
    for source in (spec.get("dataSource") or {}, spec.get("dataSourceRef") or {}):
        kind, group = source.get("kind"), source.get("apiGroup") or ""
        name = source.get("name") or ""
        place = source.get("namespace") or namespace
        if kind == KIND_CLAIM and not group:
            found.add((KIND_CLAIM, place, name))
        elif kind == KIND_SNAPSHOT and group in {"", GROUP_SNAPSHOT} and not has_snapshot:
            found.add((KIND_SNAPSHOT, place, name))
            has_snapshot = True
    return found


def phase_of(claim: Mapping[str, Any]) -> str:
    """Return the claim's phase, empty before it has one."""
    return (claim.get("status") or {}).get("phase") or ""


def references_of(claims: Iterable[Mapping[str, Any]], phases: frozenset[str]) -> set[Reference]:
    """Return what the claims in one of these phases are made from."""
    return {
        reference
        for claim in claims
        if phase_of(claim) in phases
        for reference in source_references(claim)
    }


def references_under_way(runtime: Runtime) -> set[Reference]:
    """Return what attempts that may still run in the storage copy from.

    Raises:
        QueueUnavailable: nothing may be concluded.
    """
    found: set[Reference] = set()
    for record in runtime.intents.all().values():
        claim = record.get("claim")
        if isinstance(claim, dict) and record.get("stage") != "failed":
            found |= source_references(claim)
    return found

"""Decides which kind of source a claim names and which populator handles it, without I/O.

Source: volume-data-source-validator, pkg/data-source-validator/data_source_validator.go.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from workers.constants import GROUP_SNAPSHOT
from workers.kube.objects import GroupKind
from workers.translate.fields import Json, is_deleting, optional_mapping, text
from workers.translate.sources import CLAIM_KIND, SNAPSHOT_KIND

if TYPE_CHECKING:
    from collections.abc import Iterable

CORE: Final = frozenset({GroupKind("", CLAIM_KIND), GroupKind(GROUP_SNAPSHOT, SNAPSHOT_KIND)})
"""Kinds that need no populator: clones and restores (DV-003)."""

UNBOUND: Final = frozenset({"", "Pending"})
"""Phases in which a claim can still be filled."""


def wanted_kind(claim: Json) -> GroupKind | None:
    """Return the kind that a populator must name, or None (DV-002, DV-003, DVD-001)."""
    if is_deleting(claim) or text(claim, "status", "phase") not in UNBOUND:
        return None
    if optional_mapping(claim, "spec", "dataSourceRef") is None:
        return None
    group = text(claim, "spec", "dataSourceRef", "apiGroup")
    kind = GroupKind(group, text(claim, "spec", "dataSourceRef", "kind"))
    return None if kind in CORE else kind


def populator_of(kind: GroupKind, populators: Iterable[Json]) -> str | None:
    """Return the name of the first VolumePopulator that names exactly this kind (DV-004)."""
    for one in populators:
        named = one.get("sourceKind")  # it can have any type: the CRD may have no schema
        if isinstance(named, Mapping) and kind == GroupKind(
            named.get("group") or "", named.get("kind") or ""
        ):
            return text(one, "metadata", "name")
    return None

"""Decides which driver owns a PersistentVolume, about its finalizer, and whether to delete it.

The input is a struct of few facts, so that the watcher (which reads structs), the worker (which
reads JSON) and all who form a volume's key get the same result. Source: sig-storage-lib,
controller.go shouldDelete, isProvisionerForVolume, syncVolume.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

import msgspec

from workers.constants import ANN_MIGRATED_TO, ANN_PROVISIONED_BY, FINALIZER_VOLUME
from workers.translate.fields import (
    Json,
    annotations_of,
    has_finalizer,
    is_deleting,
    optional_mapping,
    text,
)

_DELETE: Final = "Delete"
_UNBOUND: Final = frozenset({"Available", "Failed", "Pending", ""})


class FinalizerAction(Enum):
    """First step for a volume: what to do with our finalizer."""

    ADD = "add"
    REMOVE = "remove"
    KEEP = "keep"


class VolumeFacts(msgspec.Struct, frozen=True, gc=False):
    """The facts of a PV that decide.

    Attributes:
        provisioned_by: the annotation, None if absent.
        migrated_to: the annotation, "" if absent.
        csi_driver: driver of the CSI source, None without such a source.
    """

    provisioned_by: str | None
    migrated_to: str
    csi_driver: str | None
    policy: str
    phase: str
    is_deleting: bool
    has_finalizer: bool


def facts_of(volume: Json) -> VolumeFacts:
    """Read the facts of a PV."""
    found = annotations_of(volume)
    has_csi = optional_mapping(volume, "spec", "csi") is not None
    return VolumeFacts(
        provisioned_by=found.get(ANN_PROVISIONED_BY),
        migrated_to=found.get(ANN_MIGRATED_TO, ""),
        csi_driver=text(volume, "spec", "csi", "driver") if has_csi else None,
        policy=text(volume, "spec", "persistentVolumeReclaimPolicy"),
        phase=text(volume, "status", "phase"),
        is_deleting=is_deleting(volume),
        has_finalizer=has_finalizer(volume, FINALIZER_VOLUME),
    )


def owner_names(facts: VolumeFacts) -> tuple[str, ...]:
    """Return the names of drivers that may own the volume; the first known name wins (L-071).

    A provisioned volume belongs to its provisioner, or to the driver it was migrated to; a static
    CSI volume always to its CSI driver; a static in-tree volume to the driver it was migrated to.
    """
    if facts.provisioned_by is not None:
        names: tuple[str, ...] = (facts.provisioned_by, facts.migrated_to)
    elif facts.csi_driver is not None:
        names = (facts.csi_driver,)
    else:
        names = (facts.migrated_to,)
    return tuple(filter(None, names))


def finalizer_action(facts: VolumeFacts, *, add_finalizer: bool = True) -> FinalizerAction:
    """Decide what happens to our finalizer on a volume of ours (L-072, P-520).

    Args:
        facts: facts of the PV.
        add_finalizer: option AddFinalizer, always on for CSI drivers; off removes the finalizer.
    """
    if not add_finalizer or facts.policy in {"Retain", "Recycle"}:
        return FinalizerAction.REMOVE if facts.has_finalizer else FinalizerAction.KEEP
    is_wanted = facts.policy == _DELETE and facts.phase == "Bound" and not facts.is_deleting
    return FinalizerAction.ADD if is_wanted and not facts.has_finalizer else FinalizerAction.KEEP


def should_delete(facts: VolumeFacts, *, add_finalizer: bool = True) -> bool:
    """Return True if the volume is to be deleted in the storage (L-073 rows 2 to 6).

    Args:
        facts: facts of the PV, after `finalizer_action` was carried out.
        add_finalizer: option AddFinalizer, always on for CSI drivers.

    If a user deleted a PV that is not bound, in any phase, its volume is deleted in the storage
    first (KEP-2644); csi-provisioner leaves such a PV Terminating for ever.
    """
    if facts.policy != _DELETE:
        return False
    if facts.is_deleting:
        is_kept_by_us = add_finalizer and facts.has_finalizer
        return is_kept_by_us and (facts.phase == "Released" or facts.phase in _UNBOUND)
    return facts.phase == "Released"

"""Whose is a PersistentVolume, does it keep our finalizer, may it be deleted?

Over the few facts that decide, so that the watcher (which reads structs), the worker (live JSON)
and everybody who names a volume's key come to the same answer. Source: sig-storage-lib,
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
    """What to do with our finalizer before anything else."""

    ADD = "add"
    REMOVE = "remove"
    KEEP = "keep"


class VolumeFacts(msgspec.Struct, frozen=True, gc=False):
    """What decides.

    Attributes:
        provisioned_by: the annotation, None without.
        migrated_to: the annotation, "" without.
        csi_driver: None for a volume without CSI source.
    """

    provisioned_by: str | None
    migrated_to: str
    csi_driver: str | None
    policy: str
    phase: str
    is_deleting: bool
    has_finalizer: bool


def facts_of(volume: Json) -> VolumeFacts:
    """Read a PV."""
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
    """Return the names under which a driver owns the volume, the first known one wins (L-071).

    A provisioned volume is its provisioner's or that of whom it was migrated to; a static one is
    its CSI driver's, whatever the migration annotation says; a static in-tree one the migrated's.
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
        facts: of the PV.
        add_finalizer: option AddFinalizer, always on for CSI drivers; off rolls it back.
    """
    if not add_finalizer or facts.policy in {"Retain", "Recycle"}:
        return FinalizerAction.REMOVE if facts.has_finalizer else FinalizerAction.KEEP
    is_wanted = facts.policy == _DELETE and facts.phase == "Bound" and not facts.is_deleting
    return FinalizerAction.ADD if is_wanted and not facts.has_finalizer else FinalizerAction.KEEP


def should_delete(facts: VolumeFacts, *, add_finalizer: bool = True) -> bool:
    """Decide whether the backing volume is to be deleted, L-073 rows 2 to 6.

    Args:
        facts: of the PV, after `finalizer_action` was carried out.
        add_finalizer: option AddFinalizer, always on for CSI drivers.

    A volume that somebody deleted and that no claim is bound to is deleted in the storage first,
    whatever its phase (KEP-2644); the reference leaves it Terminating for ever.
    """
    if facts.policy != _DELETE:
        return False
    if facts.is_deleting:
        is_kept_by_us = add_finalizer and facts.has_finalizer
        return is_kept_by_us and (facts.phase == "Released" or facts.phase in _UNBOUND)
    return facts.phase == "Released"

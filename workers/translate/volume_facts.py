"""Decides who owns a PersistentVolume, what happens to its finalizer, and whether to delete it.

The input is a struct of a few facts, so that the watcher (which reads structs), the worker (which
reads JSON) and all code that builds a volume's key get the same result.
Source: sig-storage-lib, controller.go shouldDelete, isProvisionerForVolume, syncVolume.
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
    """The first step for a volume: what to do with our finalizer."""

    ADD = "add"
    REMOVE = "remove"
    KEEP = "keep"


class VolumeFacts(msgspec.Struct, frozen=True, gc=False):
    """The facts about a PV that the decisions depend on.

    Attributes:
        provisioned_by: the value of the annotation of that name; None if it is absent.
        migrated_to: the value of the annotation of that name; "" if it is absent.
        csi_driver: the driver of the CSI source; None if there is no such source.
    """

    provisioned_by: str | None
    migrated_to: str
    csi_driver: str | None
    policy: str
    phase: str
    is_deleting: bool
    has_finalizer: bool


def facts_of(volume: Json) -> VolumeFacts:
    """Return the facts about a PV."""
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
    """Return the names of drivers that may own the volume; the first known one does (L-071).

    A provisioned volume belongs to its provisioner, or to the driver that it was migrated to. A
    static CSI volume always belongs to its CSI driver, and a static in-tree volume to the driver
    that it was migrated to.
    """
    if facts.provisioned_by is not None:
        names: tuple[str, ...] = (facts.provisioned_by, facts.migrated_to)
    elif facts.csi_driver is not None:
        names = (facts.csi_driver,)
    else:
        names = (facts.migrated_to,)
    return tuple(filter(None, names))


def finalizer_action(facts: VolumeFacts, *, add_finalizer: bool = True) -> FinalizerAction:
    """Decide what to do with our finalizer on one of our volumes (L-072, P-520).

    Args:
        facts: the facts about the PV.
        add_finalizer: the option AddFinalizer (always on for CSI drivers); if it is off, the
            finalizer is removed.
    """
    if not add_finalizer or facts.policy in {"Retain", "Recycle"}:
        return FinalizerAction.REMOVE if facts.has_finalizer else FinalizerAction.KEEP
    is_wanted = facts.policy == _DELETE and facts.phase == "Bound" and not facts.is_deleting
    return FinalizerAction.ADD if is_wanted and not facts.has_finalizer else FinalizerAction.KEEP


def should_delete(facts: VolumeFacts, *, add_finalizer: bool = True) -> bool:
    """Return True if the volume has to be deleted from the storage backend (L-073 rows 2 to 6).

    If a user has deleted a PV that is not bound, in any phase, its volume is deleted from the
    storage backend first (KEP-2644); csi-provisioner leaves such a PV Terminating forever.

    Args:
        facts: the facts about the PV, after carrying out `finalizer_action`.
        add_finalizer: the option AddFinalizer (always on for CSI drivers).
    """
    if facts.policy != _DELETE:
        return False
    if facts.is_deleting:
        is_kept_by_us = add_finalizer and facts.has_finalizer
        return is_kept_by_us and (facts.phase == "Released" or facts.phase in _UNBOUND)
    return facts.phase == "Released"

"""Finds a driver's volumes without a PV, and PVs without a volume, by comparing two passes.

This module is pure. Snapshots and their contents are compared in the same way.

Each pass reads the driver's list first, then the intents, then the PVs. If a volume is created or
deleted during a pass, a later read of that pass therefore shows it. The passes are a grace time
apart, and only findings of both are reported. While an attempt that began before the first pass is
open, no volume is reported as an orphan, because the volume names of some drivers do not show which
attempt created the volume.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class Look:
    """What one pass found in the storage backend, in Redis and in the cluster.

    Attributes:
        at: the Unix time at which the pass began.
        listed: volume id -> bytes, as listed by the driver.
        in_flight: volume name -> the time at which its attempt began.
        unsaved: the ids of volumes whose PV is not saved yet.
        volumes: volume id -> (PV name, UID), for the PVs of this driver.
        deleting: the volume ids of PVs that are being deleted.
        stranded: volume name -> claim and problem, for attempts that no worker continues.
        elsewhere: the names of PVs whose volumes belong to another node's driver.
    """

    at: float
    listed: Mapping[str, int]
    in_flight: Mapping[str, float] = field(default_factory=dict)
    unsaved: frozenset[str] = frozenset()
    volumes: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    deleting: frozenset[str] = frozenset()
    stranded: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    elsewhere: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Report:
    """The result of an audit.

    Attributes:
        orphans: volume id -> bytes; volumes with neither a PV nor an attempt.
        missing: PV name -> volume id; volumes that the driver does not list.
        undecided: the number of volumes without a PV that an open attempt may have created.
        stranded: volume name -> claim and problem; the volume may be among the orphans.
    """

    orphans: Mapping[str, int]
    missing: Mapping[str, str]
    undecided: int = 0
    stranded: Mapping[str, tuple[str, str]] = field(default_factory=dict)


def compare(first: Look, second: Look) -> Report:
    """Return a report of the findings that both passes share."""
    unknown = {
        volume_id: size
        for volume_id, size in second.listed.items()
        if volume_id in first.listed and not (_has_owner(volume_id, first, second))
    }
    # An attempt that the first pass found may have created any of these volumes, whatever its
    # worker's clock says. The same is true of an attempt that only the second pass found, if it
    # began before the first pass.
    old = set(first.in_flight)
    old |= {name for name, since in second.in_flight.items() if since <= first.at}
    orphans = {} if old else unknown
    missing = {
        name: volume_id
        for volume_id, (name, uid) in second.volumes.items()
        if first.volumes.get(volume_id) == (name, uid)
        and name not in second.elsewhere
        and volume_id not in first.listed
        and volume_id not in second.listed
        and volume_id not in first.deleting | second.deleting
    }
    stranded = {name: why for name, why in second.stranded.items() if name in first.stranded}
    return Report(orphans, missing, len(unknown) if old else 0, stranded)


def _has_owner(volume_id: str, *looks: Look) -> bool:
    return any(volume_id in look.volumes or volume_id in look.unsaved for look in looks)

"""Finds a driver's volumes without a PV, and PVs without a volume. Pure: compares two looks.

Snapshots and their contents are compared in the same way.

One look reads the driver's list first, then the intents, then the PVs. A volume that is created or
deleted meanwhile therefore appears in one of the later reads. Only what two looks, a grace time
apart, agree on is reported. While an attempt that began before the first look is open, no volume
is reported as an orphan: the name of a volume does not tell for every driver which attempt made it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class Look:
    """What existed at one moment.

    Attributes:
        at: when the look began, Unix time.
        listed: volume id -> bytes, as listed by the driver.
        in_flight: volume name -> when its attempt began.
        unsaved: ids of volumes whose PV is not saved yet.
        volumes: volume id -> (PV name, UID), for PVs of this driver.
        deleting: volume ids of PVs that are being deleted.
        stranded: volume name -> claim and problem, for attempts that no worker continues.
        elsewhere: names of PVs whose volumes belong to another node's driver.
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
    """The result.

    Attributes:
        orphans: volume id -> bytes; volumes with neither PV nor attempt.
        missing: PV name -> volume id; volumes that the driver does not list.
        undecided: number of volumes without a PV that an open attempt may own.
        stranded: volume name -> claim and problem; the volume may be among the orphans.
    """

    orphans: Mapping[str, int]
    missing: Mapping[str, str]
    undecided: int = 0
    stranded: Mapping[str, tuple[str, str]] = field(default_factory=dict)


def compare(first: Look, second: Look) -> Report:
    """Report what both looks agree on."""
    unknown = {
        volume_id: size
        for volume_id, size in second.listed.items()
        if volume_id in first.listed and not (_has_owner(volume_id, first, second))
    }
    # An attempt of the first look may have created any of these volumes, whatever its worker's
    # clock says. So may an attempt that only the second look shows, if it began before the first.
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

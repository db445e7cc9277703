"""Which volumes of a driver have no PV, and which PVs no volume? Pure comparison of two looks.

Snapshots and their contents are compared in the same words.

One look reads the driver's list first, then the attempts in flight, then the PVs: a volume that is
made or deleted meanwhile shows up in one of the later reads. Only what two looks, a grace time
apart, agree on is reported. A volume whose attempt may be in flight, one begun before the first
look, is never reported: which volume is whose cannot be told by name for every driver.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class Look:
    """What was there at one moment.

    Attributes:
        at: when the look began, seconds since 1970.
        listed: volume id -> bytes, as the driver lists them.
        in_flight: volume name -> when its attempt began.
        unsaved: volume ids of PVs that are not saved yet.
        volumes: volume id -> (PV name, UID); of PVs of this driver.
        deleting: ids of PVs that are being deleted.
        stranded: volume name -> claim and problem; of attempts nobody works on.
        elsewhere: names of PVs whose volumes another node's driver has.
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
        orphans: volume id -> bytes; no PV, no attempt.
        missing: PV name -> volume id; the driver does not list it.
        undecided: volumes without a PV that an attempt in flight may own.
        stranded: volume name -> claim and problem; its volume may be among the orphans.
    """

    orphans: Mapping[str, int]
    missing: Mapping[str, str]
    undecided: int = 0
    stranded: Mapping[str, tuple[str, str]] = field(default_factory=dict)


def compare(first: Look, second: Look) -> Report:
    """What both looks agree on."""
    unknown = {
        volume_id: size
        for volume_id, size in second.listed.items()
        if volume_id in first.listed and not (_has_owner(volume_id, first, second))
    }
    # An attempt that could have made one of them by the first look.
    old = {**first.in_flight, **second.in_flight}
    old = {name: since for name, since in old.items() if since <= first.at}
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

"""Finds the region of a set of zones, by the naming rules of GCE and AWS (P-607).

Both functions take the zones of one selector term. They raise RegionError with upstream's message
if a name has an unexpected form, if there are no zones, or if the zones are in several regions.
Source: csi-translation-lib, getRegionFromZones and getAwsRegionFromZones.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


class RegionError(ValueError):
    """The zones do not belong to exactly one region; the message is upstream's."""


def gce_region(zones: Iterable[str]) -> str:
    """Return `us-central1` for `us-central1-a`: names have three parts, and the last is dropped."""
    return _only({_gce(zone) for zone in zones})


def aws_region(zones: Iterable[str]) -> str:
    """Return the region of AWS zones, which can be availability, local or wavelength zones.

    `us-west-2a` -> `us-west-2`, `us-gov-east-1a` -> `us-gov-east-1`,
    `us-west-2-lax-1a` -> `us-west-2`, `us-east-1-wl1-bos-wlz-1` -> `us-east-1`.
    """
    return _only({_aws(zone) for zone in zones})


def _gce(zone: str) -> str:
    parts = zone.split("-")
    if len(parts) != 3:
        raise RegionError(
            "zone in unexpected format, expected: {locale}-{region}-{zone}, got: " + zone
        )
    return "-".join(parts[:2])


def _aws(zone: str) -> str:
    parts = zone.split("-")
    if len(parts) in (3, 4) and len(parts[-1]) == 2:
        return zone[:-1]
    if len(parts) in (5, 7):
        return "-".join(parts[:3])
    raise RegionError(f"Unexpected zone format: {zone} is not a valid AWS zone")


def _only(regions: set[str]) -> str:
    if not regions:
        raise RegionError("no zones specified")
    if len(regions) > 1:
        found = " ".join(f"{region}:{{}}" for region in sorted(regions))
        raise RegionError(f"multiple or no regions gotten from zones, got: map[{found}]")
    return next(iter(regions))

"""Which region does a set of zones lie in, by the naming rules of GCE and AWS (P-607)?

Both functions take the zones of one selector term, and raise RegionError with upstream's text when
a name has an unknown form, when there is no zone, or when the zones lie in several regions.
Source: csi-translation-lib, getRegionFromZones and getAwsRegionFromZones.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


class RegionError(ValueError):
    """Zones without exactly one region; the text is upstream's."""


def gce_region(zones: Iterable[str]) -> str:
    """`us-central1-a` lies in `us-central1`: exactly three parts, the last one dropped."""
    return _only({_gce(zone) for zone in zones})


def aws_region(zones: Iterable[str]) -> str:
    """The region of AWS zones; availability, local and wavelength zones have own forms.

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

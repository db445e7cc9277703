"""Regions of GCE and AWS zones."""

from __future__ import annotations

import pytest

from workers.migration.regions import RegionError, aws_region, gce_region


@pytest.mark.parametrize(
    ("zones", "region"),
    [
        pytest.param(["us-west-2a"], "us-west-2", id="T-184 availability zone"),
        pytest.param(["us-gov-east-1a"], "us-gov-east-1", id="T-184 government zone"),
        pytest.param(["us-west-2-lax-1a"], "us-west-2", id="T-184 local zone"),
        pytest.param(["us-east-1-wl1-bos-wlz-1"], "us-east-1", id="T-184 wavelength zone"),
        pytest.param(["us-west-2a", "us-west-2b"], "us-west-2", id="T-184 two zones, one region"),
    ],
)
def test_aws_zones_lie_in_one_region(zones: list[str], region: str) -> None:
    """P-607: the number of parts decides."""
    assert aws_region(zones) == region


@pytest.mark.parametrize("zone", ["bad", "us-west-10a", "us-west-2", "a-b-c-d-e-f", ""])
def test_t184_unknown_aws_zones_are_errors(zone: str) -> None:
    """P-607: the error names the zone."""
    with pytest.raises(RegionError) as caught:
        aws_region([zone])
    assert str(caught.value) == f"Unexpected zone format: {zone} is not a valid AWS zone"


def test_gce_region_drops_the_last_part() -> None:
    """P-607: a zone has exactly three parts."""
    assert gce_region(["us-central1-a", "us-central1-b"]) == "us-central1"


@pytest.mark.parametrize("zone", ["a-b", "a-b-c-d", ""])
def test_unknown_gce_zones_are_errors(zone: str) -> None:
    """P-607: the error names the zone."""
    with pytest.raises(RegionError) as caught:
        gce_region([zone])
    expected = "zone in unexpected format, expected: {locale}-{region}-{zone}, got: "
    assert str(caught.value) == expected + zone


@pytest.mark.parametrize("parser", [gce_region, aws_region])
def test_zones_of_two_regions_are_an_error(parser: object) -> None:
    """P-607: the error lists the regions sorted, as Go prints a set."""
    assert callable(parser)
    with pytest.raises(RegionError) as caught:
        parser(["us-west-2b", "us-east-1a"] if parser is aws_region else ["us-b-1", "us-a-1"])
    regions = ("us-east-1", "us-west-2") if parser is aws_region else ("us-a", "us-b")
    expected = "multiple or no regions gotten from zones, got: map[{}:{{}} {}:{{}}]"
    assert str(caught.value) == expected.format(*regions)


@pytest.mark.parametrize("parser", [gce_region, aws_region])
def test_no_zones_are_an_error(parser: object) -> None:
    """P-607: a term without zones has no region."""
    assert callable(parser)
    with pytest.raises(RegionError, match=r"^no zones specified$"):
        parser([])

"""Zones and regions between driver keys and Kubernetes labels."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.migration_objects import affinity, csi_volume, expression, volume
from workers.errors import AttemptError
from workers.migration.to_csi import volume_to_csi
from workers.migration.to_in_tree import volume_to_in_tree

ZONE, REGION = "topology.kubernetes.io/zone", "topology.kubernetes.io/region"
BETA_ZONE = "failure-domain.beta.kubernetes.io/zone"
BETA_REGION = "failure-domain.beta.kubernetes.io/region"
EBS, EBS_KEY = "ebs.csi.aws.com", "topology.ebs.csi.aws.com/zone"
CINDER, CINDER_KEY = "cinder.csi.openstack.org", "topology.cinder.csi.openstack.org/zone"
VSPHERE = "csi.vsphere.vmware.com"
VS_ZONE, VS_REGION = "topology.csi.vmware.com/zone", "topology.csi.vmware.com/region"


def stored(driver: str, **fields: Any) -> dict[str, Any]:
    """Return the in-tree form of a driver's volume."""
    return volume_to_in_tree(csi_volume(driver, "h", **fields), driver)


def deleted(field: str, source: dict[str, Any], **fields: Any) -> dict[str, Any] | None:
    """Return the node affinity of an in-tree volume's CSI form."""
    affinity_of: dict[str, Any] | None = volume_to_csi(volume(field, source, **fields))["spec"].get(
        "nodeAffinity"
    )
    return affinity_of


def test_zone_becomes_zone_and_region() -> None:
    """P-607: the affinity gets both expressions, and the volume gets both labels."""
    pv = stored(EBS, node_affinity=affinity([expression(EBS_KEY, "us-west-2a")]))
    expected = affinity([expression(ZONE, "us-west-2a"), expression(REGION, "us-west-2")])
    assert pv["spec"]["nodeAffinity"] == expected
    assert pv["metadata"]["labels"] == {ZONE: "us-west-2a", REGION: "us-west-2"}


def test_terms_of_one_region_share_its_label() -> None:
    """P-607: the label joins the zones, sorted and without duplicates."""
    zones = ("us-west-2b", "us-west-2a", "us-west-2b")
    pv = stored(EBS, node_affinity=affinity(*([expression(EBS_KEY, zone)] for zone in zones)))
    assert pv["metadata"]["labels"] == {ZONE: "us-west-2a__us-west-2b", REGION: "us-west-2"}


def test_terms_of_two_regions_get_no_region_label() -> None:
    """P-607: each term has its own region, so no single label would be true."""
    zones = ("us-west-2a", "us-east-1a")
    pv = stored(EBS, node_affinity=affinity(*([expression(EBS_KEY, zone)] for zone in zones)))
    assert pv["metadata"]["labels"] == {ZONE: "us-east-1a__us-west-2a"}


def test_a_term_with_a_region_keeps_it() -> None:
    """P-607: nothing is parsed if the region is known."""
    term = [expression(EBS_KEY, "odd"), expression(REGION, "somewhere")]
    pv = stored(EBS, node_affinity=affinity(term))
    assert pv["metadata"]["labels"] == {ZONE: "odd", REGION: "somewhere"}


def test_existing_labels_stay() -> None:
    """P-607: labels are set only where they are missing."""
    labels = {ZONE: "mine", REGION: "mine too"}
    terms = affinity([expression(EBS_KEY, "us-west-2a")])
    assert stored(EBS, node_affinity=terms, labels=labels)["metadata"]["labels"] == labels


@pytest.mark.parametrize("driver", [EBS, CINDER, VSPHERE])
def test_no_affinity_changes_nothing(driver: str) -> None:
    """P-607, P-608: neither affinity nor labels appear."""
    pv = stored(driver)
    assert "nodeAffinity" not in pv["spec"]
    assert "labels" not in pv["metadata"]


def test_cinder_zones_have_no_region() -> None:
    """P-606: there is no region parser, so a zone may have any name."""
    pv = stored(CINDER, node_affinity=affinity([expression(CINDER_KEY, "nova")]))
    assert pv["spec"]["nodeAffinity"] == affinity([expression(ZONE, "nova")])
    assert pv["metadata"]["labels"] == {ZONE: "nova"}


def test_a_term_without_zone_fails_where_regions_are_parsed() -> None:
    """P-607: the error says that no zones are specified."""
    with pytest.raises(AttemptError, match=r"error: no zones specified$"):
        stored(EBS, node_affinity=affinity([expression("rack", "r1")]))


@pytest.mark.parametrize(
    ("labels", "term", "expected"),
    [
        pytest.param({}, [expression(BETA_ZONE, "z")], BETA_ZONE, id="beta affinity"),
        pytest.param({ZONE: "z"}, [expression(BETA_ZONE, "z")], BETA_ZONE, id="over GA label"),
        pytest.param(
            {}, [expression(BETA_ZONE, "z"), expression(ZONE, "z")], ZONE, id="GA affinity first"
        ),
        pytest.param({BETA_ZONE: "z"}, [], BETA_ZONE, id="beta label"),
        pytest.param({BETA_ZONE: "z", ZONE: "z"}, [], ZONE, id="GA label first"),
        pytest.param({}, [], ZONE, id="none"),
    ],
)
def test_precedence_of_the_labels(
    labels: dict[str, str], term: list[dict[str, Any]], expected: str
) -> None:
    """P-607: affinity GA, affinity beta, labels GA, labels beta; GA if none of them exists."""
    terms = affinity([*term, expression(CINDER_KEY, "nova")])
    pv = stored(CINDER, node_affinity=terms, labels=labels)
    renamed = pv["spec"]["nodeAffinity"]["required"]["nodeSelectorTerms"][0]["matchExpressions"][-1]
    assert renamed == expression(expected, "nova")


def test_vsphere_moves_zone_and_region() -> None:
    """P-608: a label takes the smallest value instead of all values."""
    terms = affinity([expression(VS_ZONE, "z2", "z1"), expression(VS_REGION, "r1")])
    pv = stored(VSPHERE, node_affinity=terms)
    expected = affinity([expression(ZONE, "z2", "z1"), expression(REGION, "r1")])
    assert pv["spec"]["nodeAffinity"] == expected
    assert pv["metadata"]["labels"] == {ZONE: "z1", REGION: "r1"}


CIN = ("cinder", {"volumeID": "c"})
VS = ("vsphereVolume", {"volumePath": "[d] x"})


@pytest.mark.parametrize("label", [ZONE, BETA_ZONE])
def test_the_zone_in_the_affinity_becomes_the_drivers(label: str) -> None:
    """P-611: it does in every term, and the label is then ignored."""
    terms = affinity([expression(label, "a")], [expression(label, "b"), expression("rack", "r")])
    expected = affinity([expression(CINDER_KEY, "a")])
    expected["required"]["nodeSelectorTerms"] += affinity(
        [expression(CINDER_KEY, "b"), expression("rack", "r")]
    )["required"]["nodeSelectorTerms"]
    assert deleted(*CIN, node_affinity=terms, labels={ZONE: "other"}) == expected


@pytest.mark.parametrize(
    ("label", "zones"),
    [
        pytest.param("b__a__b", ["a", "b"], id="unique and sorted"),
        pytest.param(" a __ ", ["a"], id="trimmed"),
        pytest.param("a", ["a"], id="one"),
    ],
)
def test_the_zone_label_becomes_affinity(label: str, zones: list[str]) -> None:
    """P-611: a term is created if there is none."""
    assert deleted(*CIN, labels={ZONE: label}) == affinity([expression(CINDER_KEY, *zones)])


@pytest.mark.parametrize("label", ["", "__", " __ "])
def test_an_empty_zone_label_adds_nothing(label: str) -> None:
    """P-611: a label with only empty parts is ignored."""
    assert deleted(*CIN, labels={ZONE: label}) is None


def test_the_zone_label_is_added_to_every_term() -> None:
    """P-611: terms are ORed, so each needs the zone."""
    terms = affinity([expression("rack", "r1")], [expression("rack", "r2")])
    zone = expression(CINDER_KEY, "a")
    expected = affinity([expression("rack", "r1"), zone], [expression("rack", "r2"), zone])
    assert deleted(*CIN, node_affinity=terms, labels={BETA_ZONE: "a"}) == expected


def test_a_beta_region_becomes_the_ga_region() -> None:
    """P-611: nodes may no longer have the beta label."""
    terms = affinity([expression(BETA_ZONE, "a"), expression(BETA_REGION, "r")])
    expected = affinity([expression(CINDER_KEY, "a"), expression(REGION, "r")])
    assert deleted(*CIN, node_affinity=terms) == expected


def test_vsphere_labels_become_affinity_unsplit() -> None:
    """P-610: each label gives one value, even if it contains `__`."""
    expected = affinity([expression(VS_ZONE, "a__b"), expression(VS_REGION, "r")])
    assert deleted(*VS, labels={ZONE: "a__b", REGION: "r"}) == expected


def test_vsphere_affinity_wins_over_labels() -> None:
    """P-610: this holds per key; the region may still come from the label."""
    terms = affinity([expression(BETA_ZONE, "a")])
    expected = affinity([expression(VS_ZONE, "a"), expression(VS_REGION, "r")])
    labels = {BETA_ZONE: "other", BETA_REGION: "r"}
    assert deleted(*VS, node_affinity=terms, labels=labels) == expected


@pytest.mark.parametrize("field", ["azureDisk", "azureFile", "portworxVolume"])
def test_plugins_without_topology_ignore_labels(field: str) -> None:
    """P-610: they have no topology."""
    source = {"diskURI": "u", "volumeID": "p", "secretName": "s", "shareName": "h"}
    source["secretNamespace"] = "n"
    assert deleted(field, source, labels={ZONE: "a"}) is None

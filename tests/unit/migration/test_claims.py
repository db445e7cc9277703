"""Which claims of in-tree classes belong to this driver, and what their attempt sees."""

from __future__ import annotations

import pytest

from tests.support.migration_objects import csi_volume, in_tree_class
from workers.errors import IgnoredError
from workers.migration.classes import is_migrated, translate_class
from workers.migration.to_in_tree import volume_to_in_tree
from workers.translate.claims import check_qualifies, qualifies

GA, BETA = (
    "volume.kubernetes.io/storage-provisioner",
    "volume.beta.kubernetes.io/storage-provisioner",
)
MIGRATED_TO = "pv.kubernetes.io/migrated-to"
CSI, IN_TREE = "ebs.csi.aws.com", "kubernetes.io/aws-ebs"


@pytest.mark.parametrize(
    "annotations",
    [
        pytest.param({BETA: CSI}, id="T-180 beta CSI"),
        pytest.param({GA: CSI}, id="T-180 GA CSI"),
        pytest.param({BETA: IN_TREE, MIGRATED_TO: CSI}, id="T-180 beta in-tree, migrated to CSI"),
        pytest.param({BETA: CSI, MIGRATED_TO: CSI}, id="T-180 beta CSI, migrated to CSI"),
    ],
)
def test_a_migrated_claim_is_translated_both_ways(annotations: dict[str, str]) -> None:
    """P-100, P-102, P-600, P-602: the class is translated to CSI, and the volume to in-tree."""
    check_qualifies({"metadata": {"annotations": annotations}}, CSI)
    storage_class = in_tree_class(IN_TREE, parameters={"fsType": "xfs"})
    assert is_migrated(storage_class, CSI)
    translated = translate_class(storage_class, IN_TREE)
    assert translated["parameters"] == {"csi.storage.k8s.io/fstype": "xfs"}
    stored = volume_to_in_tree(csi_volume(CSI, "vol-1"), CSI)
    assert stored["spec"] == {"awsElasticBlockStore": {"volumeID": "vol-1"}}


@pytest.mark.parametrize(
    ("annotations", "named"),
    [
        pytest.param({BETA: IN_TREE, MIGRATED_TO: "foo"}, IN_TREE, id="T-181 migrated elsewhere"),
        pytest.param({BETA: "foo", MIGRATED_TO: "foo"}, "foo", id="T-181 foo and foo"),
        pytest.param({BETA: IN_TREE}, IN_TREE, id="T-181 in-tree alone"),
    ],
)
def test_other_claims_are_ignored(annotations: dict[str, str], named: str) -> None:
    """P-100, P-102: the pre-check ignores them silently, and an attempt gives the reason."""
    claim = {"metadata": {"annotations": annotations}}
    assert not qualifies(claim, CSI)
    with pytest.raises(IgnoredError) as caught:
        check_qualifies(claim, CSI)
    assert caught.value.reason == (
        f"PVC annotated with external-provisioner name {named} does not match provisioner driver "
        f"name {CSI}. This could mean the PVC is not migrated"
    )

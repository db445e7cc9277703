"""Which driver a name means, and which of its workers do the work in question."""

from __future__ import annotations

import pytest

from workers.explain.gather import driver_of, find_driver, find_owner
from workers.explain.serving import Served

EBS, IN_TREE = "ebs.csi.aws.com", "kubernetes.io/aws-ebs"
MADE, GROWN = ["provisioner"], ["resizer"]


def record(name, controllers, **more):
    return {"name": name, "controllers": controllers, **more}


NODES = {
    "d@n1": record("d", MADE, node="n1"),
    "d@n2": record("d", GROWN, node="n2"),
    "e": record("e", MADE, additional_names=["old-e"]),
}


@pytest.mark.parametrize(
    ("name", "node", "queue_name"),
    [
        pytest.param("d", "", "d@n1", id="any node"),
        pytest.param("d", "n1", "d@n1", id="its node"),
        pytest.param("d", "n2", "", id="a node whose worker does not provision"),
        pytest.param("d", "n3", "", id="a node without a worker"),
        pytest.param("e", "n3", "e", id="not of a node"),
        pytest.param("old-e", "", "e", id="a further name"),
        pytest.param("", "", "", id="no name"),
    ],
)
def test_the_driver_of_a_claim(name, node, queue_name):
    assert find_driver(NODES, name, node)[0] == queue_name


@pytest.mark.parametrize(
    ("name", "driver"), [("old-e", "e"), ("d", "d"), (IN_TREE, EBS), ("nobody", "nobody"), ("", "")]
)
def test_the_driver_behind_a_name(name, driver):
    """P-601: an in-tree name stands for a CSI driver, whether or not it is served."""
    assert driver_of(NODES, name) == driver


@pytest.mark.parametrize("controllers", [MADE, GROWN], ids=["provisions", "half moved"])
def test_the_owner_of_a_volume_by_its_in_tree_name(controllers):
    """Even without a provisioner the CSI name is returned, for `not-served`."""
    annotations = {"pv.kubernetes.io/provisioned-by": IN_TREE}
    volume = {"metadata": {"name": "pv", "annotations": annotations}, "spec": {}}
    records = {EBS: record(EBS, controllers, queue_name=EBS, in_tree_name=IN_TREE)}
    owner, queue_name, found = find_owner(records, volume)
    assert owner == EBS
    assert (queue_name, found is not None) == ((EBS, True) if controllers is MADE else ("", False))


def test_who_serves_and_who_has_other_workers():
    assert Served.by(NODES, "provisioner") == Served("provisioner", ("d", "e"), ())
    assert Served.by(NODES, "resizer") == Served("resizer", ("d",), ("e",))

"""A driver of two replicas becomes one of the central workers' and goes back, while claims come.

ROUNDS=3 PEER=/path/of/csi-provisioner pytest tests/node/test_central_adoption.py -s   # Go's own
"""

from __future__ import annotations

import copy
import os
from collections.abc import Iterator
from contextlib import closing
from statistics import median

import pytest
import yaml

from tests.support.node import moving
from tests.support.node.cluster import NodeCluster
from tests.support.node.images import FLEET_IMAGE
from tests.support.node.moving import DRIVER, Claims
from tests.support.waiting import wait_until
from tests.support.walkthrough import Walkthrough

pytestmark = pytest.mark.timeout(1200)
PEER = os.environ.get("PEER", "")
ROUNDS = int(os.environ.get("ROUNDS", "1"))
REGISTRY = "registry.example.com/storage"
READER = {"nfs.csi.k8s.io": DRIVER, "YOUR-REGISTRY": REGISTRY}


@pytest.fixture
def reader(node: NodeCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Walkthrough]:
    """Has csi-fleet with central workers, and a vendor's driver with two replicas."""
    node.ctr(
        "images", "tag", "--force", f"docker.io/library/{FLEET_IMAGE}", f"{REGISTRY}/{FLEET_IMAGE}"
    )
    walk = Walkthrough(tmp_path_factory.mktemp("central"), node.plane.kubeconfig, {})
    moving.provide_image(node, PEER)
    moving.install(node)
    path = f"/apis/apps/v1/namespaces/{moving.NAMESPACE}/deployments/{moving.DEPLOYMENT}"
    node.api.patch(path, {"spec": {"replicas": 2}})
    walk.run("cp workers/cli/kubectl.py ~/.local/bin/kubectl-csi_fleet")
    walk.follow("docs/central-mode.md", "A driver into central mode", READER, program="helm ")
    yield walk
    moving.remove(node)
    walk.run("helm uninstall csi-fleet -n csi-fleet --wait")
    walk.run("kubectl delete namespace csi-fleet")


def test_a_driver_of_two_replicas_is_adopted_centrally_and_released(
    node: NodeCluster, reader: Walkthrough
) -> None:
    """Nothing lost, no two calls about one volume at once, the Deployment as it was."""
    path = f"/apis/apps/v1/namespaces/{moving.NAMESPACE}/deployments/{moving.DEPLOYMENT}"
    wait_until(
        lambda: (node.api.get(path).get("status") or {}).get("readyReplicas") == 2,
        moving.SECONDS,
        "both replicas are ready",
    )
    before = copy.deepcopy(node.api.get(path)["spec"])
    claims = Claims(node.api)
    try:
        claims.wait_more(3)
        for _ in range(ROUNDS):
            reader.run(f"kubectl csi-fleet adopt {DRIVER} --as=central --verify")
            assert one_entry(node)["replicas"] == "one"
            claims.wait_more(5)
            reader.run(f"kubectl csi-fleet release {DRIVER}")
            claims.wait_more(5)
    finally:
        claims.stop()
    wait_until(lambda: not claims.waiting(), moving.SECONDS, "all claims are Bound")
    assert node.api.get(path)["spec"] == before
    with closing(moving.journal(node)) as driver:
        created, deleted = driver.calls("CreateVolume"), driver.calls("DeleteVolume")
    assert moving.overlapping(created, "name") == []
    assert moving.overlapping(deleted, "volume_id") == []
    waited = sorted(claims.waited.values())
    print(
        f"{ROUNDS} rounds, {claims.made} claims, {claims.deleted} deleted; claim to Bound: "
        f"p50 {median(waited):.1f} s, max {waited[-1]:.1f} s; asked again: "
        f"{moving.repeated(created, 'name')}"
    )


def one_entry(node: NodeCluster) -> dict[str, object]:
    found = node.api.get("/api/v1/namespaces/csi-fleet/configmaps/adopted-drivers")["data"]
    (text,) = found.values()
    (entry,) = yaml.safe_load(text)["drivers"]
    return dict(entry)

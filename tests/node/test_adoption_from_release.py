"""A reader who has the folder of a release, but no checkout, moves a driver over and back.

PEER=folder pytest tests/node/test_adoption_from_release.py -s     # the folder has csi-provisioner

The commands are those of the release's own pages: chart, plug-in, wheel and image by digest.
INSTALL.md is docs/how-to/install-from-a-release.md.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

import pytest

from tests.support.node import moving
from tests.support.node.cluster import NodeCluster
from tests.support.node.images import FLEET_IMAGE
from tests.support.node.moving import ACCOUNT, DRIVER, NAMESPACE, Claims
from tests.support.released import VERSION, committed, make_release
from tests.support.waiting import wait_until
from tests.support.walkthrough import Walkthrough

pytestmark = pytest.mark.timeout(1200)
REGISTRY = "registry.example.com/storage"
PAGES = f"csi-fleet-{VERSION}/docs"
# These words of docs/migration.md are replaced, because this driver has one sidecar.
REPLACED = {
    "ebs.csi.aws.com": DRIVER,
    "kube-system": NAMESPACE,
    "ebs-csi-controller-sa": ACCOUNT,
    "[provisioner, attacher, resizer, snapshotter]": "[provisioner]",
    "migrate check --driver=$DRIVER": "migrate check --driver=$DRIVER || true",
}


def in_registry(node: NodeCluster) -> str:
    """Tag the node's image as if it had been pulled by digest; return the digest.

    The kubelet looks an image up by name and digest, without the tag.
    """
    image = f"docker.io/library/{FLEET_IMAGE}"
    (line,) = [one for one in node.ctr("images", "ls").splitlines() if one.split()[0] == image]
    (digest,) = re.findall(r"sha256:[0-9a-f]{64}", line)
    node.ctr("images", "tag", "--force", image, f"{REGISTRY}/csi-fleet@{digest}")
    return digest


@pytest.fixture(scope="module")
def reader(node: NodeCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Walkthrough]:
    """A reader who has installed csi-fleet and its tools as INSTALL.md says."""
    assert node.api.find("/api/v1/namespaces/csi-fleet") is None, "this file wants an empty cluster"
    folder = tmp_path_factory.mktemp("from-release")
    source = committed(folder / "source")
    release = make_release(source, folder / "release", digest=in_registry(node))
    walk = Walkthrough(folder / "reader", node.plane.kubeconfig, {}, content=release)
    walk.follow("INSTALL.md", "Verify")
    walk.run(f"export REGISTRY={REGISTRY}")
    walk.follow("INSTALL.md", "Bring the images to your registry", program="tar ")
    walk.follow("INSTALL.md", "Command-line tools")
    walk.follow("INSTALL.md", "Install with Helm", program="helm install csi-fleet csi-fleet-")
    yield walk
    print(walk.timeline())


def test_a_driver_moves_over_and_back_with_the_files_of_a_release(
    node: NodeCluster, reader: Walkthrough
) -> None:
    program = reader.run("head -1 $(readlink -f $(command -v csi-fleet))")
    assert program.startswith(f"#!{reader.folder.parent}/home/csi-fleet/bin/python")
    moving.provide_image(node, os.environ["PEER"])
    moving.install(node)
    claims = Claims(node.api)
    try:
        claims.wait_more(3)
        with moving.other_holder(node.api, claims):
            page = f"{PAGES}/migration.md"
            reader.follow(page, "One driver to csi-fleet, step by step", REPLACED)
        assert "Verified:" in reader.printed("--verify")
        images = {
            one["image"]
            for pod in node.api.items(f"/api/v1/namespaces/{NAMESPACE}/pods")
            for one in pod["spec"]["containers"]
            if one["name"] == "csi-fleet-worker"
        }
        assert [one.partition("@")[0] for one in images] == [f"{REGISTRY}/csi-fleet:{VERSION}"]
        claims.wait_more(5)
        with moving.other_holder(node.api, claims):
            reader.follow(page, "And back")
        claims.wait_more(3)
    finally:
        claims.stop()
    wait_until(lambda: not claims.waiting(), moving.SECONDS, "all claims are Bound")


def test_every_pod_ran_the_image_of_the_release_by_digest(
    node: NodeCluster, reader: Walkthrough
) -> None:
    """A tag that later names another image has no effect."""
    used = [
        one["image"]
        for pod in node.api.items("/api/v1/namespaces/csi-fleet/pods")
        for one in pod["spec"]["containers"]
        if "/csi-fleet" in one["image"]
    ]
    assert used
    assert all(re.fullmatch(rf"{REGISTRY}/csi-fleet:{VERSION}@sha256:\w+", one) for one in used)


def test_what_a_reader_removes_is_gone(node: NodeCluster, reader: Walkthrough) -> None:
    moving.remove(node)
    reader.run("helm uninstall csi-fleet -n csi-fleet && kubectl delete namespace csi-fleet")
    for name in ("csi-fleet", "csi-fleet-records"):
        path = f"/api/v1/namespaces/{name}"
        wait_until(lambda path=path: node.api.find(path) is None, 120, f"{path} is gone")

"""Runs and times the exact commands of README and docs/migration.md in an empty cluster.

PEER=csi-provisioner pytest tests/node/test_adoption.py -s     # moves the Go program, twice
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from statistics import median

import pytest

from tests.support.node import moving
from tests.support.node.cluster import NodeCluster
from tests.support.node.images import BUSYBOX_IMAGE, EXAMPLE_IMAGE, FLEET_IMAGE
from tests.support.node.moving import REPLACED, Claims
from tests.support.waiting import wait_until
from tests.support.walkthrough import Walkthrough

pytestmark = pytest.mark.timeout(1200)
PEER = os.environ.get("PEER", "")
ROUNDS = 2 if PEER else 1
CLUSTER_WIDE = (
    "/api/v1/namespaces",
    "/apis/rbac.authorization.k8s.io/v1/clusterroles",
    "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
    "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies",
    "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings",
)


def docker(cluster: NodeCluster) -> str:
    """Return a shell script that acts as Docker.

    The node's images are built without Docker, so `build` only tags one of them.
    """
    ctr = f"{shlex.join(cluster.ctr_command())} images tag --force docker.io/library"
    lines = (
        '[ "$1" = build ] || exit 0',
        f'case "$*" in *"target example"*) image={EXAMPLE_IMAGE} ;; *) image={FLEET_IMAGE} ;; esac',
        f'{ctr}/$image "$3"',
    )
    return "\n".join(lines)


@pytest.fixture(scope="module")
def reader(node: NodeCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Walkthrough]:
    """A reader who has installed csi-fleet. It is removed afterwards."""
    assert node.api.find("/api/v1/namespaces/csi-fleet") is None, "this file wants an empty cluster"
    node.ctr("images", "tag", "--force", BUSYBOX_IMAGE, "docker.io/library/busybox:1.37")
    folder = tmp_path_factory.mktemp("reader")
    walk = Walkthrough(folder, node.plane.kubeconfig, {"docker": docker(node)})
    walk.follow("README.md", "First volume, with Helm")
    yield walk
    if node.api.find("/api/v1/namespaces/csi-fleet") is not None:  # a test failed before
        walk.follow("README.md", "And away again")


def test_readme_leads_from_an_empty_cluster_to_a_volume(reader: Walkthrough) -> None:
    """The claim is Bound, its volume has a pod's bytes, and the laptop gets answers (OPS-3)."""
    print(reader.timeline())
    assert reader.printed("kubectl exec writer").strip() == "hello"
    assert "pvc default/hello" in reader.printed("explain pvc default/hello")
    assert "directory.csi.example.org" in reader.printed(" status")


def test_a_driver_moves_over_and_back_while_claims_come(
    node: NodeCluster, reader: Walkthrough
) -> None:
    """Each claim gets one volume, no two calls for a volume overlap, and no claim is lost."""
    moving.provide_image(node, PEER)
    moving.install(node)
    claims = Claims(node.api)
    try:
        if not PEER:
            claims.wait_more(3)
            assert "another program holds the Lease" not in moving.kill_sidecar(node)
        for number in range(ROUNDS):
            claims.wait_more(3)
            with moving.other_holder(node.api, claims):
                reader.follow("docs/migration.md", "Container by container", REPLACED)
            if PEER and not number:
                assert "accepts all of its 4 arguments unchanged" in reader.printed("migrate check")
            claims.wait_more(10)
            with moving.other_holder(node.api, claims):
                reader.follow("docs/migration.md", "One container back", REPLACED)
        claims.wait_more(3)
    finally:
        claims.stop()
    wait_until(lambda: not claims.waiting(), moving.SECONDS, "all claims are Bound")
    moving.nothing_lost(node, claims)
    waited = sorted(claims.waited.values())
    print(f"claim to Bound: p50 {median(waited):.1f} s, max {waited[-1]:.1f} s")


def test_nothing_of_it_stays(node: NodeCluster, reader: Walkthrough) -> None:
    """The last commands of README remove everything that it installs (OPS-7)."""
    moving.remove(node)
    reader.follow("README.md", "And away again")
    print(reader.timeline())
    left = [
        f"{path}/{one['metadata']['name']}"
        for path in CLUSTER_WIDE
        for one in node.api.items(path)
        if one["metadata"]["name"].startswith(("csi-fleet", "csi-driver-example"))
    ]
    assert left == []

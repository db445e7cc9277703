"""Volumes on a real node with csi-fleet and Kubernetes only: the test sets no status itself."""

from __future__ import annotations

import pytest

from tests.support.node.cluster import NodeCluster
from tests.support.node.scene import (
    SECONDS,
    NodeScene,
    claim_spec,
    from_claim,
    from_snapshot,
    of_claim,
    remains,
)
from tests.support.node.workloads import DRIVER, ZONE
from tests.support.waiting import wait_until

# The first start may wait for image builds and for a base image.
pytestmark = pytest.mark.timeout(1200)
STAY = "while :; do sleep 1; done"


def test_a_volume_is_written_read_grown_snapshotted_restored_and_cloned(scene: NodeScene) -> None:
    """A claim goes through each operation, and each pod reads what the previous one wrote."""
    scene.claim("data")
    scene.printed("writer", "echo written > /v0/file; sync", of_claim("data"))
    volume = scene.volume_of("data")
    terms = volume["spec"]["nodeAffinity"]["required"]["nodeSelectorTerms"]
    assert terms == [{"matchExpressions": [{"key": ZONE, "operator": "In", "values": ["z1"]}]}]

    scene.pod("user", f"cat /v0/file; echo grown > /v0/second; {STAY}", of_claim("data"))
    scene.wait_phase("user", "Running")
    wait_until(lambda: scene.log("user") == "written", SECONDS, "the second pod reads")
    scene.grow("data", "128Mi")
    scene.snapshot("moment", "data")
    scene.claim("restored", source=from_snapshot("moment"), size="128Mi")
    scene.claim("cloned", source=from_claim("data"), size="128Mi")
    both = ("restored", "cloned")
    found = scene.printed("reader", "cat /v0/* /v1/*", *map(of_claim, both))
    assert found.split() == ["written", "grown"] * 2 or found.split() == ["grown", "written"] * 2


def test_a_raw_block_volume_keeps_its_bytes_and_grows(scene: NodeScene) -> None:
    """The volume is a loop device of its size, and the next pod reads the same content."""
    scene.claim("disk", block=True, size="8Mi")
    write = "echo block-content | dd of=/v0 conv=notrunc 2>/dev/null; sync"
    scene.printed("writer", write, of_claim("disk"), block=True)
    scene.pod("user", f"head -c 13 /v0; echo; {STAY}", of_claim("disk"), block=True)
    scene.wait_phase("user", "Running")
    wait_until(lambda: scene.log("user") == "block-content", SECONDS, "the second pod reads")
    scene.grow("disk", "16Mi")
    scene.delete_pod("user")
    size = scene.printed("sized", "blockdev --getsize64 /v0", of_claim("disk"), block=True)
    assert int(size) == 16 * 2**20


def test_ephemeral_volumes_live_and_die_with_their_pod(scene: NodeScene) -> None:
    """An inline volume has no claim, and a generic one has a claim of the pod."""
    inline = {"csi": {"driver": DRIVER}}
    generic = {"ephemeral": {"volumeClaimTemplate": {"spec": claim_spec()}}}
    script = "echo one > /v0/file; echo two > /v1/file; cat /v0/file /v1/file"
    assert scene.printed("short", script, inline, generic).split() == ["one", "two"]
    path = f"/api/v1/namespaces/{scene.namespace}/persistentvolumeclaims"
    wait_until(lambda: not scene.api.items(path), SECONDS, "the generic volume's claim is gone")


@pytest.mark.last
def test_nothing_stays_mounted_attached_or_stored(cluster: NodeCluster) -> None:
    """In the end there is no mount, attachment, volume, snapshot, directory or intent copy."""
    try:
        wait_until(lambda: not remains(cluster), SECONDS, "everything is gone")
    except TimeoutError:
        pytest.fail(f"left behind: {remains(cluster)}")

"""Watchers, workers and driver pods are replaced one by one while claims come in."""

from __future__ import annotations

import time
from collections import Counter
from contextlib import closing
from itertools import count, pairwise

import pytest

from tests.support.csi_driver import DirectoryDriver
from tests.support.kube_api import JsonObject
from tests.support.node.cluster import NodeCluster
from tests.support.node.scene import SECONDS, NodeScene
from tests.support.node.workloads import DRIVER, NAMESPACE, is_available
from tests.support.waiting import wait_until

pytestmark = pytest.mark.timeout(1200)
CLAIMS_PER_SECOND = 5
# With more nodes than one another would be chosen; csi-provisioner tells the same here.
NO_NODE = "error generating accessibility requirements: no available topology found"
ROLLED = (
    "/apis/apps/v1/namespaces/csi-fleet/deployments/watcher",
    f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments/driver",
    f"/apis/apps/v1/namespaces/{NAMESPACE}/daemonsets/directory-node",
)


def test_no_claim_fails_and_none_is_made_twice(cluster: NodeCluster, scene: NodeScene) -> None:
    """Every claim of the time is Bound, with one volume each and no failure told to its user."""
    template = {"metadata": {"annotations": {"kubectl.kubernetes.io/restartedAt": scene.namespace}}}
    for path in ROLLED:
        cluster.api.patch(path, {"spec": {"template": template}})
    made = claims_until_rolled(cluster, scene)
    claims = f"/api/v1/namespaces/{scene.namespace}/persistentvolumeclaims"

    def bound() -> list[JsonObject]:
        found = cluster.api.items(claims)
        return found if all(one["status"]["phase"] == "Bound" for one in found) else []

    volumes = [one["spec"]["volumeName"] for one in wait_until(bound, 2 * SECONDS, "all are Bound")]
    assert len(set(volumes)) == made
    owners = Counter(
        one["spec"]["claimRef"]["name"]
        for one in cluster.api.items("/api/v1/persistentvolumes")
        if one["spec"]["claimRef"]["namespace"] == scene.namespace
    )
    assert set(owners.values()) == {1}
    assert failures_told(cluster, scene) == []
    at_the_driver(cluster, set(volumes))


def claims_until_rolled(cluster: NodeCluster, scene: NodeScene) -> int:
    """Make claims at their rate until every new pod is ready and the old ones end or have ended."""
    started = time.monotonic()
    for number in count():
        due = started + number / CLAIMS_PER_SECOND
        wait_until(lambda due=due: time.monotonic() >= due, SECONDS, "the next claim's time")
        scene.claim(f"c{number}", immediate=True, size="1Mi")
        is_second = number % CLAIMS_PER_SECOND == CLAIMS_PER_SECOND - 1
        if is_second and all(is_available(cluster.api.get(one)) for one in ROLLED):
            return number + 1
    raise AssertionError


def failures_told(cluster: NodeCluster, scene: NodeScene) -> list[str]:
    """What users were told, but for what is true here: the only node has no driver for a while.

    The end of the old driver pod's registrar takes the driver out of the only CSINode, and the new
    pod's brings it back: 1 s on a quiet machine, 10 s at load 22, and no part of ours can shorten
    it. An immediate claim of that time has no topology to ask for; the warning says so, as
    csi-provisioner's does, and `all are Bound` holds for it like for the others. It is retried
    after 1, 2, 4 s: at load 22 such claims waited 7 s in the middle and 16 s at most, while
    others of the same burst waited up to 29 s for their turn.
    """
    events = cluster.api.items(f"/api/v1/namespaces/{scene.namespace}/events")
    told = [one["message"] for one in events if one["reason"] == "ProvisioningFailed"]
    return [one for one in told if not one.endswith(NO_NODE)]


def at_the_driver(cluster: NodeCluster, volumes: set[str]) -> None:
    """One stored volume for each claim, and no two calls for one of them at a time."""
    root = cluster.directory / "kubelet/plugins" / DRIVER / "storage"
    with closing(DirectoryDriver(DRIVER, root=root)) as driver:
        stored = Counter(one["name"] for one in driver.volumes().values())
        calls = [c for c in driver.calls("CreateVolume") if c.request["name"] in volumes]
    assert {name: stored[name] for name in volumes} == dict.fromkeys(volumes, 1)
    for name in volumes:
        times = [(c.started_at, c.ended_at) for c in calls if c.request["name"] == name]
        for (_, ended), (next_started, _) in pairwise(sorted(times, key=lambda one: one[0])):
            assert ended is None or ended <= next_started, f"{name}: two calls at a time"

"""adopt and release on a real API server with its Deployment controller and a fake kubelet."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import yaml

from tests.support.adopted import (
    NAMESPACE,
    Cluster,
    Player,
    allow_all,
    deployment,
    plane,  # noqa: F401 - a fixture
    played,
    prepare,
)
from tests.support.controlplane import ControlPlane
from tests.support.kube_api import KubeApiError
from tests.support.kustomize import render
from tests.support.shipped import K8S
from tests.support.waiting import let_pass
from workers.cli.adoptplan import RECORD
from workers.cli.onecontainer import NAME


@pytest.fixture
def cluster(plane: ControlPlane) -> Iterator[Cluster]:  # noqa: F811 - a fixture
    with plane.api() as api:
        prepare(api)
        ca = "rediss://redis:6379/0?ssl_ca_certs=/run/csi-fleet-redis/ca/ca.crt"
        env = [{"name": "CSI_FLEET_REDIS_URL", "value": ca}]
        watcher = {"name": "watcher", "image": "csi-fleet:1", "env": env}
        api.apply(deployment("watcher", "csi-fleet", [watcher]))
        for kind, name in (("Secret", "redis-password-worker"), ("ConfigMap", "redis-ca")):
            metadata = {"name": name, "namespace": NAMESPACE}
            api.apply({"apiVersion": "v1", "kind": kind, "metadata": metadata})
        allow_all(api, "adopted", NAMESPACE, "default")
        allow_all(api, "watches", "csi-fleet", "watcher")
        with played(plane, Player(api)) as made:
            yield made


@pytest.mark.parametrize(("replicas", "elects"), [(2, True), (1, False)])
def test_a_deployment_is_adopted_and_released_as_it_was(
    cluster: Cluster, replicas: int, elects: bool
) -> None:
    before = cluster.start(replicas=replicas, elects=elects)
    where = [] if elects else [f"{NAMESPACE}/controller"]
    choice = ["--any-replica"] if replicas > 1 else []
    dry = cluster.run("adopt", *where, *choice, "--dry-run")
    assert cluster.workload()["metadata"]["generation"] == before["metadata"]["generation"]
    assert f"name: {NAME}" in dry
    assert "is adopted" in cluster.run("adopt", *where, *choice)
    assert cluster.names() == ["driver", NAME]
    assert cluster.workload()["spec"]["strategy"] == before["spec"]["strategy"]
    labels = cluster.api.get(f"/api/v1/namespaces/{NAMESPACE}")["metadata"]["labels"]
    assert labels["csi-fleet.io/drivers"] == "true"
    generation = cluster.workload()["metadata"]["generation"]
    cluster.run("adopt")  # finds the workload by its record
    assert cluster.workload()["metadata"]["generation"] == generation
    assert "is released" in cluster.run("release")
    after = cluster.workload()
    assert after["spec"] == before["spec"]
    assert RECORD not in (after["metadata"].get("annotations") or {})
    assert cluster.player.both == 0, "without a Lease no two pods at once"


@pytest.mark.parametrize("elects", [True, False])
def test_a_killed_command_is_repeated_to_the_end(cluster: Cluster, elects: bool) -> None:
    """A killed command can be repeated: SIGKILL can come at any
    moment, because the API server's objects are the only state.
    """
    before = cluster.start(replicas=1, elects=elects)
    where = [] if elects else [f"{NAMESPACE}/controller"]
    for seconds in (1.0, 1.6, 2.2, 2.8):
        for command in ("adopt", "release"):
            child = cluster.command(command, *where)
            let_pass(seconds)
            child.kill()
            child.communicate()
            names = cluster.names()
            assert (NAME in names) != ("csi-provisioner" in names)
            cluster.run(command, *where)
    after = cluster.workload()
    assert after["spec"] == before["spec"]
    assert cluster.player.both == 0


def test_the_api_server_refuses_a_write_over_somebody_elses(cluster: Cluster) -> None:
    """The API server itself refuses the patch of a workload that somebody else has changed."""
    cluster.start(replicas=1, elects=True)
    path = f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments/controller"
    stale = cluster.workload()["metadata"]["resourceVersion"]
    cluster.api.patch(path, {"metadata": {"labels": {"somebody": "was-here"}}})
    change = {"metadata": {"resourceVersion": stale}, "spec": {"paused": True}}
    with pytest.raises(KubeApiError) as refused:
        cluster.api.patch(path, change)
    assert refused.value.status == 409


def test_on_the_hosts_network_the_printed_policy_is_what_lacks(cluster: Cluster) -> None:
    """On the host's network, adopt prints the missing network policy, which works unchanged."""
    api = cluster.api
    for item in render(K8S / "base"):
        if item["kind"] == "NetworkPolicy" or (
            item["kind"] == "Service" and item["metadata"]["name"] == "redis"
        ):
            api.apply(item)
    api.create({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "host-1"}})
    address = {"type": "InternalIP", "address": "10.9.8.7"}
    api.patch("/api/v1/nodes/host-1/status", {"status": {"addresses": [address]}})
    try:
        host = {"hostNetwork": True, "dnsPolicy": "ClusterFirstWithHostNet"}
        cluster.start(replicas=1, elects=True, **host)
        child = cluster.command("adopt")
        output, _ = child.communicate(timeout=60)
        assert child.returncode == 1
        assert "hostNetwork" in output
        assert NAME not in cluster.names()
        [policy] = yaml.safe_load_all(output)
        assert policy["spec"]["ingress"][0]["from"] == [{"ipBlock": {"cidr": "10.9.8.7/32"}}]
        api.create(policy)
        assert "is adopted" in cluster.run("adopt")
        assert "is released" in cluster.run("release")
    finally:
        api.delete("/api/v1/nodes/host-1")
        policies = "/apis/networking.k8s.io/v1/namespaces/csi-fleet/networkpolicies"
        for one in api.items(policies):
            api.delete(f"{policies}/{one['metadata']['name']}")
        api.delete("/api/v1/namespaces/csi-fleet/services/redis")


def test_two_replicas_without_a_word_are_refused(cluster: Cluster) -> None:
    cluster.start(replicas=2, elects=True)
    child = cluster.command("adopt")
    output, _ = child.communicate(timeout=60)
    assert child.returncode == 1
    assert "--any-replica" in output
    assert "csi-provisioner" in cluster.names()
    assert "is adopted" in cluster.run("adopt", "--one-replica")
    assert cluster.workload()["spec"]["replicas"] == 1
    cluster.run("release")
    assert cluster.workload()["spec"]["replicas"] == 2

"""A driver's pod on the host network, and the NetworkPolicies of Redis."""

from __future__ import annotations

import pytest
import yaml

from tests.support.kustomize import render
from tests.support.memory_api import MemoryApi
from tests.support.shipped import K8S
from workers.cli import hostnetwork
from workers.cli.adoptcentral import POLICIES, SERVICES
from workers.cli.doctor import FAIL, WARN
from workers.kube import paths
from workers.kube.errors import ForbiddenError

URL = "rediss://redis.csi-fleet.svc:6379/0?ssl_ca_certs=/ca.crt"
PLACE = "Deployment kube-system/csi-nfs-controller"
NODES = {"a": "10.0.0.5", "b": "10.0.0.6", "c": "fd00::6"}


class World:
    """The shipped Service, policies and pod of Redis, and three nodes."""

    def __init__(self, *, shipped=True):
        self.api = MemoryApi()
        for item in render(K8S / "base"):
            if item["kind"] == "Service" and item["metadata"]["name"] == "redis":
                self.api.add(SERVICES, item)
            elif item["kind"] == "NetworkPolicy" and shipped:
                self.api.add(POLICIES, item)
            elif item["metadata"]["name"] == "redis" and "template" in item.get("spec", {}):
                template = item["spec"]["template"]
                labels = template["metadata"]["labels"]
                metadata = {"name": "redis-0", "namespace": "csi-fleet", "labels": labels}
                self.api.add(paths.PODS, {"metadata": metadata, "spec": template["spec"]})
        for name, address in NODES.items():
            kinds = {"InternalIP": address, "ExternalIP": "192.0.2.1", "Hostname": name}
            status = {"addresses": [{"type": k, "address": a} for k, a in kinds.items()]}
            self.api.add(paths.NODES, {"metadata": {"name": name}, "status": status})

    def admit(self, *blocks, ports=()):
        """Add another policy."""
        rule = {"from": [{"ipBlock": one} for one in blocks]} if blocks else {}
        rule |= {"ports": list(ports)} if ports else {}
        spec = {"podSelector": {}, "ingress": [rule]}
        self.api.add(
            POLICIES, {"metadata": {"name": "nodes", "namespace": "csi-fleet"}} | {"spec": spec}
        )

    def look(self, url=URL):
        return hostnetwork.look(self.api.kube, url, PLACE)


def test_the_shipped_policies_shut_the_nodes_out_and_the_printed_one_lets_them_in():
    world = World()
    shut = world.look()
    assert shut.finding.state == FAIL
    for words in (PLACE, "hostNetwork", "deny-all, redis in csi-fleet", *NODES.values()):
        assert words in shut.finding.text
    blocks = [one["ipBlock"]["cidr"] for one in shut.policy["spec"]["ingress"][0]["from"]]
    assert blocks == ["10.0.0.5/32", "10.0.0.6/32", "fd00::6/128"]
    assert shut.policy["spec"]["ingress"][0]["ports"] == [{"protocol": "TCP", "port": 6379}]
    world.api.add(POLICIES, yaml.safe_load(yaml.safe_dump(shut.policy)))
    assert world.look() is None


def test_a_node_that_came_later_is_named():
    world = World()
    world.api.add(POLICIES, world.look().policy)
    status = {"addresses": [{"type": "InternalIP", "address": "10.0.0.9"}]}
    world.api.add(paths.NODES, {"metadata": {"name": "new"}, "status": status})
    shut = world.look()
    assert "no ipBlock admits 10.0.0.9." in shut.finding.text
    assert len(shut.policy["spec"]["ingress"][0]["from"]) == 4


ALL = [{"cidr": "10.0.0.0/8"}, {"cidr": "fd00::/8"}]


@pytest.mark.parametrize(
    ("blocks", "ports", "is_open"),
    [
        (ALL, [], True),
        (ALL, [{"port": "redis"}], True),
        (ALL, [{"port": 6379, "protocol": "TCP"}], True),
        (ALL, [{"port": 6000, "endPort": 7000}], True),
        (ALL, [{"protocol": "TCP"}], True),
        ([], [], True),  # a rule without peers admits every client
        (ALL, [{"port": 26379}], False),
        (ALL, [{"port": 6379, "protocol": "UDP"}], False),
        (ALL[:1], [], False),
        ([{"cidr": "10.0.0.0/8", "except": ["10.0.0.6/32"]}, ALL[1]], [], False),
    ],
)
def test_another_policy_counts_if_it_admits_every_node_to_the_port(blocks, ports, is_open):
    world = World()
    world.admit(*blocks, ports=ports)
    assert (world.look() is None) == is_open


def test_only_the_addresses_that_connect_to_the_service_need_a_policy():
    """Nodes with addresses of two families, and a Service with one."""
    world = World()
    world.admit(ALL[0])
    world.api.change(SERVICES, "redis", {"spec": {"ipFamilies": ["IPv4"]}}, "csi-fleet")
    assert world.look() is None
    world.api.change(SERVICES, "redis", {"spec": {"ipFamilies": ["IPv4", "IPv6"]}}, "csi-fleet")
    assert "no ipBlock admits fd00::6." in world.look().finding.text


@pytest.mark.parametrize(
    ("pod", "wanted"),
    [
        ({}, ""),
        ({"dnsPolicy": "ClusterFirst"}, ""),
        ({"dnsPolicy": "Default"}, "dnsPolicy: ClusterFirst`"),
        ({"hostNetwork": True}, "dnsPolicy: ClusterFirstWithHostNet"),
        ({"hostNetwork": True, "dnsPolicy": "ClusterFirst"}, "dnsPolicy: ClusterFirstWithHostNet"),
        ({"hostNetwork": True, "dnsPolicy": "Default"}, "dnsPolicy: ClusterFirstWithHostNet"),
        ({"hostNetwork": True, "dnsPolicy": "ClusterFirstWithHostNet"}, ""),
        ({"hostNetwork": True, "dnsPolicy": "None", "dnsConfig": {}}, ""),
    ],
)
def test_the_name_of_redis_needs_the_clusters_dns(pod, wanted):
    """On the host's network, kubelet treats the default ClusterFirst as Default."""
    kube = World().api.kube
    problem = hostnetwork.look_up(kube, URL, pod, PLACE)
    assert (problem is not None) == bool(wanted)
    if problem:
        assert problem.state == FAIL
        assert wanted in problem.text
    for url in ("rediss://redis.example.org:6379/0", "redis://10.1.1.1"):
        assert hostnetwork.look_up(kube, url, pod, PLACE) is None


def test_without_policies_or_with_a_redis_elsewhere_nothing_is_shut():
    assert World(shipped=False).look() is None
    for url in ("rediss://redis.example.org:6379/0", "redis://localhost:6379", "redis://10.1.1.1"):
        assert World().look(url) is None


def test_before_redis_has_a_pod_its_service_tells_the_labels():
    world = World()
    world.api.drop(paths.PODS, "redis-0", "csi-fleet")
    assert world.look().policy["spec"]["podSelector"]["matchLabels"] == {
        "app.kubernetes.io/name": "redis"
    }


def test_who_may_not_read_is_told_what_was_not_checked():
    world = World()
    world.api.fail("get", "networkpolicies", ForbiddenError(403, "Forbidden", "no"))
    shut = world.look()
    assert (shut.finding.state, shut.policy) == (WARN, None)


def test_nodes_without_addresses_leave_the_policy_to_the_user():
    world = World()
    for name in NODES:
        world.api.change(paths.NODES, name, {"status": {"addresses": []}})
    shut = world.look()
    assert (shut.finding.state, shut.policy) == (FAIL, None)

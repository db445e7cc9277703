"""Checks whether a driver's pod on the host's network can reach Redis.

A policy selects its peers by the labels of pods, but the traffic of a pod with `hostNetwork: true`
comes from the address of its node. So no label admits such a pod; only an `ipBlock` that contains
the addresses of the nodes does. And unless the pod's `dnsPolicy` says otherwise, it asks the DNS
servers of its node, which do not know the cluster's Services. This module changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import ip_address, ip_network
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from workers.cli.adoptcentral import POLICIES, SERVICES, find, selects
from workers.cli.doctor import FAIL, WARN, Finding
from workers.kube import paths
from workers.kube.errors import RefusedError

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from workers.kube.objects import JsonObject
    from workers.kube.resources import KubeResources

NAME: Final = "redis-from-nodes"
_REDIS_PORT: Final = 6379


@dataclass(frozen=True, slots=True)
class Shut:
    """The result of the check.

    Attributes:
        finding: the problem, its cause and the remedy.
        policy: the NetworkPolicy that solves the problem; None if it is not known.
    """

    finding: Finding
    policy: JsonObject | None = None


def look(kube: KubeResources, redis_url: str, place: str) -> Shut | None:
    """Return why pods on the host's network cannot reach Redis; None if the policies admit them.

    Args:
        kube: the API server, accessed with the user's permissions.
        redis_url: the address of Redis; the policies are known only if its host is a Service.
        place: the driver's workload, for messages.
    """
    try:
        return _look(kube, redis_url, place)
    except RefusedError as error:
        text = (
            f"{place} uses the host's network, and whether the NetworkPolicies of Redis admit it "
            f"is not known: {error}. Allow yourself to list NetworkPolicies, pods and nodes, or "
            "check it by hand (docs/migration.md)"
        )
        return Shut(Finding("network", WARN, text))


def look_up(kube: KubeResources, redis_url: str, pod: JsonObject, place: str) -> Finding | None:
    """Return why pods of this specification cannot resolve the name of Redis, or None if they can.

    Args:
        kube: the API server, accessed with the user's permissions.
        redis_url: the address of Redis; only the name of a Service needs the cluster's DNS.
        pod: the specification of the pods.
        place: the driver's workload, for messages.
    """
    policy = pod.get("dnsPolicy") or "ClusterFirst"
    wanted = "ClusterFirstWithHostNet" if pod.get("hostNetwork") else "ClusterFirst"
    if policy in {wanted, "ClusterFirstWithHostNet", "None"}:
        return None
    try:
        if _service(kube, redis_url)[0] is None:
            return None
    except RefusedError:
        return None  # `look` reports it
    return Finding(
        "network",
        FAIL,
        f"With `dnsPolicy: {policy}`, the pods of {place} use their node's DNS servers, which "
        f"cannot resolve the name of Redis, {urlsplit(redis_url).hostname}. Set `dnsPolicy: "
        f"{wanted}` for these pods, in the driver's chart or manifests",
    )


def _service(kube: KubeResources, redis_url: str) -> tuple[JsonObject | None, str]:
    """Return the Service of Redis, or None if Redis is elsewhere, and the Service's namespace."""
    name, _, rest = (urlsplit(redis_url).hostname or "").partition(".")
    namespace = rest.partition(".")[0]
    return find(kube, SERVICES, name, namespace) if namespace else None, namespace


def _look(kube: KubeResources, redis_url: str, place: str) -> Shut | None:
    service, namespace = _service(kube, redis_url)
    selector = ((service or {}).get("spec") or {}).get("selector")
    if service is None or not selector:
        return None
    pods = [
        one
        for one in kube.list(paths.PODS, namespace=namespace)
        if selects({"matchLabels": selector}, one["metadata"].get("labels") or {})
    ]
    labels = (pods[0]["metadata"].get("labels") if pods else None) or selector
    selecting = [one for one in kube.list(POLICIES, namespace=namespace) if _closes(one, labels)]
    ports = _ports(service, pods, urlsplit(redis_url).port or _REDIS_PORT)
    sources = [
        rule.get("from") or ()
        for one in selecting
        for rule in one["spec"].get("ingress") or ()
        if _has_port(rule.get("ports") or (), ports)
    ]
    if not selecting or not all(sources):
        return None  # nothing restricts the connections, or a rule admits everybody
    blocks = [peer["ipBlock"] for peers in sources for peer in peers if peer.get("ipBlock")]
    found = {one for node in kube.list(paths.NODES) for one in _addresses(node)}
    families = service["spec"].get("ipFamilies") or ("IPv4", "IPv6")  # connections use only these
    addresses = sorted(one for one in found if f"IPv{ip_address(one).version}" in families)
    missing = [one for one in addresses if not any(_contains(block, one) for block in blocks)]
    if addresses and not missing:
        return None
    names = ", ".join(one["metadata"]["name"] for one in selecting)
    text = (
        f"{place} uses the host's network (hostNetwork: true), so its worker would not reach "
        f"Redis. NetworkPolicies of Redis ({names} in {namespace}) admit pods by their labels, but "
        "the traffic of this pod comes from the address of its node"
    )
    if not addresses:
        text += ". Admit the addresses of your nodes to Redis (docs/migration.md)"
        return Shut(Finding("network", FAIL, text))
    text += (
        f", and no ipBlock admits {', '.join(missing)}. Apply the NetworkPolicy {NAME}, which is "
        "printed here, then run the command again. Add the address of each new node to it"
    )
    return Shut(Finding("network", FAIL, text), _policy(namespace, selector, addresses, ports))


def _closes(policy: JsonObject, labels: JsonObject) -> bool:
    """Return True if the policy restricts the connections to pods with these labels."""
    spec = policy.get("spec") or {}
    is_of_ingress = "Ingress" in (spec.get("policyTypes") or ["Ingress"])
    return is_of_ingress and selects(spec.get("podSelector") or {}, labels)


def _ports(service: JsonObject, pods: Sequence[JsonObject], port: int) -> list[int | str]:
    """Return the port of the pods behind the Service's port: its number first, then its names."""
    asked = [one for one in service["spec"].get("ports") or () if one.get("port") == port]
    target = (asked[0].get("targetPort") if asked else None) or port
    known = {
        one["name"]: one["containerPort"]
        for pod in pods
        for container in pod["spec"]["containers"]
        for one in container.get("ports") or ()
        if one.get("name")
    }
    number = target if isinstance(target, int) else known.get(target, port)
    names = {name for name, one in known.items() if one == number}
    return [number, *sorted(names | ({target} if isinstance(target, str) else set()))]


def _has_port(rules: Sequence[JsonObject], ports: Collection[int | str]) -> bool:
    """Return True if a rule allows the port; a rule without ports allows all of them."""
    number = next(one for one in ports if isinstance(one, int))
    for one in rules:
        if one.get("protocol", "TCP") != "TCP":
            continue
        first = one.get("port")
        if first is None or first in ports:
            return True
        if isinstance(first, int) and first <= number <= one.get("endPort", first):
            return True
    return not rules


def _addresses(node: JsonObject) -> list[str]:
    found = (node.get("status") or {}).get("addresses") or ()
    return [one["address"] for one in found if one["type"] == "InternalIP"]


def _contains(block: JsonObject, address: str) -> bool:
    """Return True if an ipBlock contains the address."""
    here = ip_address(address)
    return here in ip_network(block["cidr"], strict=False) and not any(
        here in ip_network(one, strict=False) for one in block.get("except") or ()
    )


def _policy(
    namespace: str, selector: JsonObject, addresses: Sequence[str], ports: Sequence[int | str]
) -> JsonObject:
    blocks = [{"ipBlock": {"cidr": str(ip_network(one))}} for one in addresses]
    return {
        "apiVersion": POLICIES.api_version,
        "kind": POLICIES.kind,
        "metadata": {"name": NAME, "namespace": namespace},
        "spec": {
            "podSelector": {"matchLabels": dict(selector)},
            "policyTypes": ["Ingress"],
            "ingress": [{"from": blocks, "ports": [{"protocol": "TCP", "port": ports[0]}]}],
        },
    }

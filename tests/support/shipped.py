"""Applies the manifests' service accounts and permissions to a test cluster, and returns tokens
for them."""

from __future__ import annotations

import json
from collections import defaultdict
from http import HTTPStatus
from pathlib import Path
from typing import NamedTuple

import yaml

from tests.support.controlplane import ControlPlane
from tests.support.kube_api import JsonObject, KubeApi
from tests.support.kustomize import accumulate, render
from tests.support.waiting import wait_until

K8S = Path(__file__).resolve().parents[2] / "k8s"
NAMESPACE = "csi-fleet"
# Resources that Kubernetes lets every service account use; 1.37 added the last one.
EVERYBODY = {
    *("selfsubjectaccessreviews", "selfsubjectrulesreviews", "selfsubjectreviews"),
    "clustertrustbundles",
}
RECORDS = "csi-fleet-records"
RIGHTS = {
    "ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding",
}  # fmt: skip
POLICIES = {"ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"}
# Not in prod-central: an alpha gate, a Lease that no work depends on, and Secrets of all
# namespaces.
EXTRA = ("feature-cross-namespace", "feature-leader-election", "feature-secrets")


class Right(NamedTuple):
    """One verb on one resource; `namespace` is empty for the whole cluster."""

    account: str
    namespace: str
    group: str
    resource: str
    verb: str


def manifests(*components: str) -> list[JsonObject]:
    """Return the accounts and permissions with every feature, and with further components; no
    policies."""
    objects = render(K8S / "overlays" / "prod-central")
    for name in (*EXTRA, *components):
        objects = accumulate((K8S / "components" / name).resolve(), objects)
    return [one for one in objects if one["kind"] in RIGHTS]


def rights(objects: list[JsonObject]) -> set[Right]:
    """Return the permissions that the roles and bindings grant, by account."""
    rules = {
        (one["kind"], one["metadata"]["name"]): one["rules"]
        for one in objects
        if one["kind"] in {"ClusterRole", "Role"}
    }
    found = set()
    for binding in objects:
        if not binding["kind"].endswith("Binding") or "roleRef" not in binding:
            continue
        place = binding["metadata"].get("namespace", "")
        for rule in rules[binding["roleRef"]["kind"], binding["roleRef"]["name"]]:
            for subject in binding["subjects"]:
                found |= {
                    Right(subject["name"], place, group, resource, verb)
                    for group in rule["apiGroups"]
                    for resource in rule["resources"]
                    for verb in rule["verbs"]
                }
    return found


def install(api: KubeApi, *components: str) -> list[JsonObject]:
    """Apply namespaces, accounts and permissions, and wait until the accounts exist."""
    for name in (NAMESPACE, RECORDS):
        api.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    objects = manifests(*components)
    for item in objects:
        api.apply(item)
    accounts = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts"
    wait_until(lambda: len(api.items(accounts)) >= 3, 30, "accounts exist")
    return objects


def kubeconfig_for(plane: ControlPlane, account: str) -> Path:
    """Return a kubeconfig with a token of the service account, as its pod would use."""
    path = plane.service_account_kubeconfig(NAMESPACE, account)
    token = yaml.safe_load(path.read_text())["users"][0]["user"]["token"]
    assert token.count(".") == 2, "a signed token of the TokenRequest API"
    return path


def audited(plane: ControlPlane, account: str, home: str = NAMESPACE) -> dict[int, set[Right]]:
    """Return an account's requests so far, by status code, without discovery and reviews.

    `home` is the account's own namespace.
    """
    user = f"system:serviceaccount:{home}:{account}"
    found: dict[int, set[Right]] = defaultdict(set)
    for line in plane.audit_log.read_text().splitlines():
        try:
            event = json.loads(line)
        except ValueError:
            continue
        target = event.get("objectRef")
        if event["user"]["username"] != user or not target or "resource" not in target:
            continue
        right = Right(
            account,
            target.get("namespace", ""),
            target.get("apiGroup", ""),
            target["resource"],
            event["verb"],
        )
        code = event["responseStatus"]["code"]
        # Refused by admission, not by RBAC: a namespace that is being deleted accepts no event.
        is_allowed = event["annotations"].get("authorization.k8s.io/decision") == "allow"
        if not (code == HTTPStatus.FORBIDDEN and is_allowed):
            found[code].add(right)
    return found

"""Computes the permissions of every service account of k8s/ from the manifests, for a test and a
page.

`python -m tests.support.rights_table` updates the table in docs/security.md.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from tests.support.kube_api import JsonObject
from tests.support.kustomize import accumulate, render
from tests.support.shipped import K8S, NAMESPACE, POLICIES, RIGHTS

PAGE = Path(__file__).resolve().parents[2] / "docs" / "security.md"
BEGIN, END = "<!-- rights: generated -->\n", "<!-- end of rights -->\n"
ACCOUNTS = {
    "watcher": (NAMESPACE, "watcher"),
    "worker": (NAMESPACE, "worker"),
    "beside a driver": ("csi-driver-example", "driver"),
    "on each node": ("csi-driver-node-example", "driver"),
    "snapshot-metadata": (NAMESPACE, "snapshot-metadata"),
    "beat, Flower, Redis": (NAMESPACE, "no-api"),
}
# Access to every Secret of the cluster; no account has it unless an operator chooses this
# component.
CHOSEN = {"feature-secrets"}


class Grant(NamedTuple):
    """One verb on one resource: `namespace` "" is the whole cluster, `name` "" any name."""

    namespace: str
    group: str
    resource: str
    verb: str
    name: str = ""


def everything() -> list[JsonObject]:
    """Return the accounts, roles and policies of all overlays, with all features and
    controllers."""
    objects = render(K8S / "overlays" / "prod-central")
    chosen = ("feature-*", "controller-*", "snapshot-metadata")
    folders = sorted(one for pattern in chosen for one in (K8S / "components").glob(pattern))
    for folder in folders:
        if folder.name not in CHOSEN:
            objects = accumulate(folder.resolve(), objects)
    for overlay in ("prod-sidecar", "prod-node"):
        objects += render(K8S / "overlays" / overlay)
    return [one for one in unique(objects) if one["kind"] in RIGHTS | POLICIES]


def unique(objects: Iterable[JsonObject]) -> list[JsonObject]:
    """Return each object once, because overlays share the base."""
    found: dict[tuple[str, str, str], JsonObject] = {}
    for one in objects:
        meta = one["metadata"]
        found.setdefault((one["kind"], meta.get("namespace", ""), meta["name"]), one)
    return list(found.values())


def granted(objects: Iterable[JsonObject]) -> dict[tuple[str, str], set[Grant]]:
    """Return the permissions that roles and bindings grant, by the account's namespace and name."""
    objects = list(objects)
    rules = {
        (one["kind"], one["metadata"].get("namespace", ""), one["metadata"]["name"]): one["rules"]
        for one in objects
        if one["kind"] in {"ClusterRole", "Role"}
    }
    found: dict[tuple[str, str], set[Grant]] = defaultdict(set)
    for binding in objects:
        if not binding["kind"].endswith("Binding") or "roleRef" not in binding:
            continue
        place = binding["metadata"].get("namespace", "")
        role = binding["roleRef"]
        home = place if role["kind"] == "Role" else ""
        for rule in rules[role["kind"], home, role["name"]]:
            for subject in binding["subjects"]:
                found[subject["namespace"], subject["name"]] |= set(grants_of(rule, place))
    return found


def grants_of(rule: JsonObject, namespace: str) -> Iterable[Grant]:
    """Return the single permissions of one rule."""
    return [
        Grant(namespace, group, resource, verb, name)
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
        for name in rule.get("resourceNames") or [""]
    ]


def table() -> str:
    """Return the table of docs/security.md."""
    known = granted(everything())
    rows: dict[tuple[str, str, str], dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for column, account in ACCOUNTS.items():
        for one in sorted(known.get(account, ())):
            place = "own" if one.namespace in {account[0], NAMESPACE} else one.namespace
            place = place if one.namespace else "all"
            name = f"{one.resource}.{one.group}" if one.group else one.resource
            verbs = rows[name, place, one.name][column]
            if one.verb not in verbs:
                verbs.append(one.verb)
    lines = [
        "| Resource | Namespace | " + " | ".join(ACCOUNTS) + " |",
        "|---|---|" + "---|" * len(ACCOUNTS),
    ]
    for (resource, place, name), cells in sorted(rows.items()):
        label = f"{resource} `{name}`" if name else resource
        texts = [", ".join(cells[column]) for column in ACCOUNTS]
        lines.append(f"| {label} | {place} | {' | '.join(texts)} |")
    return "\n".join(lines) + "\n"


def page() -> str:
    """Return docs/security.md with the current table."""
    head, _, rest = PAGE.read_text().partition(BEGIN)
    return head + BEGIN + table() + END + rest.partition(END)[2]


if __name__ == "__main__":
    PAGE.write_text(page())

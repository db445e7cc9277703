"""`csi-fleet secret-roles`: prints Roles for exactly the Secrets that the cluster's classes name.

It prints a Role and a RoleBinding for each namespace, for `kubectl apply -f -`, and changes
nothing. Run it again when classes change. Roles that are no longer printed are removed by:

    kubectl apply --prune -l csi-fleet.io/secret-roles=...
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, Final

import yaml

from workers.cli import terminal
from workers.errors import ConfigError
from workers.explain.words import nearest
from workers.kube import paths
from workers.kube.errors import NotFoundError
from workers.migration import plugins
from workers.translate.fields import text
from workers.translate.secret_places import Places

if TYPE_CHECKING:
    from collections.abc import Iterator

    from workers.cli.tools import Tools
    from workers.kube.objects import JsonObject
    from workers.kube.paths import Resource

LABEL: Final = "csi-fleet.io/secret-roles"
_RBAC: Final = "rbac.authorization.k8s.io"
# Each entry: a kind of class, the field that names the class's driver, and the kind of object that
# uses the class. Templates are resolved in the namespaces of these objects.
_CLASSES: Final = (
    (paths.STORAGE_CLASSES, "provisioner", paths.CLAIMS, "storageClassName"),
    (paths.SNAPSHOT_CLASSES, "driver", paths.SNAPSHOTS, "volumeSnapshotClassName"),
    (paths.GROUP_SNAPSHOT_CLASSES, "driver", paths.GROUP_SNAPSHOTS, "volumeGroupSnapshotClassName"),
)
_OBJECTS: Final = (
    (paths.VOLUMES, ("spec", "csi", "driver")),
    (paths.SNAPSHOT_CONTENTS, ("spec", "driver")),
    (paths.GROUP_SNAPSHOT_CONTENTS, ("spec", "driver")),
)


def run(tools: Tools) -> int:
    """Run the command; return 0 even if no class names a Secret."""
    settings = tools.settings.tool
    accounts = [_account(one) for one in settings.accounts]
    places = find(tools, settings.driver)
    name = f"csi-fleet-secrets-{settings.driver}" if settings.driver else "csi-fleet-secrets"
    for line in places.open:
        terminal.write(
            f"# {line}: only the namespaces that have such objects now are listed. Run this again"
        )
        terminal.write(
            "# for each new namespace, or grant get in all namespaces "
            "(k8s/components/feature-secrets)."
        )
    found = [*roles(places, name, settings.driver or "all", accounts)]
    if not found:
        terminal.write(f"# {_nothing(settings.driver, places.drivers)}")
        return 0
    terminal.write(yaml.safe_dump_all(found, sort_keys=False, explicit_start=True).rstrip())
    return 0


def _nothing(driver: str, known: set[str]) -> str:
    if not driver:
        return "no storage class names a Secret"
    if known & _names(driver):
        return f"no storage class of driver {driver} names a Secret"
    return f'no storage class belongs to driver "{driver}".{nearest(driver, known)}'


def _names(driver: str) -> set[str | None]:
    """Return the names by which classes refer to the driver."""
    return {driver, plugins.in_tree_name(driver)}


def find(tools: Tools, driver: str) -> Places:
    """Return the Secrets of one driver, or of all drivers if `driver` is ""."""
    drivers = _names(driver) if driver else None
    places = Places()
    for resource, field, users, reference in _CLASSES:
        for one in _all(tools, resource):
            places.drivers.add(str(one.get(field)))
            if drivers is not None and one.get(field) not in drivers:
                continue
            name = one["metadata"]["name"]
            in_use = (
                user["metadata"]["namespace"]
                for user in _all(tools, users)
                if text(user, "spec", reference) == name
            )
            what = f"{resource.kind} {name}"
            places.add_class(what, one.get("parameters") or {}, dict.fromkeys(in_use))
    for resource, path in _OBJECTS:
        for one in _all(tools, resource):
            if drivers is None or text(one, *path) in drivers:
                places.add_object(one)
    return places


def roles(
    places: Places, name: str, label: str, accounts: list[tuple[str, str]]
) -> Iterator[dict[str, Any]]:
    """Yield a Role and its RoleBinding for each namespace, in sorted order."""
    subjects = [
        {"kind": "ServiceAccount", "name": account, "namespace": home} for home, account in accounts
    ]
    for namespace in sorted(places.whole | places.names.keys()):
        meta = {
            "name": name,
            "namespace": namespace,
            "labels": {"app.kubernetes.io/part-of": "csi-fleet", LABEL: label},
        }
        rule: dict[str, Any] = {"apiGroups": [""], "resources": ["secrets"]}
        if names := places.names.get(namespace):
            rule["resourceNames"] = sorted(names)
        head = {"apiVersion": f"{_RBAC}/v1"}
        yield {**head, "kind": "Role", "metadata": meta, "rules": [{**rule, "verbs": ["get"]}]}
        reference = {"apiGroup": _RBAC, "kind": "Role", "name": name}
        yield {
            **head,
            "kind": "RoleBinding",
            "metadata": copy.deepcopy(meta),
            "roleRef": reference,
            "subjects": [dict(one) for one in subjects],
        }


def _all(tools: Tools, resource: Resource) -> Iterator[JsonObject]:
    """Yield every object of a kind; none if the cluster does not serve the kind."""
    try:
        yield from tools.kube.list(resource)
    except NotFoundError:
        return


def _account(words: str) -> tuple[str, str]:
    home, slash, name = words.partition("/")
    if not (home and slash and name) or "/" in name:
        raise ConfigError(f"--account={words} does not name a service account. Use NAMESPACE/NAME")
    return home, name

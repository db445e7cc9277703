"""Finds who would undo a change to a workload, from the workload's metadata.

This module is pure. Some owners restore their own version at once; others do so only when a user
applies it again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

    from workers.kube.objects import JsonObject


@dataclass(frozen=True, slots=True)
class Undoer:
    """An owner that would undo a change.

    Attributes:
        who: the owner's name for messages.
        is_at_once: whether the owner undoes changes without a user's action.
        remedy: how to make the same change in the owner's own copy of the object.
    """

    who: str
    is_at_once: bool
    remedy: str


_RENDERED: Final = "add the printed patch to its kustomization"
_POSTED: Final = "pass the printed kustomization to `helm upgrade` with --post-renderer"

# Each entry: a label or annotation, the value that it must have ("" for any), its owner, whether
# the owner undoes a change without a user's action, and the remedy.
_SIGNS: Final = (
    ("argocd.argoproj.io/instance", "", "Argo CD application", True, _RENDERED),
    ("argocd.argoproj.io/tracking-id", "", "Argo CD application", True, _RENDERED),
    ("kustomize.toolkit.fluxcd.io/name", "", "Flux kustomization", True, _RENDERED),
    (
        *("helm.toolkit.fluxcd.io/name", "", "Flux Helm release", True),
        "add the printed patch to its postRenderers",
    ),
    (
        *("addonmanager.kubernetes.io/mode", "Reconcile", "addon manager, mode", True),
        "change the add-on itself",
    ),
    (
        *("kubernetes.azure.com/managedby", "", "managed add-on of", True),
        "disable the add-on and install the driver's chart",
    ),
    (
        *("olm.owner", "", "Operator Lifecycle Manager, owner", True),
        "change the images with the operator's own settings",
    ),
    ("meta.helm.sh/release-name", "", "Helm release", False, _POSTED),
    (
        *("kubectl.kubernetes.io/last-applied-configuration", "", "kubectl apply", False),
        "apply the printed kustomization instead of the manifest",
    ),
)
# Field managers that undo changes; they are recognized even if they are configured to set no label.
_MANAGERS: Final = {
    "argocd-controller": ("Argo CD", _RENDERED),
    "kustomize-controller": ("Flux", _RENDERED),
    "helm-controller": ("Flux", "add the printed patch to its postRenderers"),
    "eks": ("managed add-on of EKS", "disable the add-on and install the driver's chart"),
}


def undoers(workload: JsonObject) -> list[Undoer]:
    """Return every owner that would undo a change, without duplicates."""
    return list(dict.fromkeys(_found(workload)))


def _found(workload: JsonObject) -> Iterator[Undoer]:
    metadata = workload["metadata"]
    for owner in metadata.get("ownerReferences") or ():
        if owner.get("controller"):
            yield Undoer(
                f"the operator of {owner['kind']} {owner['name']}",
                is_at_once=True,
                remedy="change the sidecars' images with the operator's own settings "
                "(docs/migration.md, Recipes)",
            )
    notes = {**(metadata.get("labels") or {}), **(metadata.get("annotations") or {})}
    names: set[str] = set()
    for key, wanted, who, is_at_once, remedy in _SIGNS:
        value = notes.get(key)
        if value is None or wanted not in {"", value}:
            continue
        names.add(who.partition(" ")[0])
        is_short = "last-applied" not in key
        yield Undoer(f"{who} {value}" if is_short else who, is_at_once, remedy)
    for one in metadata.get("managedFields") or ():
        manager, remedy = _MANAGERS.get(str(one.get("manager")), ("", ""))
        if manager and manager.partition(" ")[0] not in names:
            yield Undoer(manager, is_at_once=True, remedy=remedy)

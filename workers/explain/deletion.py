"""Explains which finalizers delay an object's deletion, and what each of them is for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from workers import constants as k
from workers.explain.facts import Cause
from workers.explain.moves import CLUSTER, ITSELF
from workers.translate.fields import is_deleting, text_list

if TYPE_CHECKING:
    from workers.translate.fields import Json

_MEANINGS: Final = {
    "kubernetes.io/pvc-protection": "while a pod uses it",
    "kubernetes.io/pv-protection": "while a claim is bound to it",
    k.FINALIZER_CLONE_SOURCE: "the provisioner's, while a volume is cloned from it",
    k.FINALIZER_CLAIM_AS_SOURCE: "the snapshot controller's, while a snapshot of it is taken",
}
_ATTACHER: Final = "external-attacher/"
_OF_KUBERNETES: Final = frozenset({"kubernetes.io/pvc-protection", "kubernetes.io/pv-protection"})
# The commands that show what such a finalizer is waiting for.
_USERS: Final = (
    "kubectl get pods,volumesnapshots -n {namespace}",
    "kubectl get volumeattachments",
    "kubectl describe {object}",
)


def held(item: Json) -> Cause | None:
    """Return a cause if only other controllers' finalizers delay the deletion, else None."""
    names = text_list(item, "metadata", "finalizers")
    if not is_deleting(item) or not names:
        return None
    move, templates = "", None
    if all(_meaning(one) for one in names):
        move = CLUSTER if _OF_KUBERNETES.issuperset(names) else ITSELF
        templates = _USERS
    told = [f"{one} ({meaning})" if (meaning := _meaning(one)) else one for one in names]
    return Cause(
        "foreign-finalizer",
        f"The object was deleted, but finalizers still keep it: {', '.join(told)}.",
        "Wait until the controllers that set these finalizers remove them."
        if move
        else "Wait until the controllers that set these finalizers remove them. If such a "
        "controller is no longer installed, remove its finalizer by hand.",
        move=move,
        templates=templates,
    )


def _meaning(finalizer: str) -> str:
    if finalizer.startswith(_ATTACHER):
        return "the attacher's, while it is attached"
    return _MEANINGS.get(finalizer, "")

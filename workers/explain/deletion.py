"""What keeps an object whose deletion was asked for? Its finalizers, and what each stands for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from workers import constants as k
from workers.explain.facts import Cause
from workers.translate.fields import is_deleting, text_list

if TYPE_CHECKING:
    from workers.translate.fields import Json

_MEANINGS: Final = {
    "kubernetes.io/pvc-protection": "a pod uses it",
    "kubernetes.io/pv-protection": "a claim is bound to it",
    k.FINALIZER_CLONE_SOURCE: "a volume is being cloned from it",
    k.FINALIZER_CLAIM_AS_SOURCE: "a snapshot of it is being taken",
}


def held(item: Json, *ours: str) -> Cause | None:
    """An object in deletion that finalizers other than `ours` keep; None for any other."""
    names = [one for one in text_list(item, "metadata", "finalizers") if one not in ours]
    if not is_deleting(item) or not names:
        return None
    told = [f"{one} ({_MEANINGS[one]})" if one in _MEANINGS else one for one in names]
    return Cause(
        "foreign-finalizer",
        f"It was deleted, but finalizers keep it: {', '.join(told)}.",
        "It goes when their owners take them off; see the controllers that they belong to.",
    )

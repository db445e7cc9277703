"""Selects the objects that may be waiting, by their fields; `explain` then finds the reason.

Each noun of `explain` has a function of its own. The function may select too many objects, but
never too few: `explain` finds out that some of them are not waiting, and `pending` leaves these
out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from workers.translate.fields import is_deleting

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Json = Mapping[str, Any]


def _claim(claim: Json) -> bool:
    spec, status = claim.get("spec") or {}, claim.get("status") or {}
    if status.get("phase") != "Bound":
        return True
    wanted = ((spec.get("resources") or {}).get("requests") or {}).get("storage")
    is_resized = wanted != (status.get("capacity") or {}).get("storage")
    wanted_class = spec.get("volumeAttributesClassName") or ""
    is_changed = wanted_class != (status.get("currentVolumeAttributesClassName") or "")
    return is_resized or is_changed or bool(status.get("conditions"))


def _volume(volume: Json) -> bool:
    phase = (volume.get("status") or {}).get("phase")
    policy = (volume.get("spec") or {}).get("persistentVolumeReclaimPolicy")
    return phase == "Failed" or (phase == "Released" and policy == "Delete")


def _attachment(attachment: Json) -> bool:
    return not (attachment.get("status") or {}).get("attached")


def _snapshot(snapshot: Json) -> bool:
    return not (snapshot.get("status") or {}).get("readyToUse")


_WAITS: Final[dict[str, Callable[[Json], bool]]] = {
    "pvc": _claim,
    "pv": _volume,
    "va": _attachment,
    **dict.fromkeys(("snapshot", "content", "group-snapshot", "group-content"), _snapshot),
}
# Objects with these nouns are explained under a different noun, so they are never selected.
_TWINS: Final = frozenset({"binding", "group-binding"})


def waits(word: str, item: Json) -> bool:
    """Return True if an object of that noun may be waiting for something."""
    if word in _TWINS:
        return False
    look = _WAITS.get(word)
    return is_deleting(item) or look is None or look(item)

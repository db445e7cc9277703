"""Adds and removes a finalizer, on a copy of the object for a PUT or by a strategic merge patch.

Inputs are never changed (C-079). A patch has no resourceVersion. The API server merges the list by
value, so concurrent changes of other finalizers are kept (L-072). A patch has the UID, so the API
server refuses to patch a newer object with the same name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from workers.kube.objects import JsonObject


def added(finalizers: Sequence[str] | None, name: str) -> tuple[list[str], bool]:
    """Return the list with `name` appended if it was missing, and whether the list changed."""
    current = list(finalizers or ())
    return (current, False) if name in current else ([*current, name], True)


def removed(finalizers: Sequence[str] | None, name: str) -> tuple[list[str], bool]:
    """Return the list without `name`, in the same order, and whether the list changed."""
    current = list(finalizers or ())
    left = [finalizer for finalizer in current if finalizer != name]
    return left, len(left) != len(current)


def with_finalizer(item: Mapping[str, Any], name: str) -> JsonObject | None:
    """Return a copy of the object with the finalizer, or None if the object has it already."""
    return _replaced(item, *added(_finalizers_of(item), name))


def without_finalizer(item: Mapping[str, Any], name: str) -> JsonObject | None:
    """Return a copy of the object without the finalizer, or None if the object does not have it."""
    return _replaced(item, *removed(_finalizers_of(item), name))


def add_patch(name: str, uid: str) -> JsonObject:
    """Return the strategic merge patch that adds the finalizer; idempotent."""
    return {"metadata": {"uid": uid, "finalizers": [name]}}


def remove_patch(name: str, uid: str) -> JsonObject:
    """Return the strategic merge patch that removes the finalizer; idempotent."""
    return {"metadata": {"uid": uid, "$deleteFromPrimitiveList/finalizers": [name]}}


def has_finalizer(item: Mapping[str, Any], name: str) -> bool:
    """Return True if the object has the finalizer."""
    return name in _finalizers_of(item)


def _finalizers_of(item: Mapping[str, Any]) -> Sequence[str]:
    return (item.get("metadata") or {}).get("finalizers") or ()


def _replaced(item: Mapping[str, Any], finalizers: list[str], changed: bool) -> JsonObject | None:
    if not changed:
        return None
    return {**item, "metadata": {**(item.get("metadata") or {}), "finalizers": finalizers}}

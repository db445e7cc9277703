"""Computes the merge patch (RFC 7386) that turns one JSON object into another.

Lists are replaced as a whole. A member to be removed is None in the patch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping


def difference(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """Return the patch from `old` to `new`; it is empty if they are equal.

    Worked example: {"a": 1, "b": {"c": 2}} to {"b": {"c": 3}} gives {"a": None, "b": {"c": 3}}.
    """
    patch: dict[str, Any] = {name: None for name in old if name not in new}
    for name, value in new.items():
        known = old.get(name)
        if isinstance(known, dict) and isinstance(value, dict):
            inner = difference(known, value)
            if inner:
                patch[name] = inner
        elif name not in old or known != value:
            patch[name] = value
    return patch

"""Adds the fields that every served driver's record has."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping


def complete(place: str, record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the record; add `name` and `queue_name` (the driver part of its keys) if missing.

    Args:
        place: the record's name in the registry.
        record: the driver's record; returned unchanged if it has both names. For work without a
            driver, both names are empty.
    """
    return {"name": place.partition("@")[0], "queue_name": place, **record}

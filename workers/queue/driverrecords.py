"""Adds the fields that every record of a served driver has."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping


def complete(place: str, record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the record with the driver's `name` and `queue_name`, the driver part of its keys.

    Args:
        place: the record's name in the registry.
        record: kept as it is where it has both names; work without a driver has two empty names.
    """
    return {"name": place.partition("@")[0], "queue_name": place, **record}

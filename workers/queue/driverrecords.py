"""What does every record of a served driver say, whoever wrote it?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping


def complete(place: str, record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the record with the driver's `name` and `queue_name`, the driver part of its keys.

    Args:
        place: where the record stands in the registry.
        record: what belongs to no driver has both names, and both empty.
    """
    return {"name": place.partition("@")[0], "queue_name": place, **record}

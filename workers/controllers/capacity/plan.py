"""Assigns existing objects to items; finds missing and obsolete objects (CAP-050 to CAP-055).

The plan depends only on the wanted items and the listed objects, so every worker makes the same
plan, even after a restart or a missed event. Once the plan has been carried out, nothing is missing
or obsolete. Whether an object is updated is decided after GetCapacity, in
`workers.controllers.capacity.objects`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from workers.controllers.capacity.objects import item_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from workers.controllers.capacity.items import Item, Wanted
    from workers.controllers.capacity.objects import Publisher
    from workers.kube.objects import JsonObject


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do with one driver's objects.

    Attributes:
        missing: the wanted items without an object; the objects are created after GetCapacity,
            in the order of the items.
        assigned: maps an item to its object, which is kept or adopted; the object is updated if
            GetCapacity returns different sizes.
        obsolete: the publisher's unwanted and duplicate objects, sorted by name. The caller
            deletes each with its uid as the precondition; NotFound counts as success (CAP-042).
    """

    missing: tuple[Item, ...]
    assigned: Mapping[Item, JsonObject]
    obsolete: tuple[JsonObject, ...]


def make_plan(wanted: Wanted, objects: Iterable[JsonObject], publisher: Publisher) -> Plan:
    """Return the plan for the objects that were listed (CAP-050, CAP-052, CAP-053).

    Objects of other managers are ignored. If an item has several objects, the oldest is kept
    (C-099). Among equally old ones, it is the first by name, so that all workers keep the same
    object. An object that is being deleted remains assigned until it is gone, and is not deleted
    again.
    """
    assigned: dict[Item, JsonObject] = {}
    obsolete: list[JsonObject] = []
    for existing in sorted(filter(publisher.manages, objects), key=_age):
        item = item_of(existing)
        if item is not None and item in wanted and item not in assigned:
            assigned[item] = existing
        elif not existing["metadata"].get("deletionTimestamp"):
            obsolete.append(existing)
    missing = tuple(item for item in wanted if item not in assigned)
    obsolete.sort(key=lambda existing: str(existing["metadata"]["name"]))
    return Plan(missing, assigned, tuple(obsolete))


def _age(existing: JsonObject) -> tuple[str, str]:
    # The timestamp is RFC 3339 in UTC with whole seconds, so their order as strings is their order
    # in time.
    metadata = existing["metadata"]
    return metadata.get("creationTimestamp") or "", metadata["name"]

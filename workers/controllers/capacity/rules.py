"""Return a key when a capacity object is deleted or loses its labels (CAP-030, C-098).

There is one watch for each namespace and managed-by label, which covers only the objects with that
label. The worker ignores a key `gone:<uid>` for an object that it deleted itself. The next poll
finds objects that were changed in place.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from workers.constants import LABEL_DRIVER_NAME, LABEL_MANAGED_BY
from workers.kube import paths
from workers.kube.objects import AnyObject
from workers.queue.keys import Key, capacity_key
from workers.spec import NoRules, Scope, Watch

if TYPE_CHECKING:
    from collections.abc import Iterable

    from workers.kube.paths import Resource
    from workers.spec import Records

_GONE: Final = "gone:"


class CapacityRules(NoRules):
    """Return keys for deleted CSIStorageCapacity objects; its only state is the drivers.

    The poll handles existing objects and finds the missing ones, and the resource has its own
    scopes, so nothing else is needed.
    """

    def __init__(self) -> None:
        self._drivers: Records = ()

    def set_drivers(self, drivers: Records) -> Iterable[Key]:
        """Replace the drivers; their workers list the objects themselves at startup."""
        self._drivers = drivers
        return ()

    def gone(self, resource: Resource, item: AnyObject) -> Iterable[Key]:  # noqa: ARG002
        """Return the key for an object that was deleted or has lost csi-fleet's labels."""
        labels = item.metadata.labels or {}
        place = (item.metadata.namespace, labels.get(LABEL_MANAGED_BY, ""))
        return [
            capacity_key(record["queue_name"], f"{_GONE}{item.metadata.uid}")
            for record in self._drivers
            if record["name"] == labels.get(LABEL_DRIVER_NAME) and _place(record) == place
        ]


def _place(record: Any) -> tuple[str, str] | None:
    """Return the namespace and managed-by label in a driver's record; None if they are missing."""
    capacity = record.get("capacity")
    return (capacity["namespace"], capacity["managed_by"]) if capacity else None


def _scopes(records: Records) -> Iterable[Scope]:
    places = {place for record in records if (place := _place(record))}
    return [Scope(namespace, f"{LABEL_MANAGED_BY}={label}") for namespace, label in sorted(places)]


WATCHES: Final = (Watch(paths.CAPACITIES, AnyObject, metadata_only=True, scopes=_scopes),)

"""Capacity objects that somebody else deletes or takes the labels off (CAP-030, C-098).

One watch per place where registered drivers publish, on objects with our label alone. The worker
decides: a key `gone:<uid>` of an object it deleted itself means nothing to it. What was changed in
place is found by the next poll.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from workers.constants import LABEL_DRIVER_NAME, LABEL_MANAGED_BY
from workers.queue.keys import capacity_key

if TYPE_CHECKING:
    from collections.abc import Callable

    from watcher.drivers import Drivers
    from watcher.outbox import Outbox
    from workers.kube.objects import AnyObject

_GONE: Final = "gone:"


def label_selector(managed_by: str) -> str:
    """Select the objects of one manager."""
    return f"{LABEL_MANAGED_BY}={managed_by}"


class CapacitySink:
    """CSIStorageCapacity objects of one place -> keys of the deleted ones.

    Args:
        place: namespace and managed-by label.
        outbox: where keys go.
        drivers: returns the drivers known now.
    """

    def __init__(
        self, place: tuple[str, str], outbox: Outbox, drivers: Callable[[], Drivers]
    ) -> None:
        self._place = place
        self._outbox = outbox
        self._drivers = drivers
        self._uids: dict[str, str] = {}
        self._listed: dict[str, str] = {}

    def begin_list(self) -> None:
        """Start to note which objects still exist."""
        self._listed = {}

    def listed(self, item: AnyObject) -> None:
        """Note one object."""
        self._listed[item.metadata.uid] = self._driver_of(item)

    def end_list(self, resource_version: str) -> None:  # noqa: ARG002 - the sink's form
        """Treat the others as deleted."""
        gone = {uid: name for uid, name in self._uids.items() if uid not in self._listed}
        self._uids, self._listed = self._listed, {}
        for uid, name in gone.items():
            self._tell(uid, name)

    def changed(self, item: AnyObject) -> None:
        """Note one object."""
        self._uids[item.metadata.uid] = self._driver_of(item)

    def deleted(self, item: AnyObject) -> None:
        """Tell the driver's worker; also when only the labels went, which looks the same."""
        name = self._uids.pop(item.metadata.uid, "") or self._driver_of(item)
        self._tell(item.metadata.uid, name)

    def _driver_of(self, item: AnyObject) -> str:
        return (item.metadata.labels or {}).get(LABEL_DRIVER_NAME, "")

    def _tell(self, uid: str, name: str) -> None:
        views = self._drivers().by_name.get(name, ())
        self._outbox.add(
            capacity_key(view.queue_name, f"{_GONE}{uid}")
            for view in views
            if view.capacity == self._place
        )

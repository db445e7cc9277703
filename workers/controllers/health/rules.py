"""Adds no keys: `HealthController.periodic` schedules the polls, and a poll reads what it needs.

The PVs are followed because a watcher is ready only after it has listed something, and notices a
restored API server by what it follows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from workers.queue.keys import Key

if TYPE_CHECKING:
    from collections.abc import Iterable

    from workers.kube.paths import Resource
    from workers.spec import Records, Told

KIND: Final = "health"


def poll_key(queue_name: str) -> Key:
    """Return the key of a driver's polls."""
    return Key(KIND, queue_name, "volumes")


class HealthRules:
    """Ignores every event, because only the driver knows the health."""

    def set_drivers(self, drivers: Records) -> Iterable[Told]:
        """Ignore the drivers; their workers poll."""
        del drivers
        return ()

    def seen(self, resource: Resource, item: Any, *, is_listed: bool) -> Iterable[Told]:
        """Do nothing; the next poll reads the PVs itself."""
        del resource, item, is_listed
        return ()

    def gone(self, resource: Resource, item: Any) -> Iterable[Told]:
        """Do nothing; the next poll reads the PVs itself."""
        del resource, item
        return ()

    def begin_list(self, resource: Resource) -> None:
        """Do nothing; the next poll reads the PVs itself."""

    def end_list(self, resource: Resource) -> Iterable[Told]:
        """Do nothing; the next poll reads the PVs itself."""
        del resource
        return ()

    def all_keys(self) -> Iterable[Key]:
        """Return nothing, because `periodic` adds the key."""
        return ()

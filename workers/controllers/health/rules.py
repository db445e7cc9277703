"""Adds no keys: `HealthController.periodic` schedules the polls, and a poll reads what it needs."""

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
    """Ignores every event, because health is known only to the driver."""

    def set_drivers(self, drivers: Records) -> Iterable[Told]:
        """Ignore the drivers; their workers poll."""
        del drivers
        return ()

    def seen(self, resource: Resource, item: Any, *, is_listed: bool) -> Iterable[Told]:
        """Never called, because nothing is watched."""
        del resource, item, is_listed
        return ()

    def gone(self, resource: Resource, item: Any) -> Iterable[Told]:
        """Never called, because nothing is watched."""
        del resource, item
        return ()

    def begin_list(self, resource: Resource) -> None:
        """Never called, because nothing is watched."""

    def end_list(self, resource: Resource) -> Iterable[Told]:
        """Never called, because nothing is watched."""
        del resource
        return ()

    def all_keys(self) -> Iterable[Key]:
        """Return nothing; the next poll comes by itself."""
        return ()

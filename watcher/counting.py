"""Counts the objects that a reflector passes to its sink."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from prometheus_client import Counter

    from workers.kube.watch import Sink

ItemT = TypeVar("ItemT")


class CountingSink(Generic[ItemT]):
    """Passes every call on to a sink and counts objects by resource and type.

    Args:
        sink: the receiver.
        counter: `csi_fleet_watch_events_total`.
        resource: label, e.g. `claims`.
    """

    def __init__(self, sink: Sink[ItemT], counter: Counter, resource: str) -> None:
        self._sink = sink
        self._listed = counter.labels(resource, "listed")
        self._changed = counter.labels(resource, "changed")
        self._deleted = counter.labels(resource, "deleted")

    def begin_list(self) -> None:
        """A list starts."""
        self._sink.begin_list()

    def listed(self, item: ItemT) -> None:
        """One object of a list."""
        self._listed.inc()
        self._sink.listed(item)

    def end_list(self, resource_version: str) -> None:
        """The list is complete."""
        self._sink.end_list(resource_version)

    def changed(self, item: ItemT) -> None:
        """An object is new or changed."""
        self._changed.inc()
        self._sink.changed(item)

    def deleted(self, item: ItemT) -> None:
        """An object is gone."""
        self._deleted.inc()
        self._sink.deleted(item)

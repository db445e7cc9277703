"""Counts the objects that a reflector passes to its sink."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from prometheus_client import Counter

    from workers.kube.watch import Sink

ItemT = TypeVar("ItemT")


class CountingSink(Generic[ItemT]):
    """Passes every call on to another sink, and counts the objects by resource and type of call.

    Args:
        sink: the sink that receives the calls.
        counter: the metric `csi_fleet_watch_events_total`.
        resource: the resource label, for example `claims`.
    """

    def __init__(self, sink: Sink[ItemT], counter: Counter, resource: str) -> None:
        self._sink = sink
        self._listed = counter.labels(resource, "listed")
        self._changed = counter.labels(resource, "changed")
        self._deleted = counter.labels(resource, "deleted")

    def begin_list(self) -> None:
        """Pass on the start of a list."""
        self._sink.begin_list()

    def listed(self, item: ItemT) -> None:
        """Count one object of a list and pass it on."""
        self._listed.inc()
        self._sink.listed(item)

    def end_list(self, resource_version: str) -> None:
        """Pass on the end of a list."""
        self._sink.end_list(resource_version)

    def changed(self, item: ItemT) -> None:
        """Count a new or changed object and pass it on."""
        self._changed.inc()
        self._sink.changed(item)

    def deleted(self, item: ItemT) -> None:
        """Count a deleted object and pass it on."""
        self._deleted.inc()
        self._sink.deleted(item)

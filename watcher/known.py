"""Keeps the drivers that the watcher has seen, with the records of their workers.

The registry drops a driver whose workers are gone. The driver's keys are still waiting in the
queue, so the watcher keeps the driver until the watcher restarts. In node deployment, a node is
dropped together with its worker, because the keys of a removed node would wait forever.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeAlias

from workers.queue.driverrecords import complete

if TYPE_CHECKING:
    from collections.abc import Mapping

    from workers.spec import Spec

Record: TypeAlias = "Mapping[str, Any]"

# If one driver's records alternate for longer than this, it is reported. Workers rewrite their
# records every few seconds, so a rollout that takes longer is reported too.
_DIFFER_SECONDS: Final = 60.0
_CALM_SECONDS: Final = 20.0
# The controllers if a record names none.
_DEFAULT = ("provisioner",)


def merged(known: Mapping[str, Record], alive: Mapping[str, Record]) -> dict[str, Record]:
    """Merge known and registered records by their place in the registry.

    Registered records take precedence. Drivers that are no longer registered are kept; nodes that
    are no longer registered are dropped.
    """
    kept = {name: record for name, record in known.items() if not record.get("node")}
    now = {name: complete(name, record) for name, record in alive.items()}
    return dict(sorted({**kept, **now}.items()))


class Differing:
    """Detects processes that keep overwriting each other's record of one driver.

    Over a longer time, the only possible cause is two drivers with the same name in front of
    different storage systems. This is dangerous: if the wrong driver returns OK for a deletion, the
    volume leaks.
    """

    def __init__(self) -> None:
        self._last: dict[str, tuple[Record | None, Record]] = {}
        self._since: dict[str, tuple[float, float]] = {}
        self._told: set[str] = set()

    def see(self, records: Mapping[str, Record], now: float) -> list[str]:
        """Return the places whose record has been alternating for a minute, each only once.

        Args:
            records: the registered records, by their place in the registry.
            now: the current time in monotonic seconds.
        """
        for place, record in records.items():
            before, last = self._last.get(place, (None, record))
            if record == last:
                self._last[place] = (before, last)
                continue
            self._last[place] = (last, record)
            if record == before:
                since, latest = self._since.get(place, (now, now))
                self._since[place] = (since if now - latest <= _CALM_SECONDS else now, now)
        found = []
        for place, (since, latest) in list(self._since.items()):
            if now - latest > _CALM_SECONDS:
                del self._since[place]
                self._told.discard(place)
            elif latest - since >= _DIFFER_SECONDS and place not in self._told:
                self._told.add(place)
                found.append(place)
        return found


def concerns(record: Record, spec: Spec) -> bool:
    """Return True if the workers that wrote this record run the controller."""
    controllers = record.get("controllers", _DEFAULT)
    return spec.name in controllers or spec.part_of in controllers

"""Which drivers does the watcher know, and whose are they?

The registry forgets a driver whose workers are away; its keys wait in the queue, so here it stays
known until the watcher restarts. A node of a driver that serves on each node goes with its worker:
keys of a removed node would wait for ever.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeAlias

from workers.queue.driverrecords import complete

if TYPE_CHECKING:
    from collections.abc import Mapping

    from workers.spec import Spec

Record: TypeAlias = "Mapping[str, Any]"

# Workers write their records every few seconds. A roll-out that takes longer looks the same.
_DIFFER_SECONDS: Final = 60.0
_CALM_SECONDS: Final = 20.0
# What a record that names no controllers was written for.
_DEFAULT = ("provisioner",)


def merged(known: Mapping[str, Record], alive: Mapping[str, Record]) -> dict[str, Record]:
    """Return the records by place: those alive win, absent drivers stay, absent nodes go."""
    kept = {name: record for name, record in known.items() if not record.get("node")}
    now = {name: complete(name, record) for name, record in alive.items()}
    return dict(sorted({**kept, **now}.items()))


class Differing:
    """Notices processes that overwrite each other's record of one driver, again and again.

    Two drivers with one name in front of two storages look like this, and nothing else does for
    long: a deletion that the wrong one answers with OK leaves a volume.
    """

    def __init__(self) -> None:
        self._last: dict[str, tuple[Record | None, Record]] = {}
        self._since: dict[str, tuple[float, float]] = {}
        self._told: set[str] = set()

    def see(self, records: Mapping[str, Record], now: float) -> list[str]:
        """Return the places whose record has gone back and forth for a minute, each one once.

        Args:
            records: those alive now, by place.
            now: monotonic seconds.
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
    """Tell whether a driver's workers run this controller."""
    controllers = record.get("controllers", _DEFAULT)
    return spec.name in controllers or spec.part_of in controllers

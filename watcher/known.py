"""Which drivers does the watcher know, and whose are they?

The registry forgets a driver whose workers are away; its keys wait in the queue, so here it stays
known until the watcher restarts. A node of a driver that serves on each node goes with its worker:
keys of a removed node would wait for ever.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from workers.queue.driverrecords import complete

if TYPE_CHECKING:
    from collections.abc import Mapping

    from workers.spec import Spec

Record: TypeAlias = "Mapping[str, Any]"

# What a record that names no controllers was written for.
_DEFAULT = ("provisioner",)


def merged(known: Mapping[str, Record], alive: Mapping[str, Record]) -> dict[str, Record]:
    """Return the records by place: those alive win, absent drivers stay, absent nodes go."""
    kept = {name: record for name, record in known.items() if not record.get("node")}
    now = {name: complete(name, record) for name, record in alive.items()}
    return dict(sorted({**kept, **now}.items()))


def concerns(record: Record, spec: Spec) -> bool:
    """Tell whether a driver's workers run this controller."""
    controllers = record.get("controllers", _DEFAULT)
    return spec.name in controllers or spec.part_of in controllers

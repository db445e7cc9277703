"""Lists the kinds of keys, with the properties that the queue needs.

Except for the properties in this table, the queue treats all kinds alike. The table is prepended to
the scripts, so no Lua file contains the name of a kind. Of the modules below the controllers, only
this one reads the catalogue of controllers; the catalogue is pure data.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from workers.controllers import catalogue

if TYPE_CHECKING:
    from collections.abc import Iterable

    from workers.spec import Kind, Spec


@dataclass(frozen=True, slots=True)
class QueueKind:
    """One kind of key.

    Args:
        name: the first part of the kind's keys.
        calls_driver: True if its keys count towards a driver's limit on all calls.
        has_trail: True if its keys have a history for `explain`.
        apart: a suffix to the driver's name in the name of the kind's Celery list; "" for none.
    """

    name: str
    calls_driver: bool = False
    has_trail: bool = False
    apart: str = ""


APART: Final = "#"
"""Separates a driver's queue name from a controller's name; no driver name contains it."""


def apart(spec: Spec) -> str:
    """Return the suffix of a controller's list and record; "" for the catalogue's first controller.

    Two workers for one driver may run different controllers, each in its own container like the
    sidecars. Neither worker may receive messages about the other worker's keys or overwrite the
    other worker's record.
    """
    whole = spec.part_of or spec.name
    return "" if whole == catalogue.SPECS[0].name else f"{APART}{whole}"


def place_of(driver: str, kind: str) -> str:
    """Return the place (a driver with one of its controllers) whose workers handle this kind.

    A kind without a driver has one place for all workers.
    """
    return f"{driver}{_APART.get(kind, '')}" if driver else f"system-{kind}"


def kinds_of(place: str, kinds: Iterable[Kind]) -> tuple[str, tuple[str, ...]]:
    """Return a place's driver ("" for none), and the ones of `kinds` that belong to the place."""
    driver = place.partition(APART)[0]
    found: list[str] = []
    for kind in kinds:
        if place_of(driver if kind.has_driver else "", kind.name) == place:
            if not kind.has_driver:
                return "", (kind.name,)
            found.append(kind.name)
    return driver, tuple(found)


def places(driver: str, specs: Iterable[Spec]) -> set[str]:
    """Return the places of a driver's keys for these controllers.

    If `driver` is "", these are the places for work that needs no driver.
    """
    return {
        place_of(driver, kind.name)
        for spec in specs
        for kind in spec.kinds
        if kind.has_driver is bool(driver)
    }


KINDS: Final = tuple(
    QueueKind(kind.name, bool(kind.operations), bool(kind.noun), apart(spec))
    for spec in catalogue.SPECS
    for kind in spec.kinds
)
_APART: Final = {kind.name: kind.apart for kind in KINDS}
DRIVER_KINDS: Final = catalogue.driver_kinds()
"""Kinds whose lanes are paused if an operator pauses the driver or the connection to it is lost."""


def lua_tables(kinds: Iterable[QueueKind]) -> str:
    """Return Lua tables: KINDS in order of turns, CALL_KINDS, the set TRAILED, APART by kind."""
    known = tuple(kinds)
    names = ", ".join(f"'{kind.name}'" for kind in known)
    calling = ", ".join(f"'{kind.name}'" for kind in known if kind.calls_driver)
    trailed = ", ".join(f"['{kind.name}'] = true" for kind in known if kind.has_trail)
    apart = ", ".join(f"['{kind.name}'] = '{kind.apart}'" for kind in known if kind.apart)
    return (
        f"local KINDS = {{ {names} }}\n"
        f"local CALL_KINDS = {{ {calling} }}\n"
        f"local TRAILED = {{ {trailed} }}\n"
        f"local APART = {{ {apart} }}\n"
    )

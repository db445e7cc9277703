"""Which kinds of keys are there, as far as the queue must know?

The queue treats all kinds alike but for what this table says; the scripts get it in front, so no
kind is spelled in Lua. It is the one place below the controllers that reads their catalogue, which
is nothing but data.
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
        name: first part of its keys.
        calls_driver: its keys count for a driver's limit over all calls.
        has_trail: what happens to its keys is noted for `explain`.
        apart: after the driver in the name of the list that announces their work, "" for none.
    """

    name: str
    calls_driver: bool = False
    has_trail: bool = False
    apart: str = ""


APART: Final = "#"
"""Between a driver's queue name and a controller; no name of a driver has it."""


def apart(spec: Spec) -> str:
    """What sets a controller's list and records apart from those of the catalogue's first.

    Two workers of one driver may run different controllers, in a container each as sidecars are:
    neither may be woken for the other's keys or write over its record.
    """
    whole = spec.part_of or spec.name
    return "" if whole == catalogue.SPECS[0].name else f"{APART}{whole}"


def place_of(driver: str, kind: str) -> str:
    """Who is woken for a key: its driver's workers with its controller; without one its kind's.

    A kind without a driver has one place for all workers.
    """
    return f"{driver}{_APART.get(kind, '')}" if driver else f"system-{kind}"


def kinds_of(place: str, kinds: Iterable[Kind]) -> tuple[str, tuple[str, ...]]:
    """The driver of a place ("" for none), and which of some kinds of key belong there."""
    driver = place.partition(APART)[0]
    found: list[str] = []
    for kind in kinds:
        if place_of(driver if kind.has_driver else "", kind.name) == place:
            if not kind.has_driver:
                return "", (kind.name,)
            found.append(kind.name)
    return driver, tuple(found)


def places(driver: str, specs: Iterable[Spec]) -> set[str]:
    """The places of all keys of a driver ("": of those without one) for these controllers."""
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
"""Kinds whose lanes stop with their driver: for lost connections and pauses."""


def lua_tables(kinds: Iterable[QueueKind]) -> str:
    """The table as Lua: KINDS, CALL_KINDS in their order of turns, a set TRAILED, APART by kind."""
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

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


@dataclass(frozen=True, slots=True)
class QueueKind:
    """One kind of key.

    Args:
        name: first part of its keys.
        calls_driver: its keys count for a driver's limit over all calls.
        has_trail: what happens to its keys is noted for `explain`.
    """

    name: str
    calls_driver: bool = False
    has_trail: bool = False


KINDS: Final = tuple(
    QueueKind(kind.name, calls_driver=bool(kind.operations), has_trail=bool(kind.noun))
    for kind in catalogue.kinds().values()
)
DRIVER_KINDS: Final = catalogue.driver_kinds()
"""Kinds whose lanes stop with their driver: for breakers and pauses."""


def lua_tables(kinds: Iterable[QueueKind]) -> str:
    """The table as Lua: CALL_KINDS in their order of turns, TRAILED as a set."""
    known = tuple(kinds)
    calling = ", ".join(f"'{kind.name}'" for kind in known if kind.calls_driver)
    trailed = ", ".join(f"['{kind.name}'] = true" for kind in known if kind.has_trail)
    return f"local CALL_KINDS = {{ {calling} }}\nlocal TRAILED = {{ {trailed} }}\n"

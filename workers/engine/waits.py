"""Indexes objects that still need work by the objects that they are waiting for, for all rules.

`put` declares which objects an object is waiting for; `waiting_for` finds the objects to queue when
one of those changes. `begin_list` notes the known objects, `listed` checks off an object that the
list contains, and `end_list` returns the objects that are gone. Objects that need no more work are
not kept.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Collection

WaitT = TypeVar("WaitT")


class Waits(Generic[WaitT]):
    """The objects that need work, by name or uid."""

    def __init__(self) -> None:
        self._items: dict[str, tuple[WaitT, Collection[tuple[str, str]]]] = {}
        self._names: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
        self._unlisted: set[str] = set()

    def put(self, name: str, item: WaitT, *needs: tuple[str, str]) -> None:
        """Add or replace an object; `needs` are pairs of a kind and a name, like ("node", "n1")."""
        self.pop(name)
        self._items[name] = (item, needs)
        for need in needs:
            self._names[need].add(name)

    def pop(self, name: str) -> WaitT | None:
        """Remove and return an object; None if it is not known."""
        item, needs = self._items.pop(name, (None, ()))
        for need in needs:
            names = self._names[need]
            names.discard(name)
            if not names:
                del self._names[need]
        return item

    def get(self, name: str) -> WaitT | None:
        """Return an object; None if it is not known."""
        return self._items.get(name, (None, ()))[0]

    def waiting_for(self, word: str, name: str) -> list[WaitT]:
        """Return the objects that are waiting for the named object, sorted by name."""
        return [self._items[one][0] for one in sorted(self._names.get((word, name), ()))]

    def values(self) -> list[WaitT]:
        """Return all objects that still need work."""
        return [item for item, _ in self._items.values()]

    def __len__(self) -> int:
        return len(self._items)

    def begin_list(self) -> None:
        """Begin a new list; every known object counts as missing until it is listed."""
        self._unlisted = set(self._items)

    def listed(self, name: str) -> None:
        """Note that the list contains this object."""
        self._unlisted.discard(name)

    def end_list(self) -> list[WaitT]:
        """Remove and return the objects that the list did not contain."""
        missing, self._unlisted = self._unlisted & self._items.keys(), set()
        return [item for name in sorted(missing) if (item := self.pop(name)) is not None]

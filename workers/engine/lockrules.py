"""Which locks do the keys have that a thread may go on with? The rules for one driver's keys.

Those of its kinds whose tickets come in one list: whoever serves the one serves the others.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Protocol

from workers.queue.kinds import place_of
from workers.queue.lockrules import lock_rule

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from workers.drivers.driver import Driver
    from workers.queue.keys import Key
    from workers.queue.locks import Lock


class NamesLocks(Protocol):
    """The part of a controller that is asked."""

    def locks(self, key: Key, driver: Driver | None) -> Sequence[Lock]:
        """See `workers.engine.controller.Controller`."""


class LockRules:
    """The rules of one process' drivers; thread-safe.

    Made once for each driver as it is: one whose settings were read anew is another object.
    """

    def __init__(self) -> None:
        self._known: dict[str, tuple[Driver | None, dict[str, str]]] = {}

    def beside(
        self,
        key: Key,
        driver: Driver | None,
        controllers: Mapping[str, NamesLocks],
        may_work: Callable[[str, str], bool] | None,
    ) -> str:
        """A line for each kind whose keys may be worked on here, see `workers.queue.lockrules`.

        Args:
            key: whose driver's kinds are wanted.
            driver: of the key, None without one.
            controllers: those of this process, by kind of key.
            may_work: see `Context.may_work`.
        """
        place = place_of(key.driver, key.kind)
        known, rules = self._known.get(place, (None, None))
        if rules is None or known is not driver:
            rules = {
                kind: lock_rule(kind, key.driver, partial(controller.locks, driver=driver))
                for kind, controller in controllers.items()
                if place_of(key.driver, kind) == place
            }
            self._known[place] = driver, rules
        return "\n".join(
            rule for kind, rule in rules.items() if may_work is None or may_work(kind, key.driver)
        )

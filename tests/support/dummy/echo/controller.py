"""Implements the echo controller for the engine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tests.support.dummy.echo.spec import SPEC
from workers.engine.controller import Due
from workers.engine.outcome import done
from workers.queue.keys import Key
from workers.queue.locks import Lock

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from workers.drivers.driver import Driver
    from workers.engine.context import Context
    from workers.engine.outcome import Outcome
    from workers.queue.leases import Lease


class EchoController:
    """Sends an event for each claim."""

    spec = SPEC

    def locks(self, key: Key, driver: Driver | None) -> tuple[Lock, ...]:
        """Return a lock on the claim."""
        del driver
        return (Lock(f"echo#{key.object}"),)

    def sync(self, context: Context, driver: Driver | None, key: Key, lease: Lease) -> Outcome:
        """Send one echo."""
        del context, lease
        return done(f"{key.object} {driver.name if driver is not None else 'nobody'}")

    def periodic(self, context: Context, driver: Driver | None) -> Iterable[Due]:
        """Return one periodic key per minute."""
        del context
        return (Due(Key("echoes", driver.queue_name, "a/b"), 60.0),) if driver is not None else ()

    def serves(self, driver: Driver) -> bool:
        """Return True for every driver."""
        del driver
        return True

    def limits(self, driver: Driver | None) -> Mapping[str, int]:
        """Allow two keys at once."""
        del driver
        return {"echoes": 2, "silences": 3}


CONTROLLER: Final = EchoController()

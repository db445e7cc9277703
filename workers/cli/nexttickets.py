"""When does a thread begin the next ticket of its driver without asking the broker?

What is due then needs neither the making of a message nor Celery's way to it; from there on it is
a task like any other: Flower, limits and the end of the worker see no difference.
"""

from __future__ import annotations

import json
from base64 import b64decode
from itertools import count
from typing import TYPE_CHECKING, Any, Final

from workers.app import ticket
from workers.controllers import catalogue
from workers.observability.logging import get_logger
from workers.queue.keys import Key

if TYPE_CHECKING:
    from workers.app import FleetApp
    from workers.cli.consumers import CeleryConsumers
    from workers.drivers.seats import Seats
    from workers.queue.leases import Lease

_log = get_logger(__name__)

FREE_EACH: Final = 8
"""Each so many ends leave their thread to whatever else waits: ticks, tickets of no driver."""
QUICK_SECONDS: Final = 1.0
"""After a longer pass the thread is shared anew: there latency matters, not the processor."""

_UNREADABLE: Final = (ValueError, TypeError, LookupError, AttributeError, RecursionError)


class NextTickets:
    """The next tickets of one worker process; thread-safe.

    Args:
        app: makes the messages.
        consumers: know whose tickets this process fetches, and hand them to its threads.
        seats: threads inside each driver.
    """

    def __init__(self, app: FleetApp, consumers: CeleryConsumers, seats: Seats) -> None:
        self._app = app
        self._consumers = consumers
        self._seats = seats
        self._kinds = catalogue.kinds()
        self._ends = count(1)

    def wanted(self, lease: Lease) -> bool:
        """Whether the thread that ends this lease may begin another ticket of the driver."""
        return (
            next(self._ends) % FREE_EACH > 0
            and lease.session.clock() - lease.asked_at < QUICK_SECONDS
            and self._seats.has_room(lease.key.driver)
            and self._consumers.fetches(lease.key)
        )

    def read(self, message: bytes) -> Key:
        """The key of a message from Celery's list.

        Raises:
            ValueError: it is no ticket.
        """
        try:
            found: Any = json.loads(message)
            return Key.parse(json.loads(b64decode(found["body"]))[0][0])
        except _UNREADABLE as error:
            raise ValueError(f"no ticket of ours: {type(error).__name__}") from error

    def begin(self, key: Key) -> bool:
        """Work on it in a thread of this process; False when that is over."""
        kind = self._kinds.get(key.kind)
        if kind is None:
            return False
        try:
            self._consumers.begin(kind.task, ticket(self._app, kind, key))
        except Exception as error:  # noqa: BLE001 - Celery's own way, or the pool ended; it is sent
            _log.v(2, "next ticket not begun, it is sent", key=key.text, err=error)
            return False
        _log.v(4, "next ticket begun", key=key.text)
        return True

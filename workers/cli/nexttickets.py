"""When does a thread go on with another key of its driver, without asking the broker?

What is due then needs neither the making of a message nor Celery's way to it. Who watches tasks
sees each such key as a task of its own; limits and the end of the worker see no difference.
"""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Final

from workers.errors import QueueUnavailable
from workers.observability.logging import get_logger

if TYPE_CHECKING:
    from collections.abc import Callable

    from workers.cli.consumers import CeleryConsumers
    from workers.drivers.seats import Seats
    from workers.queue.keys import Key
    from workers.queue.leases import Lease

_log = get_logger(__name__)

FREE_EACH: Final = 8
"""Each so many ends leave their thread to whatever else waits: ticks, tickets of no driver."""
QUICK_SECONDS: Final = 1.0
"""After a longer pass the thread is shared anew: there latency matters, not the processor."""
WAIT_SECONDS: Final = 0.05
"""While others of its driver are at work, a thread waits so long for the driver's next ticket."""


class NextTickets:
    """Whether the threads of one worker process go on; thread-safe.

    Args:
        consumers: know whose tickets this process fetches.
        seats: threads inside each driver.
        await_ticket: of a key's driver, for so many seconds; see `WorkQueue.await_ticket`.
    """

    def __init__(
        self,
        consumers: CeleryConsumers,
        seats: Seats,
        await_ticket: Callable[[Key, float], Key | None],
    ) -> None:
        self._consumers = consumers
        self._seats = seats
        self._await_ticket = await_ticket
        self._ends = count(1)

    def wanted(self, lease: Lease) -> bool:
        """Whether the thread that ends this lease may go on with another key of the driver."""
        return (
            next(self._ends) % FREE_EACH > 0
            and lease.session.clock() - lease.asked_at < QUICK_SECONDS
            and self._seats.has_room(lease.key.driver)
            and self._consumers.fetches(lease.key)
        )

    def awaited(self, key: Key) -> Key | None:
        """The key of the driver's next ticket, if it comes at once while others are at work.

        In a burst tickets follow each other so soon that Celery's way to a thread costs more than
        the wait; at rest its consumer is there first.
        """
        if self._seats.taken(key.driver) <= 1:  # it sits there itself
            return None
        try:
            return self._await_ticket(key, WAIT_SECONDS)
        except QueueUnavailable as error:
            _log.v(2, "no ticket read", err=error)
            return None

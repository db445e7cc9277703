"""When does a thread go on with another key of its driver, without asking the broker?

What is due then needs neither the making of a message nor Celery's way to it. Who watches tasks
sees each such key as a task of its own; limits and the end of the worker see no difference.
"""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from workers.cli.consumers import CeleryConsumers
    from workers.drivers.seats import Seats
    from workers.queue.leases import Lease

FREE_EACH: Final = 8
"""Each so many ends leave their thread to whatever else waits: ticks, tickets of no driver."""
QUICK_SECONDS: Final = 1.0
"""After a longer pass the thread is shared anew: there latency matters, not the processor."""


class NextTickets:
    """Whether the threads of one worker process go on; thread-safe.

    Args:
        consumers: know whose tickets this process fetches.
        seats: threads inside each driver.
    """

    def __init__(self, consumers: CeleryConsumers, seats: Seats) -> None:
        self._consumers = consumers
        self._seats = seats
        self._ends = count(1)

    def wanted(self, lease: Lease) -> bool:
        """Whether the thread that ends this lease may go on with another key of the driver."""
        return (
            next(self._ends) % FREE_EACH > 0
            and lease.session.clock() - lease.asked_at < QUICK_SECONDS
            and self._seats.has_room(lease.key.driver)
            and self._consumers.fetches(lease.key)
        )

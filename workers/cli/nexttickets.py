"""When does a thread go on with another key, without Celery's way to it?

What is due of its driver then needs no message at all. Who watches tasks
sees each such key as a task of its own; limits and the end of the worker see no difference.
"""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Final

from workers.errors import QueueUnavailable
from workers.observability.logging import get_logger

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

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
"""While others are at work here, a thread waits so long for the next ticket."""


class NextTickets:
    """Whether the threads of one worker process go on; thread-safe.

    Args:
        consumers: know whose tickets this process fetches.
        seats: threads inside each driver.
        await_ticket: of so many lists, for so many seconds; see `WorkQueue.await_ticket`.
    """

    def __init__(
        self,
        consumers: CeleryConsumers,
        seats: Seats,
        await_ticket: Callable[[Sequence[str], float], Key | None],
    ) -> None:
        self._consumers = consumers
        self._seats = seats
        self._await_ticket = await_ticket
        self._ends = count(1)
        self._turns = count()

    def wanted(self, lease: Lease) -> bool:
        """Whether the thread that ends this lease may go on with another key of the driver."""
        return (
            next(self._ends) % FREE_EACH > 0
            and lease.session.clock() - lease.asked_at < QUICK_SECONDS
            and self._seats.has_room(lease.key.driver)
            and self._consumers.fetches(lease.key)
        )

    def awaited(self, key: Key) -> Key | None:
        """The key of the next ticket, of whichever driver, if it comes at once.

        In a burst tickets follow each other so soon that Celery's way to a thread costs more than
        the wait; at rest its consumer is there first.

        Args:
            key: what this thread has ended, in whose driver it still sits.
        """
        if self._seats.total <= 1:  # it sits there itself
            return None
        lists = self._consumers.lists(key)
        if not lists:
            return None
        turn = next(self._turns) % len(lists)
        try:
            # Redis looks at them in this order.
            return self._await_ticket([*lists[turn:], *lists[:turn]], WAIT_SECONDS)
        except QueueUnavailable as error:
            _log.v(2, "no ticket read", err=error)
            return None

"""Beat's tick (a periodic message): a fallback for the other processes' periodic work.

Every worker runs the queue's maintenance and the schedule of polls and sweeps. A tick matters only
if the timers of all workers are late. Ticks are level-triggered, so a duplicate, late or lost tick
does no harm (M-004).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from workers.errors import QueueUnavailable
from workers.observability.logging import get_logger
from workers.queue.presence import Presence

if TYPE_CHECKING:
    from workers.engine.periodic import Periodic
    from workers.queue.workqueue import WorkQueue

_log = get_logger(__name__)


def tick(queue: WorkQueue, periodic: Periodic) -> None:
    """Runs the periodic work that is due now.

    Args:
        queue: the work queue.
        periodic: the schedule of polls and sweeps.
    """
    try:
        Presence(queue.scripts.client).ticked()
        queue.pump()
        periodic.tick()
    except QueueUnavailable as error:
        _log.warning("a periodic task failed", err=error)

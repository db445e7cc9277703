"""Beat's tick: the fall-back for everything that is otherwise driven by the processes themselves.

The pump and the clock of polls and sweeps run in every worker; a tick only matters when all of
their timers are late.
Ticks are level-triggered, so a doubled, late or lost one does no harm (M-004).
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
    """Runs what is due now.

    Args:
        queue: the work queue.
        periodic: the clock of polls and sweeps.
    """
    try:
        Presence(queue.scripts.client).ticked()
        queue.pump()
        periodic.tick()
    except QueueUnavailable as error:
        _log.warning("a tick failed", err=error)

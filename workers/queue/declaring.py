"""Which limits does this process declare, and are they declared in the present life of Redis?

A lane without limits admits nothing. So whatever has to be known of a lane first, an operator's
pause, is restored before its limits are declared, each time that Redis may have lost its data.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from workers.errors import ApiError, QueueUnavailable
from workers.observability.logging import get_logger

if TYPE_CHECKING:
    from collections.abc import Callable

    from workers.queue.limits import LaneLimits
    from workers.queue.scripts import Scripts
    from workers.queue.wakeups import Wakeups

_log = get_logger(__name__)


class Declared:
    """The limits of one process.

    Args:
        scripts: of the queue's Redis.
        heartbeats: the same for the thread of the heartbeat.
        wakeups: takes the lists that a declaration wakes.
        before: called with each lane before its limits are declared; may raise ApiError and may be
            slow: after a loss of Redis' data `declare` calls it, not `again`. None for nothing.
    """

    def __init__(
        self,
        scripts: Scripts,
        heartbeats: Scripts,
        wakeups: Wakeups,
        before: Callable[[str], None] | None,
    ) -> None:
        self._scripts = scripts
        self._heartbeats = heartbeats
        self._wakeups = wakeups
        self._before = before
        self._limits: dict[str, LaneLimits] = {}
        self._undeclared: set[str] = set()
        # Whose next declaration says that calls of dead processes may be lost from sight.
        self._in_new_life: set[str] = set()

    def set(self, lane: str, limits: LaneLimits) -> None:
        """Declare a lane's limits, now or as soon as it may be."""
        self._limits[lane] = limits
        self._undeclared.add(lane)
        self.declare()

    def again(self, *, is_new_life: bool) -> None:
        """Redis may have lost them, or wants to hear of them now and then; for the heartbeat."""
        lanes = self._limits.copy()
        if is_new_life:
            self._in_new_life.update(lanes)
            if self._before is not None:
                self._undeclared.update(lanes)
        # Together: leases are not renewed meanwhile, and there may be thousands of lanes.
        rows = [self._row(lane, lanes[lane]) for lane in lanes if lane not in self._undeclared]
        for lists in self._heartbeats.run_each("limits", rows):
            self._wakeups.hold(lists)
        self._in_new_life.difference_update(row[0] for row in rows)

    def declare(self) -> None:
        """Declare what could not be so far.

        Raises:
            QueueUnavailable: Redis does not answer; call again.
        """
        for lane in self._undeclared.copy():
            # Taken out first: another loss of Redis' data may put it back meanwhile.
            self._undeclared.discard(lane)
            try:
                if self._before is not None:
                    self._before(lane)
                row = self._row(lane, self._limits[lane])
                self._wakeups.publish(self._scripts.run("limits", *row))
                self._in_new_life.discard(lane)
            except ApiError as error:
                self._undeclared.add(lane)
                _log.warning("nothing is admitted, pauses are not known", lane=lane, err=error)
                return
            except QueueUnavailable:
                self._undeclared.add(lane)
                raise

    def _row(self, lane: str, limits: LaneLimits) -> tuple[str | float, ...]:
        return lane, *limits.args(), int(lane in self._in_new_life)

"""Declares this process's limits to Redis, and declares them again after Redis has lost its data.

A lane without limits admits no key. So whenever Redis may have lost its data, an operator's pause
of a lane is restored before the lane's limits are declared.
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
    """The limits that one process declares.

    Args:
        scripts: the scripts of the queue's Redis.
        heartbeats: the same scripts, run over the heartbeat thread's client.
        wakeups: receives the Celery lists to which a message must be sent after a declaration.
        before: called with each lane before its limits are declared; None for no call. It may raise
            ApiError and may be slow. So after Redis has lost its data, `declare` calls it, not
            `again`.
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
        # Lanes whose next declaration reports that Redis may have forgotten dead processes' calls.
        self._in_new_life: set[str] = set()

    def set(self, lane: str, limits: LaneLimits) -> None:
        """Declare a lane's limits now; if this fails, a later call of `declare` repeats it."""
        self._limits[lane] = limits
        self._undeclared.add(lane)
        self.declare()

    def again(self, *, is_new_life: bool) -> None:
        """Declare all limits again, to refresh or restore them; called by the heartbeat."""
        lanes = self._limits.copy()
        if is_new_life:
            self._in_new_life.update(lanes)
            if self._before is not None:
                self._undeclared.update(lanes)
        # All limits are sent together, because no lease is renewed meanwhile and there may be
        # thousands of lanes.
        rows = [self._row(lane, lanes[lane]) for lane in lanes if lane not in self._undeclared]
        for lists in self._heartbeats.run_each("limits", rows):
            self._wakeups.hold(lists)
        self._in_new_life.difference_update(row[0] for row in rows)

    def declare(self) -> None:
        """Declare the limits that could not be declared earlier.

        Raises:
            QueueUnavailable: Redis does not answer; call this method again later.
        """
        for lane in self._undeclared.copy():
            # The lane is removed before its limits are declared, because it may be added again if
            # Redis loses its data during the declaration.
            self._undeclared.discard(lane)
            try:
                if self._before is not None:
                    self._before(lane)
                row = self._row(lane, self._limits[lane])
                self._wakeups.publish(self._scripts.run("limits", *row))
                self._in_new_life.discard(lane)
            except ApiError as error:
                self._undeclared.add(lane)
                _log.warning(
                    "no work is started because the pauses could not be read", lane=lane, err=error
                )
                return
            except QueueUnavailable:
                self._undeclared.add(lane)
                raise

    def _row(self, lane: str, limits: LaneLimits) -> tuple[str | float, ...]:
        return lane, *limits.args(), int(lane in self._in_new_life)

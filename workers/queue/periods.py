"""Schedules periodic work across all processes, level-triggered (M-004).

Redis keeps the end of each period. The first process to ask after the end begins the next period
and does the work. So a timer that is late, runs twice or has died (beat, a worker's own thread)
does no harm.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from workers.queue.names import redis_key
from workers.queue.scripts import Scripts, reading

if TYPE_CHECKING:
    import redis


class Periods:
    """The periods of periodic work, by name. Methods may raise QueueUnavailable."""

    def __init__(self, client: redis.Redis) -> None:
        self._client = client
        self._scripts = Scripts(client)
        self._mark = redis_key(client, "period")

    def is_due(self, name: str, period_seconds: float) -> bool:
        """Return True if the period is over; if so, begin the next period."""
        return bool(self._scripts.run("period", name, max(1, round(period_seconds * 1000))))

    def restart(self, name: str, period_seconds: float) -> None:
        """Begin a new period now, because the caller does the work for another reason."""
        with reading(self._client):
            self._client.delete(self._mark + name)
        self.is_due(name, period_seconds)

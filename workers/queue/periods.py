"""Is it time again? Periodic work of all processes together, level-triggered (M-004).

A mark in Redis lives for one period; whoever finds it gone sets it and does the work. So a late,
doubled or dead clock (beat, a worker's own thread) does no harm.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from workers.queue.names import redis_key
from workers.queue.scripts import reading

if TYPE_CHECKING:
    import redis


class Periods:
    """Marks by name. Methods raise QueueUnavailable."""

    def __init__(self, client: redis.Redis) -> None:
        self._client = client
        self._mark = redis_key(client, "period")

    def is_due(self, name: str, period_seconds: float) -> bool:
        """Tell whether the period is over, and begin the next one if so."""
        span_ms = max(1, round(period_seconds * 1000))
        with reading(self._client):
            return bool(self._client.set(self._mark + name, "1", nx=True, px=span_ms))

    def restart(self, name: str, period_seconds: float) -> None:
        """Begin a period now: the work is done for another reason."""
        with reading(self._client):
            self._client.set(
                self._mark + name,
                "1",
                px=max(1, round(period_seconds * 1000)),
            )

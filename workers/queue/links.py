"""Is a driver connected anywhere, and how much does it take at the moment?

A driver that no worker is connected to has its lanes paused (kind `driver`): keys wait without
events and without back-off steps, and continue when a worker is connected and shook hands. A
driver that answers, whatever it answers, is never paused: one of its storages may work while the
others do not. `throttle` halves what a lane may do after "too much" answers; the lane recovers
slowly by itself.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any, Final

from workers.queue.kinds import DRIVER_KINDS
from workers.queue.records import encode
from workers.queue.scripts import Scripts, text
from workers.queue.wakeups import Wakeups

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Mapping

    import redis

RECOVERY_SECONDS: Final = 5.0
"""A lowered lane gets 2 % of its limit back, at least 1, this often."""
COOL_DOWN_SECONDS: Final = 1.0


def record_text(record: Mapping[str, Any]) -> str | bytes:
    """A driver's record as `Links.keep` takes it; made once, for it is sent each few seconds."""
    return encode(record)


class Links:
    """Connections to drivers as one process sees them. Methods raise QueueUnavailable.

    Args:
        client: of the queue's Redis.
        publish: sends one message to each list that a change wakes.
        now_ms: tests only.
    """

    def __init__(
        self,
        client: redis.Redis,
        *,
        publish: Callable[[list[str]], None],
        now_ms: Callable[[], int] | None = None,
    ) -> None:
        self._client = client
        self._scripts = Scripts(client, now_ms)
        self._wakeups = Wakeups(publish)
        self.process_id = uuid.uuid4().hex

    def lost(self, driver: str, reason: str) -> None:
        """This process is not connected; with the last one the driver's keys wait."""
        self._event("lost", driver, reason)

    def back(self, driver: str, ttl_seconds: float) -> None:
        """This process is connected and knows the driver's name and capabilities."""
        self._event("back", driver, round(ttl_seconds * 1000))

    def throttle(self, lane: str) -> int:
        """The driver answered "too much": halve the lane; returns what it may do now."""
        step, cool_down = round(RECOVERY_SECONDS * 1000), round(COOL_DOWN_SECONDS * 1000)
        return int(self._scripts.run("throttle", lane, step, cool_down))

    def pace(self, lane: str) -> float:
        """Seconds a call of a lane with a rate has to wait for its place; it counts as begun."""
        return int(self._scripts.run("pace", lane)) / 1000

    def keep(
        self,
        records: Mapping[str, str | bytes],
        connected: Container[str],
        *,
        ttl_seconds: float,
    ) -> bool:
        """Announce all drivers this process serves, in one call; True when the registry changed.

        A driver that somebody is connected to is not lost, whatever a Redis without data was told
        meanwhile.

        Args:
            records: what others may know of each driver, by queue name; from `record_text`.
            connected: those this process has a connection to.
            ttl_seconds: announced for so long.
        """
        flat: list[str | bytes | int] = []
        for name, record in records.items():
            flat += [name, record, int(name in connected)]
        ttl_ms = round(ttl_seconds * 1000)
        changed, lost = self._scripts.run("drivers_keep", self.process_id, ttl_ms, *flat)
        for name in lost:
            self.back(text(name), ttl_seconds)
        return bool(changed)

    def _event(self, event: str, driver: str, argument: str | int) -> None:
        kinds = " ".join(DRIVER_KINDS)
        lists = self._scripts.run("link", event, driver, kinds, self.process_id, argument)
        self._wakeups.publish(lists)

"""Reports connections to drivers, and lowers the limits of overloaded drivers.

If no worker is connected to a driver, the driver's lanes are paused (kind `driver`). Their keys
wait without events and without back-off steps, and are processed once a worker is connected and has
read the driver's capabilities. A driver that responds is never paused, even if it returns errors,
because only some of its storage systems may be failing. `throttle` halves a lane's limit after the
driver has reported "too much"; the limit recovers slowly.
"""

from __future__ import annotations

import math
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from workers.queue.kinds import APART, DRIVER_KINDS
from workers.queue.records import encode
from workers.queue.scripts import Scripts, text
from workers.queue.wakeups import Wakeups

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import redis

RECOVERY_SECONDS: Final = 5.0
"""Interval after which a throttled lane regains 2 % of its declared limit, at least 1."""
COOL_DOWN_SECONDS: Final = 1.0


@dataclass(frozen=True, slots=True)
class Place:
    """A process's connection to a driver if all workers must call the same replica.

    Attributes:
        address: the replica's address; "" if any of the driver's replicas may be called.
        open_seconds: how long the process's calls to the replica may still run.
        longest_seconds: the longest time that any call may take.
    """

    address: str = ""
    open_seconds: float = 0.0
    longest_seconds: float = 0.0


ANYWHERE: Final = Place()


@dataclass(frozen=True, slots=True)
class Verdict:
    """Redis's reply to a report about a connection.

    Attributes:
        is_ours: True if this process may call the driver over the connection.
        hold_seconds: the time until the process may begin its first call over the connection.
        chosen: the replica that all workers call; "" for none.
    """

    is_ours: bool
    hold_seconds: float = 0.0
    chosen: str = ""


def record_text(record: Mapping[str, Any]) -> str | bytes:
    """Encode a driver's record once for `Links.keep`, which sends it every few seconds."""
    return encode(record)


class Links:
    """One process's connections to drivers. Methods may raise QueueUnavailable.

    Args:
        client: the client for the queue's Redis.
        publish: sends one message to each list in which a change has made work due.
        now_ms: returns the time to use in place of Redis's time; used only by tests.
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

    def lost(self, driver: str, reason: str, place: Place = ANYWHERE) -> None:
        """Report a lost connection; if it was the driver's last one, pause the driver's lanes."""
        self._event("lost", driver, place, reason)

    def back(
        self,
        driver: str,
        ttl_seconds: float,
        place: Place = ANYWHERE,
        *,
        is_serving: bool = False,
    ) -> Verdict:
        """Report that this process is connected and has read the driver's name and capabilities.

        Args:
            driver: the driver's queue name.
            ttl_seconds: how long the report is valid if it is not repeated.
            place: the replica that the process is connected to.
            is_serving: True if the process is already serving this replica; after losing its data,
                Redis has no record of that.
        """
        ttl_ms = round(ttl_seconds * 1000)
        return self._event("back", driver, place, ttl_ms, place.address, int(is_serving))

    def throttle(self, lane: str) -> int:
        """Halve a lane's limit after the driver has reported "too much"; return the new limit."""
        step, cool_down = round(RECOVERY_SECONDS * 1000), round(COOL_DOWN_SECONDS * 1000)
        return int(self._scripts.run("throttle", lane, step, cool_down))

    def pace(self, lane: str) -> float:
        """Return how long a call must wait because of its lane's rate; count the call as begun."""
        return int(self._scripts.run("pace", lane)) / 1000

    def keep(
        self,
        records: Mapping[str, str | bytes],
        connected: Mapping[str, Place],
        *,
        ttl_seconds: float,
    ) -> dict[str, Verdict]:
        """Announce all drivers that this process serves, in one call.

        A connected driver must not count as lost, even after Redis has lost its data. So if a
        driver counts as lost, or another replica has been chosen for it, `back` is called again.
        The results of these calls are returned.

        Args:
            records: each driver's record for other processes, by queue name (see `record_text`).
            connected: the drivers that this process is connected to, each with its replica.
            ttl_seconds: how long the announcement is valid.
        """
        flat: list[str | bytes | int] = []
        for name, record in records.items():
            flat += [name, record, _word(connected.get(name))]
        ttl_ms = round(ttl_seconds * 1000)
        _, lost = self._scripts.run("drivers_keep", self.process_id, ttl_ms, *flat)
        places = {name.partition(APART)[0]: place for name, place in connected.items()}
        return {
            name: self.back(name, ttl_seconds, places.get(name, ANYWHERE), is_serving=True)
            for name in map(text, lost)
        }

    def _event(self, event: str, driver: str, place: Place, *arguments: str | int) -> Verdict:
        kinds, process = " ".join(DRIVER_KINDS), self.process_id
        open_ms, longest_ms = (
            math.ceil(seconds * 1000) for seconds in (place.open_seconds, place.longest_seconds)
        )
        known = (event, driver, kinds, process, open_ms, longest_ms)
        lists, is_ours, hold_ms, chosen = self._scripts.run("link", *known, *arguments)
        self._wakeups.publish(lists)
        return Verdict(bool(is_ours), int(hold_ms) / 1000, text(chosen))


def _word(place: Place | None) -> str:
    if place is None:
        return "0"
    return place.address or "1"

"""Is a driver connected anywhere, and how much does it take at the moment?

A driver that no worker is connected to has its lanes paused (kind `driver`): keys wait without
events and without back-off steps, and continue when a worker is connected and shook hands. A
driver that answers, whatever it answers, is never paused: one of its storages may work while the
others do not. `throttle` halves what a lane may do after "too much" answers; the lane recovers
slowly by itself.
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
"""A lowered lane gets 2 % of its limit back, at least 1, this often."""
COOL_DOWN_SECONDS: Final = 1.0


@dataclass(frozen=True, slots=True)
class Place:
    """What a process reports of its connection to a driver of which one replica is called.

    Attributes:
        address: of the replica; "" for a driver of which any replica may be called.
        open_seconds: how long its calls there may still run.
        longest_seconds: no call of it runs for longer.
    """

    address: str = ""
    open_seconds: float = 0.0
    longest_seconds: float = 0.0


ANYWHERE: Final = Place()


@dataclass(frozen=True, slots=True)
class Verdict:
    """What Redis says of that connection.

    Attributes:
        is_ours: this process may call the driver over it.
        hold_seconds: from then on.
        chosen: the replica that all workers call, "" for none.
    """

    is_ours: bool
    hold_seconds: float = 0.0
    chosen: str = ""


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

    def lost(self, driver: str, reason: str, place: Place = ANYWHERE) -> None:
        """This process is not connected; with the last one the driver's keys wait."""
        self._event("lost", driver, place, reason)

    def back(
        self,
        driver: str,
        ttl_seconds: float,
        place: Place = ANYWHERE,
        *,
        is_serving: bool = False,
    ) -> Verdict:
        """This process is connected and knows the driver's name and capabilities.

        Args:
            driver: its queue name.
            ttl_seconds: how long this holds without another word.
            place: the replica that it is connected to.
            is_serving: it has served this replica before: a Redis without data learns it.
        """
        ttl_ms = round(ttl_seconds * 1000)
        return self._event("back", driver, place, ttl_ms, place.address, int(is_serving))

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
        connected: Mapping[str, Place],
        *,
        ttl_seconds: float,
    ) -> dict[str, Verdict]:
        """Announce all drivers this process serves, in one call.

        A driver that somebody is connected to is not lost, whatever a Redis without data was told
        meanwhile. Returns what Redis says anew of drivers that counted as lost, or as called at
        another replica.

        Args:
            records: what others may know of each driver, by queue name; from `record_text`.
            connected: those this process has a connection to, and to which replica.
            ttl_seconds: announced for so long.
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

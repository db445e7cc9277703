"""Is a driver's breaker open, and how much does the driver take at the moment?

One record per driver for all workers: failures count together, whoever saw them, and one answered
call anywhere proves the driver well. States:

```
closed --n failures in the window, none answered between--> open
open   --time over and Probe answered--------------------> half    one call at a time
half   --a call answered, or 30 s without a failure------> closed  from one call up, step by step
half   --a call failed----------------------------------> open     for twice as long
any    --no worker is connected to the driver any more---> lost
lost   --a worker is connected and shook hands----------> closed  from one call up
```
While it is open or lost the driver's lanes are paused (kind `breaker`): keys wait without events
and without back-off steps. `throttle` halves what a lane may do after "too much" answers; it
recovers slowly by itself.
"""

from __future__ import annotations

import random
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from workers.queue.kinds import DRIVER_KINDS
from workers.queue.names import redis_key
from workers.queue.records import encode
from workers.queue.scripts import Scripts, reading, text, whole
from workers.queue.tickets import Tickets

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Mapping

    import redis

    from workers.queue.keys import Key

FAILURES: Final = 5
WINDOW_SECONDS: Final = 30.0
OPEN_SECONDS: Final = 2.0
LONGEST_OPEN_SECONDS: Final = 30.0
JITTER_PERCENT: Final = 25
RECOVERY_SECONDS: Final = 5.0
"""A lowered lane gets 2 % of its limit back, at least 1, this often."""
COOL_DOWN_SECONDS: Final = 1.0


@dataclass(frozen=True, slots=True)
class BreakerState:
    """A driver whose breaker is not simply closed.

    Args:
        state: `closed` (with failures), `open`, `half` or `lost`.
        fails: failures counted in this window.
        since_ms: when the state began, Redis time.
        until_ms: open: not before; half: at most until.
        reason: what was seen last.
    """

    state: str
    fails: int
    since_ms: int
    until_ms: int
    reason: str

    @property
    def is_open(self) -> bool:
        """Whether keys are held back."""
        return self.state in {"open", "lost"}


def record_text(record: Mapping[str, Any]) -> str | bytes:
    """A driver's record as `Breakers.keep` takes it; made once, for it is sent each few seconds."""
    return encode(record)


class Breakers:
    """Breakers of all drivers as one process sees them. Methods raise QueueUnavailable.

    Args:
        client: of the queue's Redis.
        publish: sends the tickets that a change admits.
        now_ms: tests only.
    """

    def __init__(
        self,
        client: redis.Redis,
        *,
        publish: Callable[[list[Key]], None],
        now_ms: Callable[[], int] | None = None,
    ) -> None:
        self._client = client
        self._scripts = Scripts(client, now_ms)
        self._tickets = Tickets(publish)
        self.process_id = uuid.uuid4().hex

    def failed(
        self, driver: str, reason: str, *, failures: int = FAILURES, seconds: float = OPEN_SECONDS
    ) -> str:
        """Count a call that was not answered; returns the state that follows."""
        return self._event(
            "failed",
            driver,
            reason,
            failures,
            round(WINDOW_SECONDS * 1000),
            round(seconds * 1000),
            round(LONGEST_OPEN_SECONDS * 1000),
            # Spreads the release of drivers that failed for one reason.
            random.randrange(JITTER_PERCENT),  # noqa: S311
        )

    def succeeded(self, driver: str) -> str:
        """A call was answered; needed only after failures."""
        return self._event("ok", driver)

    def half_open(self, driver: str) -> str:
        """Probe is answered: let single calls through, if the time has come."""
        return self._event("half", driver)

    def lost(self, driver: str, reason: str) -> str:
        """This process is not connected; with the last one the driver's keys wait."""
        return self._event("lost", driver, reason, self.process_id)

    def back(self, driver: str, ttl_seconds: float) -> str:
        """This process is connected and knows the driver's name and capabilities."""
        return self._event("back", driver, self.process_id, round(ttl_seconds * 1000))

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

    def states(self) -> dict[str, BreakerState]:
        """Drivers with failures, by name; the others are closed."""
        with reading(self._client):
            raw = self._client.hgetall(redis_key(self._client, "breakers"))
        found = {}
        for name, value in raw.items():
            parts = text(value).split(" ", 5)
            numbers = [whole(part) for part in parts[1:4]]
            if len(parts) == 6 and None not in numbers:
                fails, since, until = (number or 0 for number in numbers)
                found[text(name)] = BreakerState(parts[0], fails, since, until, parts[5])
        return found

    def _event(self, event: str, driver: str, *args: str | float) -> str:
        tickets, state = self._scripts.run("breaker", event, driver, " ".join(DRIVER_KINDS), *args)
        self._tickets.publish(tickets)
        return text(state)

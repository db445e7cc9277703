"""Reads the queue's clock, and converts its times for people.

All times in Redis are of one clock, which `lua/lib.lua` keeps: it runs at the pace of Redis' host
clock and never steps, even if that clock is set. So no time here is compared with another machine's
clock. Times that outlive Redis or are shown to people are by the clock of Redis' host.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from workers.queue.names import redis_key
from workers.queue.scripts import reading, text

if TYPE_CHECKING:
    import redis

_KEPT: Final = re.compile(r"\d{1,16} (-?\d{1,16})")


@dataclass(frozen=True, slots=True)
class Clock:
    """One moment by two clocks.

    Args:
        now_ms: by the queue's clock.
        host_ms: by the clock of Redis' host.
    """

    now_ms: int
    host_ms: int

    @property
    def shown_now(self) -> float:
        """The moment in seconds since 1970, by the clock of Redis' host."""
        return self.host_ms / 1000

    def shown(self, stamp_ms: float) -> float:
        """Convert a time of the queue to seconds since 1970, by the clock of Redis' host."""
        return (stamp_ms - self.now_ms + self.host_ms) / 1000


def read_clock(client: redis.Redis) -> Clock:
    """Return the present moment.

    Raises:
        QueueUnavailable: Redis does not answer.
    """
    with reading(client):
        pipe = client.pipeline(transaction=False)
        ask_clock(client, pipe)
        time, kept = pipe.execute()
    return clock_of(time, kept)


def ask_clock(client: redis.Redis, pipe: Any) -> None:
    """Add the two commands to a pipeline whose replies `clock_of` takes."""
    pipe.time()
    pipe.get(redis_key(client, "clock"))


def clock_of(time: tuple[int, int], kept: bytes | str | None) -> Clock:
    """Return the moment from the two replies."""
    host_ms = int(time[0]) * 1000 + int(time[1]) // 1000
    found = _KEPT.fullmatch(text(kept))
    return Clock(host_ms + int(found[1]) if found else host_ms, host_ms)

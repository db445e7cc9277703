"""What time is it for the queue, and what do people call it?

All stamps in Redis are of one clock, which `lua/lib.lua` keeps: it has the pace of the clock of
Redis' host and only goes on, whoever sets that one. So nothing here is compared with the clock of
another machine. What outlives Redis or is shown to people is said by the clock of Redis' host.
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
    """A moment.

    Args:
        now_ms: the queue's time.
        host_ms: the same by the clock of Redis' host.
    """

    now_ms: int
    host_ms: int

    @property
    def shown_now(self) -> float:
        """The moment in seconds since 1970, as people say it."""
        return self.host_ms / 1000

    def shown(self, stamp_ms: float) -> float:
        """A stamp of the queue in seconds since 1970, as people say it."""
        return (stamp_ms - self.now_ms + self.host_ms) / 1000


def read_clock(client: redis.Redis) -> Clock:
    """The present moment.

    Raises:
        QueueUnavailable: Redis does not answer.
    """
    with reading(client):
        pipe = client.pipeline(transaction=False)
        ask_clock(client, pipe)
        time, kept = pipe.execute()
    return clock_of(time, kept)


def ask_clock(client: redis.Redis, pipe: Any) -> None:
    """Add the two questions whose answers `clock_of` takes to a pipeline of the client."""
    pipe.time()
    pipe.get(redis_key(client, "clock"))


def clock_of(time: tuple[int, int], kept: bytes | str | None) -> Clock:
    """The moment of two answers."""
    host_ms = int(time[0]) * 1000 + int(time[1]) // 1000
    found = _KEPT.fullmatch(text(kept))
    return Clock(host_ms + int(found[1]) if found else host_ms, host_ms)

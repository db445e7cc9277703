"""Reads the queue's clock and converts its times for display.

All times in Redis come from one clock, which `lua/lib.lua` maintains. This clock runs at the rate
of the Redis host's clock but never jumps, even if the host's clock is set. So times are never
compared across the clocks of different machines. Times that outlive Redis or that users see come
from the Redis host's clock.
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
    """One moment in time, as shown by two clocks.

    Args:
        now_ms: the time on the queue's clock.
        host_ms: the time on the Redis host's clock.
    """

    now_ms: int
    host_ms: int

    @property
    def shown_now(self) -> float:
        """The current time in seconds since 1970, on the Redis host's clock."""
        return self.host_ms / 1000

    def shown(self, stamp_ms: float) -> float:
        """Convert a time on the queue's clock to the Redis host's clock, in seconds since 1970."""
        return (stamp_ms - self.now_ms + self.host_ms) / 1000


def read_clock(client: redis.Redis) -> Clock:
    """Return the current time on both clocks.

    Raises:
        QueueUnavailable: Redis does not answer.
    """
    with reading(client):
        pipe = client.pipeline(transaction=False)
        ask_clock(client, pipe)
        time, kept = pipe.execute()
    return clock_of(time, kept)


def ask_clock(client: redis.Redis, pipe: Any) -> None:
    """Add the two commands that read the clock to a pipeline; pass their replies to `clock_of`."""
    pipe.time()
    pipe.get(redis_key(client, "clock"))


def clock_of(time: tuple[int, int], kept: bytes | str | None) -> Clock:
    """Compute the current time from the replies to the two commands that `ask_clock` adds."""
    host_ms = int(time[0]) * 1000 + int(time[1]) // 1000
    found = _KEPT.fullmatch(text(kept))
    return Clock(host_ms + int(found[1]) if found else host_ms, host_ms)

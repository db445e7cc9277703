"""Does another worker still work because of a Lease that we would give back?

Each worker that may work says so whenever it has looked at the Lease, with the time until which it
may. A Redis that lost its data says nothing for a moment: who finds its own entry gone is certain
of nothing until everybody had the time to say it again.
"""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING

from workers.queue.names import redis_key
from workers.queue.scripts import reading

if TYPE_CHECKING:
    from collections.abc import Callable

    import redis


class LeaseFellows:
    """The workers behind each Lease. Methods raise QueueUnavailable.

    Args:
        client: of the queue's Redis.
        settle_seconds: in which every worker says at least once that it works.
        clock: local seconds.
    """

    def __init__(
        self,
        client: redis.Redis,
        *,
        settle_seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._family = redis_key(client, "fellows")
        self._settle_seconds = settle_seconds
        self._clock = clock
        self._known_since: dict[str, float] = {}

    def works(self, lease: str, identity: str, seconds: float) -> None:
        """This process may work, for so long."""
        with reading(self._client):
            now = self._now_ms()
            name = self._family + lease
            pipe = self._client.pipeline(transaction=True)
            pipe.zadd(name, {identity: now + math.ceil(seconds * 1000)})
            pipe.zremrangebyscore(name, "-inf", now)
            pipe.pexpire(name, 3_600_000)
            is_new = pipe.execute()[0]
        if is_new:
            self._known_since[lease] = self._clock()

    def is_last(self, lease: str, identity: str) -> bool:
        """True if surely nobody else works; this process does not any more."""
        with reading(self._client):
            name = self._family + lease
            pipe = self._client.pipeline(transaction=True)
            pipe.zrem(name, identity)
            pipe.zcount(name, f"({self._now_ms()}", "+inf")
            was_known, others = pipe.execute()
        since = self._known_since.pop(lease, math.inf)
        is_certain = was_known and self._clock() - since > self._settle_seconds
        return bool(is_certain and not others)

    def _now_ms(self) -> int:
        seconds, microseconds = self._client.time()
        return int(seconds) * 1000 + int(microseconds) // 1000

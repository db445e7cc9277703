"""Who are the fellows of a worker, and does one still work because of a Lease that it gives back?

Fellows are the workers of one Redis. It has a name, made by the first of them; after a loss of data
it has the one again that a worker still knows, or a new one, which all of them then take.

Each worker that may work says so whenever it has looked at the Lease, with the time until which it
may. A Redis that lost its data says nothing for a moment: who finds its own entry gone is certain
of nothing until everybody had the time to say it again.
"""

from __future__ import annotations

import math
import re
import time
import uuid
from typing import TYPE_CHECKING, Final

from workers.observability.logging import get_logger
from workers.queue.names import redis_key
from workers.queue.scripts import reading, text

if TYPE_CHECKING:
    from collections.abc import Callable

    import redis

_log = get_logger(__name__)
_NAME: Final = re.compile("[0-9a-f]{16}")


def new_name() -> str:
    """A name for a Redis."""
    return uuid.uuid4().hex[:16]


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
        self._name = redis_key(client, "installation")
        self._family = redis_key(client, "fellows")
        self._settle_seconds = settle_seconds
        self._clock = clock
        self._known_since: dict[str, float] = {}

    def installation(self, known: str) -> str:
        """What this Redis is called: `known`, or a new name, if it has none."""
        own = known or new_name()
        with reading(self._client):
            pipe = self._client.pipeline(transaction=True)
            pipe.set(self._name, own, nx=True)
            pipe.get(self._name)
            found = text(pipe.execute()[1])
            if not _NAME.fullmatch(found):
                _log.warning("not a name of an installation, replaced", key=self._name)
                self._client.set(self._name, own)
                return own
        return found

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

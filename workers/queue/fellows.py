"""Records which workers are working under a Lease, so that only the last one releases the Lease.

Fellows are the workers that share one Redis. The first worker gives that Redis a name. After a loss
of data, a worker writes the old name or a new one, and all other workers accept it.

Whenever a worker has read the Lease, it records how long it may work under the Lease. After Redis
has lost data, these records may be incomplete: a promoted replica may have this worker's entry but
not the entry of another worker. So no worker counts as the last one if its entry is missing, if the
Redis server has changed, or before every worker has had time to write its entry again.
"""

from __future__ import annotations

import math
import re
import time
import uuid
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from workers.observability.logging import get_logger
from workers.queue.clock import read_clock
from workers.queue.connection import WatchError
from workers.queue.names import redis_key
from workers.queue.scripts import reading, text

if TYPE_CHECKING:
    from collections.abc import Callable

    import redis

_log = get_logger(__name__)
# This time is used only for cleaning up, because Redis expires keys by its host's clock, which may
# jump.
_CLEANED_SECONDS: Final = 7 * 24 * 3600
_NAME: Final = re.compile("[0-9a-f]{16}")

INSTALLATION_VARIABLE: Final = "CSI_FLEET_INSTALLATION"
"""The environment variable in which `csi-fleet run` passes the name of its own Redis to the
processes that it starts.
"""


class LeaseFellows:
    """The workers that are working under each Lease.

    Methods may raise QueueUnavailable if Redis does not answer.

    Args:
        client: the client for the queue's Redis.
        settle_seconds: the time within which every worker calls `works` at least once.
        given: the name to give to a Redis that has no name; "" for a random name.
        clock: returns local seconds.
    """

    def __init__(
        self,
        client: redis.Redis,
        *,
        settle_seconds: float,
        given: str = "",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._name = redis_key(client, "installation")
        self._family = redis_key(client, "fellows")
        self._settle_seconds = settle_seconds
        self._given = given if _NAME.fullmatch(given) else ""
        self._clock = clock
        # For each Lease: the Redis server's run id, and the time at which that server first had
        # this process's entry.
        self._known: dict[str, tuple[str, float]] = {}

    def installation(self, known: str) -> str:
        """Return the name of this Redis.

        If Redis has no name, store `known` as its name or, if `known` is empty, a new name.
        """
        own = known or self._given or uuid.uuid4().hex[:16]
        with reading(self._client):
            while not _NAME.fullmatch(found := text(self._client.get(self._name))):
                if found:
                    _log.warning(
                        "replaced the name of the installation in Redis, which was not valid",
                        key=self._name,
                    )
                self._give(own, found)
        return found

    def _give(self, name: str, instead_of: str) -> None:
        """Write the name of this Redis, unless another process has replaced `instead_of`."""
        untyped: Any = self._client.pipeline(transaction=True)
        with untyped as pipe:
            pipe.watch(self._name)
            if text(pipe.get(self._name)) != instead_of:
                return
            pipe.multi()
            pipe.set(self._name, name)
            with suppress(WatchError):
                pipe.execute()

    def works(self, lease: str, worker: str, seconds: float) -> None:
        """Record that this worker may work under the Lease for the next `seconds`."""
        with reading(self._client):
            now = read_clock(self._client).now_ms
            name = self._family + lease
            pipe = self._client.pipeline(transaction=True)
            pipe.zadd(name, {worker: now + math.ceil(seconds * 1000)})
            pipe.zremrangebyscore(name, "-inf", now)
            pipe.expire(name, _CLEANED_SECONDS)
            pipe.info("server")
            is_new, *_, facts = pipe.execute()
        run = str(facts.get("run_id", ""))
        if is_new or self._known.get(lease, ("", 0.0))[0] != run:
            self._known[lease] = run, self._clock()

    def is_last(self, lease: str, worker: str) -> bool:
        """Remove this worker; return True if certainly no other worker works under the Lease."""
        with reading(self._client):
            name = self._family + lease
            pipe = self._client.pipeline(transaction=True)
            pipe.zrem(name, worker)
            pipe.zcount(name, f"({read_clock(self._client).now_ms}", "+inf")
            pipe.info("server")
            was_known, others, facts = pipe.execute()
        run, since = self._known.pop(lease, ("", math.inf))
        is_same = run == str(facts.get("run_id", ""))
        is_certain = was_known and is_same and self._clock() - since > self._settle_seconds
        return bool(is_certain and not others)

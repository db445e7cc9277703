"""Who are the fellows of a worker, and does one still work because of a Lease that it gives back?

Fellows are the workers of one Redis. It has a name, made by the first of them; after a loss of data
it has the one again that a worker still knows, or a new one, which all of them then take.

Each worker that may work says so whenever it has looked at the Lease, with the time until which it
may. A Redis that lost its data says nothing for a moment: who finds its own entry gone, or another
server than before (a promoted replica may know our entry and lack a fellow's), is certain of
nothing until everybody had the time to say it again.
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
# Cleaning only: by Redis' host, whose clock may step.
_CLEANED_SECONDS: Final = 7 * 24 * 3600
_NAME: Final = re.compile("[0-9a-f]{16}")

INSTALLATION_VARIABLE: Final = "CSI_FLEET_INSTALLATION"
"""How `csi-fleet run` tells its parts the name of the Redis that it brings."""


class LeaseFellows:
    """The workers behind each Lease. Methods raise QueueUnavailable.

    Args:
        client: of the queue's Redis.
        settle_seconds: in which every worker says at least once that it works.
        given: the name of a Redis that has none; "" for a new one.
        clock: local seconds.
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
        # The server that has known our entry for how long.
        self._known: dict[str, tuple[str, float]] = {}

    def installation(self, known: str) -> str:
        """What this Redis is called; if it has no name, `known`, the given one, or a new one."""
        own = known or self._given or uuid.uuid4().hex[:16]
        with reading(self._client):
            while not _NAME.fullmatch(found := text(self._client.get(self._name))):
                if found:
                    _log.warning("not a name of an installation, replaced", key=self._name)
                self._give(own, found)
        return found

    def _give(self, name: str, instead_of: str) -> None:
        """Unless somebody was faster."""
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
        """That process may work, for so long."""
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
        """True if surely nobody else works; that process does not any more."""
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

"""Which drivers and storage classes did an operator stop, why and until when?

A paused driver admits nothing; a paused class lets its claims and volumes go back with a delay,
seen as a reason on the key. Running work ends by itself: `draining` tells when it has. All of it
lives in Redis; the ends are by Redis' clock, so a forgotten pause with an expiry ends by itself.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from workers.queue.connection import redis_errors
from workers.queue.keys import lane_name
from workers.queue.kinds import DRIVER_KINDS
from workers.queue.limits import read_pause
from workers.queue.names import NAMES
from workers.queue.scripts import repaired, text

if TYPE_CHECKING:
    from collections.abc import Callable

    import redis

    from workers.queue.workqueue import WorkQueue

CLASS_CACHE_SECONDS: Final = 1.0


@dataclass(frozen=True, slots=True)
class Pause:
    """One pause in force.

    Args:
        reason: the operator's words.
        until_ms: Redis time of its end, 0 for none.
    """

    reason: str
    until_ms: int


class Pauses:
    """Pauses by operators. Methods raise QueueUnavailable.

    Args:
        client: of the queue's Redis.
        queue: whose lanes a driver's pause stops; None where only classes are of interest.
        clock: local seconds, for the cache of class pauses.
    """

    def __init__(
        self,
        client: redis.Redis,
        queue: WorkQueue | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._queue = queue
        self._clock = clock
        self._lock = threading.Lock()
        self._known: dict[str, Pause] = {}
        self._read_at = float("-inf")

    def pause_driver(self, driver: str, reason: str, *, seconds: float | None = None) -> None:
        """Admit nothing more of a driver; None: until resumed. A second one replaces the first."""
        for kind in DRIVER_KINDS:
            self._lanes().pause(lane_name(kind, driver), reason, seconds=seconds)

    def resume_driver(self, driver: str) -> None:
        """End the operator's pause; a breaker's stays."""
        for kind in DRIVER_KINDS:
            self._lanes().resume(lane_name(kind, driver))

    def drain_driver(self, driver: str, reason: str, *, seconds: float | None = None) -> int:
        """Pause, and tell how much still runs; call `draining` until it is 0."""
        self.pause_driver(driver, reason, seconds=seconds)
        return self.draining(driver)

    def draining(self, driver: str) -> int:
        """Keys of the driver that run now, over all workers."""
        with redis_errors():
            pipe = self._client.pipeline(transaction=False)
            for kind in DRIVER_KINDS:
                pipe.scard(NAMES["running"].full + lane_name(kind, driver))
            return sum(pipe.execute())

    def pause_class(self, name: str, reason: str, *, seconds: float | None = None) -> None:
        """Start no attempt for claims and volumes of a class; attempts in progress are finished."""
        until = 0 if seconds is None else self._now_ms() + round(seconds * 1000)
        with redis_errors(), repaired(self._client):
            self._client.hset(NAMES["class_pauses"].full, name, f"{until} {reason}")
        self._forget()

    def resume_class(self, name: str) -> bool:
        """End it; False when there was none. Keys that waited start within their delay."""
        with redis_errors(), repaired(self._client):
            found = self._client.hdel(NAMES["class_pauses"].full, name)
        self._forget()
        return bool(found)

    def classes(self) -> dict[str, Pause]:
        """Paused classes by name; drops those whose time is over."""
        with redis_errors(), repaired(self._client):
            raw = self._client.hgetall(NAMES["class_pauses"].full)
            if not raw:
                return {}
            now, found, over = self._now_ms(), {}, []
            for name, value in raw.items():
                pause = read_pause(value, now)
                if pause is not None:
                    found[text(name)] = Pause(*pause)
                else:
                    over.append(name)
            if over:
                self._client.hdel(NAMES["class_pauses"].full, *over)
            return found

    def of_class(self, name: str) -> Pause | None:
        """The pause of a class; at most a second old, and one round trip a second per process."""
        with self._lock:
            if self._clock() - self._read_at >= CLASS_CACHE_SECONDS:
                self._known = self.classes()
                self._read_at = self._clock()
            return self._known.get(name)

    def _forget(self) -> None:
        with self._lock:
            self._read_at = float("-inf")

    def _now_ms(self) -> int:
        seconds, microseconds = self._client.time()
        return int(seconds) * 1000 + int(microseconds) // 1000

    def _lanes(self) -> WorkQueue:
        if self._queue is None:
            raise ValueError("pausing a driver needs the queue")
        return self._queue

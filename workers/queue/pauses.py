"""Which drivers and storage classes did an operator stop, why and until when?

A paused driver admits nothing; a paused class lets its claims and volumes go back with a delay,
seen as a reason on the key. Running work ends by itself: `draining` tells when it has. The ends are
by Redis' clock, so a forgotten pause with an expiry ends by itself.

Redis may lose all of it, so the API server keeps a copy of each pause (workers/engine/pausecopies)
and workers restore it before they declare a limit, without which nothing is admitted. Each word
carries its time, also a resume: the newest wins.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from workers.queue.keys import lane_name
from workers.queue.kinds import DRIVER_KINDS
from workers.queue.limits import read_pause
from workers.queue.names import redis_key
from workers.queue.scripts import Scripts, reading, text

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


@dataclass(frozen=True, slots=True)
class Said(Pause):
    """A pause as it was said, for those who keep a copy.

    Args:
        said_ms: Redis time of that.
    """

    said_ms: int


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
        self._classes = redis_key(client, "class_pauses")
        self._queue = queue
        self._clock = clock
        self._lock = threading.Lock()
        self._known: dict[str, Pause] = {}
        self._read_at = float("-inf")
        self._read_in = ""

    def attach(self, queue: WorkQueue) -> None:
        """The queue, for those who need pauses before there is one."""
        self._queue = queue

    def pause_driver(self, driver: str, reason: str, *, seconds: float | None = None) -> Said:
        """Admit nothing more of a driver; None: until resumed. A second one replaces the first."""
        return self._pause(_driver(driver), "", reason, seconds, *_lanes_of(driver))

    def resume_driver(self, driver: str) -> None:
        """End the operator's pause; a breaker's stays."""
        if self._queue is None:
            raise ValueError("resuming a driver needs the queue")
        self._queue.resume(*_lanes_of(driver), target=_driver(driver))

    def restore_driver(self, driver: str, said: Said) -> bool:
        """Pause a driver as it was said at that time; False when that is over or not the newest."""
        return self._restore(_driver(driver), said, "", *_lanes_of(driver))

    def restore_class(self, name: str, said: Said) -> bool:
        """The same for a class."""
        return self._restore(_class(name), said, name)

    def draining(self, driver: str) -> int:
        """Keys of the driver that run now, over all workers; after `pause_driver` they become 0."""
        with reading(self._client):
            pipe = self._client.pipeline(transaction=False)
            for kind in DRIVER_KINDS:
                pipe.zcard(redis_key(self._client, "leased") + lane_name(kind, driver))
            return sum(pipe.execute())

    def pause_class(self, name: str, reason: str, *, seconds: float | None = None) -> Said:
        """Start no attempt for claims and volumes of a class; attempts in progress are finished."""
        said = self._pause(_class(name), name, reason, seconds)
        self._forget()
        return said

    def resume_class(self, name: str) -> bool:
        """End it; False when there was none. Keys that waited start within their delay."""
        was_paused = name in self.classes()
        self._scripts().run("resume", "operator", _class(name), name)
        self._forget()
        return was_paused

    def classes(self) -> dict[str, Pause]:
        """Paused classes by name.

        Those whose time is over stay in Redis until the next word about the class: who reads and
        then deletes could delete what an operator said in between.
        """
        with reading(self._client):
            raw = self._client.hgetall(self._classes)
            if not raw:
                return {}
            now = self._now_ms()
        pauses = {text(name): read_pause(value, now) for name, value in raw.items()}
        return {name: Pause(*pause) for name, pause in pauses.items() if pause is not None}

    def of_class(self, name: str) -> Pause | None:
        """The pause of a class; at most a second old, and one round trip a second per process."""
        with self._lock:
            epoch = "" if self._queue is None else self._queue.epoch
            if self._clock() - self._read_at >= CLASS_CACHE_SECONDS or epoch != self._read_in:
                # In a new life of Redis pauses may just have been restored.
                self._known, self._read_in = self.classes(), epoch
                self._read_at = self._clock()
            return self._known.get(name)

    def _pause(
        self, target: str, class_name: str, reason: str, seconds: float | None, *lanes: str
    ) -> Said:
        """Say it now; from now on nothing older is restored."""
        span_ms = 0 if seconds is None else round(seconds * 1000)
        run = self._scripts().run
        now_ms = int(run("pause", "operator", span_ms, reason, target, class_name, *lanes))
        return Said(reason, now_ms + span_ms if span_ms else 0, now_ms)

    def _restore(self, target: str, said: Said, class_name: str, *lanes: str) -> bool:
        times = (said.said_ms, said.until_ms)
        reply = self._scripts().run("restore", target, *times, said.reason, class_name, *lanes)
        is_restored = bool(reply)
        self._forget()
        return is_restored

    def _scripts(self) -> Scripts:
        return Scripts(self._client) if self._queue is None else self._queue.scripts

    def _forget(self) -> None:
        with self._lock:
            self._read_at = float("-inf")

    def _now_ms(self) -> int:
        seconds, microseconds = self._client.time()
        return int(seconds) * 1000 + int(microseconds) // 1000


def _driver(queue_name: str) -> str:
    return f"driver {queue_name}"


def _lanes_of(driver: str) -> list[str]:
    return [lane_name(kind, driver) for kind in DRIVER_KINDS]


def _class(name: str) -> str:
    return f"class {name}"

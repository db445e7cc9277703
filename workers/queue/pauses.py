"""Mirrors operators' pauses of drivers and storage classes in Redis, with reasons and end times.

The API server has the authoritative state (`workers.kube.pauserecord`). The command that changes a
pause mirrors the change at once. The watcher mirrors the state every few seconds and in each new
epoch of Redis. A worker mirrors the state before it declares limits to a Redis without a mirror:
until then, there are no limits, so no key is admitted.

While a driver is paused, none of its keys is admitted. While a class is paused, its claims and
volumes are returned to the queue with a delay and a reason. Running work finishes; `draining`
counts it. A pause ends by the queue's clock: after the time that remained when the pause was
mirrored.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from workers.queue.clock import read_clock
from workers.queue.keys import lane_name
from workers.queue.kinds import DRIVER_KINDS
from workers.queue.limits import read_mirrored
from workers.queue.names import redis_key
from workers.queue.scripts import reading, text

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Protocol

    import redis

    from workers.queue.workqueue import WorkQueue

    class State(Protocol):
        """The part of workers.kube.pauserecord.Recorded that is used here."""

        @property
        def version(self) -> str:
            """The record's resourceVersion."""

        @property
        def pauses(self) -> Mapping[str, str]:
            """Maps `driver NAME` or `class NAME` to `until_ms reason`."""


CLASS_CACHE_SECONDS: Final = 1.0
_CLASS: Final = "class "


@dataclass(frozen=True, slots=True)
class Pause:
    """One pause that is in force.

    Args:
        reason: the reason that the operator gave.
        until_ms: the end of the pause on the Redis host's clock; 0 for none.
    """

    reason: str
    until_ms: int


class Pauses:
    """The pauses that are mirrored in Redis. Methods may raise QueueUnavailable.

    Args:
        client: the client for the queue's Redis.
        queue: admits a resumed driver's keys; None if pauses are only read.
        clock: returns local seconds, for the cache of class pauses.
    """

    def __init__(
        self,
        client: redis.Redis,
        queue: WorkQueue | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._name = redis_key(client, "pauses")
        self._queue = queue
        self._clock = clock
        self._lock = threading.Lock()
        self._known: dict[str, Pause] = {}
        self._read_at = float("-inf")
        self._read_in = ""

    def attach(self, queue: WorkQueue) -> None:
        """Set the queue, for a process that needs pauses before its queue exists."""
        self._queue = queue

    def mirror(self, state: State) -> bool:
        """Mirror the API server's pauses to Redis; return False if Redis has a newer state."""
        if self._queue is None:
            raise ValueError("pauses can be mirrored only with a queue")
        is_taken = self._queue.mirror_pauses(state.version, state.pauses)
        with self._lock:
            self._read_at = float("-inf")
        return is_taken

    def is_mirrored(self) -> bool:
        """Return True if the API server's pauses have been mirrored here within the last minute."""
        with reading(self._client):
            return bool(self._client.exists(redis_key(self._client, "pauses_version")))

    def draining(self, driver: str) -> int:
        """Count the driver's running keys in all workers; after a pause, the count falls to 0."""
        with reading(self._client):
            pipe = self._client.pipeline(transaction=False)
            for kind in DRIVER_KINDS:
                pipe.zcard(redis_key(self._client, "leased") + lane_name(kind, driver))
            return sum(pipe.execute())

    def classes(self) -> dict[str, Pause]:
        """Return the paused classes by name; no attempt begins for their claims and volumes."""
        with reading(self._client):
            raw = self._client.hgetall(self._name)
            if not raw:
                return {}
        clock = read_clock(self._client)
        found = {text(name): read_mirrored(value, clock) for name, value in raw.items()}
        return {
            name.removeprefix(_CLASS): Pause(pause[0], round(pause[1] * 1000))
            for name, pause in found.items()
            if pause is not None and name.startswith(_CLASS)
        }

    def of_class(self, name: str) -> Pause | None:
        """Return the pause of a class, as read from Redis at most a second ago."""
        with self._lock:
            epoch = "" if self._queue is None else self._queue.epoch
            if self._clock() - self._read_at >= CLASS_CACHE_SECONDS or epoch != self._read_in:
                # The epoch is compared too: after Redis has lost its data, the pauses are copied to
                # it again, perhaps only after the last read here.
                self._known, self._read_in = self.classes(), epoch
                self._read_at = self._clock()
            return self._known.get(name)

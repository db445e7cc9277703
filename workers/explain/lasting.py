"""Writes an event on a claim that has been blocked for a long time, for `kubectl describe`.

Only causes that prevent any attempt, and therefore any other event, lead to this event: pauses, a
lost connection, a driver without a worker, an exhausted limit. Kubernetes itself writes events for
a claim without a class or driver. A record in Redis limits the events to one per key, cause and
hour.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from workers.constants import REASON_PROVISIONING_WAITING
from workers.explain import queueing
from workers.explain.serving import PROVISIONER, Served, of_controller
from workers.queue.inspect import read_key, waiting_keys
from workers.queue.keys import KIND_CLAIMS, Key

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from workers.explain.facts import Cause
    from workers.kube.events import EventRecorder
    from workers.queue.connection import RedisClient
    from workers.queue.periods import Periods
    from workers.queue.registry import DriverRegistry
    from workers.queue.workqueue import WorkQueue

COMPONENT: Final = "csi-fleet"
# Claims that have been blocked for less than this time need no event.
LASTING_SECONDS: Final = 60.0
LOOK_SECONDS: Final = 30.0
# The API server keeps an event for an hour, so it is written again after that time.
REPEAT_SECONDS: Final = 3600.0
# The number of keys of one driver queue that are checked per round; the others get their events in
# later rounds.
KEYS_PER_LOOK: Final = 50


class Lasting:
    """Checks waiting claims periodically; in each period, only one of all workers does so."""

    def __init__(
        self,
        redis_client: RedisClient,
        *,
        queue: WorkQueue,
        registry: DriverRegistry,
        periods: Periods,
        events: EventRecorder,
        lasting_seconds: float = LASTING_SECONDS,
    ) -> None:
        self._redis = redis_client
        self._queue = queue
        self._registry = registry
        self._periods = periods
        self._events = events
        self._lasting_seconds = lasting_seconds

    def tick(self) -> None:
        """Check the waiting claims if the period has elapsed.

        Raises:
            QueueUnavailable: Redis does not answer.
        """
        if not self._periods.is_due("lasting", LOOK_SECONDS):
            return
        lanes = {
            lane: stats.ready + stats.retry
            for lane, stats in self._queue.stats().items()
            if lane.startswith(f"{KIND_CLAIMS}|")
            and stats.ready + stats.retry
            and stats.head_age_seconds >= self._lasting_seconds
        }
        if not lanes:
            return
        records = self._registry.alive()
        turn = int(time.time() / LOOK_SECONDS)
        for lane, waiting in lanes.items():
            start = turn * KEYS_PER_LOOK % waiting if waiting > KEYS_PER_LOOK else 0
            for key in waiting_keys(self._redis, lane, start, KEYS_PER_LOOK):
                if cause := self._cause(key, records):
                    self.tell(key, cause)

    def tell(self, key: Key, cause: Cause) -> None:
        """Write the event unless it was written within the last hour."""
        if not self._periods.is_due(f"told {cause.code} {key.uid}", REPEAT_SECONDS):
            return
        namespace, _, name = key.object.partition("/")
        involved = {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"namespace": namespace, "name": name, "uid": key.uid},
        }
        advice = f" {cause.advice}" if cause.is_problem and cause.advice else ""
        self._events.event(
            involved,
            "Warning" if cause.is_problem else "Normal",
            REASON_PROVISIONING_WAITING,
            f"{cause.text}{advice}",
            component=COMPONENT,
        )

    def _cause(self, key: Key, records: Mapping[str, Mapping[str, Any]]) -> Cause | None:
        state = read_key(self._redis, key)
        if not state.position or state.now - state.since < self._lasting_seconds:
            return None
        record = of_controller(records, PROVISIONER).get(key.driver)
        if record is None:
            served = Served.by(records, PROVISIONER)
            return queueing.unserved(key.driver_name, served, workers=1)
        return queueing.paused(state) or queueing.queued(state)

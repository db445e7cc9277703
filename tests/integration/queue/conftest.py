"""A queue with a clock of its own and a list in place of Celery."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
import redis

from workers.queue.keys import Key
from workers.queue.leases import Lease
from workers.queue.locks import Lock
from workers.queue.workqueue import WorkQueue


@dataclass
class Bench:
    """Processes of one fleet, their common clock and every ticket they published."""

    client: redis.Redis
    now_ms: int = 1_700_000_000_000
    tickets: list[Key] = field(default_factory=list)

    def process(self) -> WorkQueue:
        queue = WorkQueue(
            self.client,
            publish=self.tickets.extend,
            clock=lambda: self.now_ms / 1000,
            now_ms=lambda: self.now_ms,
        )
        queue.register_process()
        return queue

    def advance(self, seconds: float) -> None:
        self.now_ms += round(seconds * 1000)

    def run_next(self, queue: WorkQueue, *locks: Lock | str) -> Lease:
        """Take the oldest ticket; a lock given by its name is exclusive."""
        wanted = [Lock(lock) if isinstance(lock, str) else lock for lock in locks]
        lease = queue.take(self.tickets.pop(0), wanted)
        assert lease is not None
        return lease

    def hand_over(self, one: WorkQueue, two: WorkQueue, *locks: Lock | str) -> tuple[Lease, Lease]:
        """The oldest ticket's key goes from `one`, which is silent for too long, to `two`."""
        old = self.run_next(one, *locks)
        self.advance(4.1)
        two.heartbeat()
        two.pump(period_seconds=0)
        return old, self.run_next(two, *locks)


@pytest.fixture
def bench(redis_client: redis.Redis) -> Bench:
    return Bench(redis_client)


@pytest.fixture
def start_queue(bench: Bench) -> Callable[..., WorkQueue]:
    """A registered process whose lanes of driver `d` have a limit."""

    def start(concurrency: int = 10, **limits: float) -> WorkQueue:
        queue = bench.process()
        for kind in ("claims", "volumes"):
            queue.set_limits(f"{kind}|d", concurrency, **limits)
        return queue

    return start

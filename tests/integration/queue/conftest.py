"""Provide work queues with a settable clock and with a list in place of Celery."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
import redis

from tests.support.taking import due_keys, take
from workers.queue.keys import Key
from workers.queue.leases import Lease
from workers.queue.locks import Lock
from workers.queue.workqueue import WorkQueue


@dataclass
class Bench:
    """The processes of one installation, their common clock and all Celery lists they woke."""

    client: redis.Redis
    now_ms: int = 1_700_000_000_000
    woken: list[str] = field(default_factory=list)

    def process(self) -> WorkQueue:
        queue = WorkQueue(
            self.client,
            publish=self.woken.extend,
            clock=lambda: self.now_ms / 1000,
            now_ms=lambda: self.now_ms,
        )
        queue.register_process()
        return queue

    @property
    def due(self) -> list[Key]:
        """The due keys, lane by lane."""
        return due_keys(self.client)

    def advance(self, seconds: float) -> None:
        self.now_ms += round(seconds * 1000)

    def take(self, queue: WorkQueue, key: Key, *locks: Lock | str) -> Lease | None:
        """Return the lease of the next key of this key's lane, which must be this key, or None."""
        return take(queue, key, *locks)

    def may_take(self, queue: WorkQueue, *kinds: str) -> bool:
        """Return True if a key of these kinds (default: claims) of driver `d` can be taken now."""
        lease = queue.take("d", kinds or ["claims"])
        return lease is not None and queue.release(lease)

    def run_next(self, queue: WorkQueue, *locks: Lock | str) -> Lease:
        """Take the first due key. A lock given as a string is exclusive."""
        key = self.due[0]
        lease = queue.take(key.driver, [key.kind])
        assert lease is not None
        assert queue.enter(lease, [Lock(one) if isinstance(one, str) else one for one in locks])
        return lease

    def hand_over(self, one: WorkQueue, two: WorkQueue, *locks: Lock | str) -> tuple[Lease, Lease]:
        """Move the first due key from `one`, whose lease expires without a heartbeat, to `two`."""
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
    """Return a function that starts a process whose lanes of driver `d` have a limit."""

    def start(concurrency: int = 10, **limits: float) -> WorkQueue:
        queue = bench.process()
        for kind in ("claims", "volumes"):
            queue.set_limits(f"{kind}|d", concurrency, **limits)
        return queue

    return start

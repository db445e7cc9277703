"""The local half of a lease: a clock that passed the deadline forbids writes."""

from __future__ import annotations

import threading

import pytest

from workers.errors import LeaseLost, QueueUnavailable
from workers.queue.keys import volume_key
from workers.queue.leases import CatalogState, Heartbeat, Lease, Session
from workers.queue.locks import Lock


def make_lease(now: list[float]) -> Lease:
    session = Session(epoch="e", clock=lambda: now[0])
    state = CatalogState("e", {}, frozenset())
    key, locks = volume_key("d", "pv"), (Lock("pv"),)
    return Lease(key, locks, "t", 1, 0, "", 0.0, state, session, valid_until=10.0)


def test_check_passes_until_the_deadline_and_never_after_release() -> None:
    now = [9.9]
    lease = make_lease(now)
    lease.check()
    now[0] = 10.0
    with pytest.raises(LeaseLost, match=r"volumes\|d\|pv"):
        lease.check()
    now[0] = 0.0
    lease.is_released = True
    assert not lease.is_held()


def test_lost_lease_is_over_whatever_the_clock_says() -> None:
    lease = make_lease([0.0])
    lease.is_lost = True
    with pytest.raises(LeaseLost):
        lease.check()


def test_heartbeat_survives_an_unreachable_redis_and_stops() -> None:
    beats = threading.Semaphore(0)

    class Away:
        def heartbeat(self) -> bool:
            beats.release()
            raise QueueUnavailable("redis: away")

    heartbeat = Heartbeat(Away(), interval_seconds=60)
    heartbeat.start()
    assert beats.acquire(timeout=5)
    heartbeat.wake()
    assert beats.acquire(timeout=5), "wake renews at once"
    heartbeat.stop()

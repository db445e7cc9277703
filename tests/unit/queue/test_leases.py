"""The local half of a lease: once the clock has passed the deadline, writes are forbidden."""

from __future__ import annotations

import threading
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from workers.errors import LeaseLost, QueueUnavailable
from workers.queue.holding import HeldLeases
from workers.queue.keys import claim_key, volume_key
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


@pytest.mark.parametrize(
    ("permit", "is_held"),
    [(None, True), (lambda: True, True), (lambda: False, False)],
    ids=["nobody asks", "permitted", "the Go sidecar holds the Lease"],
)
def test_a_lease_is_held_while_this_process_may_work(permit: Any, is_held: bool) -> None:
    lease = make_lease([9.9])
    lease.permit = permit
    assert (lease.is_held(), lease.is_permitted()) == (is_held, is_held)
    lease.session.clock = lambda: 10.0
    assert not lease.is_held()


@pytest.mark.parametrize(
    ("key", "domain"),
    [
        (claim_key("d", "ns", "data", "u"), "pvc-u"),
        (claim_key("d@n", "ns", "data", "u"), "pvc-u@n"),
        (volume_key("d", "pvc-u"), ""),
    ],
)
def test_the_domain_of_a_lease_is_its_claims_uid_and_its_node(key, domain) -> None:
    lease = replace(make_lease([0.0]), locks=(Lock("vol"),), key=key)
    assert lease.domain == domain


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


def test_a_heartbeat_that_stops_has_stopped() -> None:
    """After that nothing is renewed, so the leases can be handed over."""
    did: list[Any] = []
    heartbeat = Heartbeat(SimpleNamespace(heartbeat=lambda: True))  # type: ignore[arg-type]
    loop: Any = SimpleNamespace(stop=lambda: did.append("stop"), join=did.append)
    heartbeat._loop = loop
    heartbeat.stop()
    assert did == ["stop", None]


class Losing:
    """Redis as the heartbeat sees it: it no longer knows the lease."""

    def __init__(self, *, is_new_life: bool, ends: str) -> None:
        self.told: list[str] = []
        self.lease = make_lease([0.0])
        self.is_away, self.ends_meanwhile = ends == "owed", ends == "meanwhile"
        wakeups: Any = SimpleNamespace()
        wakeups.publish = wakeups.hold = lambda *_: None
        scripts: Any = self
        self.held = HeldLeases(
            scripts, scripts, wakeups, ttl_ms=4000, clock=lambda: 0.0,
            on_lost=lambda: self.told.append("lost"), remembered=None,
        )  # fmt: skip
        self.held.session.epoch = "" if is_new_life else "e"
        self.held.held[self.lease.token] = self.lease
        if self.is_away:
            with pytest.raises(QueueUnavailable):
                self.held.end("done", self.lease)

    def new_life(self) -> str:
        return "e"

    def run(self, name: str, *_: Any) -> list[Any]:
        if name == "done":
            if self.is_away:
                raise QueueUnavailable("redis: away")
            return [[], 1]
        if self.ends_meanwhile:
            self.held.end("done", self.lease)
        return [1, 5, b"t"] if name == "renew" else [b"e", [], [b"t"], 5]

    def heartbeat(self) -> bool:
        return self.held.heartbeat(lambda *, is_new_life: None)


@pytest.mark.parametrize("is_new_life", [False, True], ids=["same life", "new life"])
def test_a_lease_that_redis_lost_is_over(is_new_life: bool) -> None:
    redis = Losing(is_new_life=is_new_life, ends="")
    assert redis.heartbeat()
    assert (redis.lease.is_lost, redis.told, redis.held.held) == (True, ["lost"], {})


@pytest.mark.parametrize("is_new_life", [False, True], ids=["same life", "new life"])
def test_a_lease_that_ended_during_the_heartbeat_was_not_lost(is_new_life: bool) -> None:
    redis = Losing(is_new_life=is_new_life, ends="meanwhile")
    assert not redis.heartbeat()
    assert (redis.lease.is_lost, redis.told, redis.held.held) == (False, [], {})


def test_a_lease_whose_end_is_owed_is_kept_until_that_is_written() -> None:
    """A new epoch does not restore it, but data that it wrote may still have to be restored."""
    redis = Losing(is_new_life=True, ends="owed")
    with pytest.raises(QueueUnavailable):
        redis.heartbeat()
    assert (redis.lease.is_lost, redis.told) == (False, [])
    assert redis.held.held == {"t": redis.lease}
    redis.is_away = False
    redis.heartbeat()
    assert redis.held.held == {}

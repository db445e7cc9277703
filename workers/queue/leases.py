"""Declares key leases, and renews those of this process.

Each lease has a deadline in Redis and an earlier one by the local clock. The heartbeat names every
lease that the process holds and moves both deadlines. A lease that it does not name, or that Redis
gave to another process, ends. After a stop (SIGSTOP, a paused virtual machine) the local clock
forbids a process to write, before Redis has answered (G9).
"""

from __future__ import annotations

import math
import os
import socket
import time
import uuid
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, Protocol

from workers.backoff import Backoff
from workers.deadlines import MARGIN_SECONDS, Deadline
from workers.errors import LeaseLost, QueueUnavailable
from workers.loop import Loop
from workers.queue.lifeline import is_gone

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from workers.queue.keys import Key
    from workers.queue.locks import Lock


# A process that is silent for this long counts as dead, and its keys are handed over.
TTL_SECONDS: Final = 4.0
# Ended processes that are remembered; beyond that all are forgotten and checked again.
_ENDED_KEPT: Final = 1000


def suspend_aware_clock() -> float:
    """Return seconds that also count while the process or the machine is stopped."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def process_name() -> str:
    """Return a new process id that shows where it runs: `<host>:<pid>:<random>`, no blanks."""
    host = "".join(socket.gethostname().split())
    return f"{host}:{os.getpid()}:{uuid.uuid4().hex[:16]}"


@dataclass(slots=True)
class Session:
    """This process's identity for Redis, and its estimate of the queue's clock.

    Args:
        epoch: the last known epoch of Redis, "" for none.
        clock: local seconds that also count while the process is stopped.
        caller: `Lifeline.caller` of this process if its death ends all its calls, else empty.
    """

    epoch: str = ""
    clock: Callable[[], float] = suspend_aware_clock
    process_id: str = field(default_factory=process_name)
    caller: str = ""
    # By caller: local seconds when this process found out that the caller had ended.
    _ended: dict[str, float] = field(default_factory=dict)
    # The queue's clock in seconds, and the local clock before and after it was read.
    _heard: tuple[float, float, float] = (0.0, 0.0, 0.0)

    def hear(self, now_ms: int, asked_at: float) -> None:
        """Note the time of the queue's clock from a reply of Redis."""
        self._heard = now_ms / 1000, asked_at, self.clock()

    def now(self) -> float:
        """Return the queue's clock in seconds, never ahead of it: a wait never ends too early."""
        heard, _, heard_at = self._heard
        return heard + self.clock() - heard_at

    def deadline(self, timeout_seconds: float) -> Deadline:
        """Return the time at which a call that begins now has certainly ended."""
        return replace(self.later(timeout_seconds + MARGIN_SECONDS), caller=self.caller)

    def later(self, seconds: float) -> Deadline:
        """Return the deadline `seconds` from now, never too early."""
        heard, asked_at, _ = self._heard
        return Deadline(heard + self.clock() - asked_at + seconds, seconds, self._life)

    def seconds_left(self, *deadlines: Deadline) -> float:
        """Return the seconds until the last of these deadlines; 0 for none.

        A call whose caller has certainly ended is over `MARGIN_SECONDS` after this process found
        out: the time that the driver needs to notice it, as after a deadline.
        """
        return max(map(self._seconds_left, deadlines), default=0.0)

    def _seconds_left(self, deadline: Deadline) -> float:
        left, caller = deadline.seconds_left(self.now(), self._life), deadline.caller
        if left <= 0 or not caller or not (caller in self._ended or is_gone(caller)):
            return left
        if len(self._ended) >= _ENDED_KEPT:
            self._ended.clear()
        found_out = self._ended.setdefault(caller, self.clock())
        return min(left, max(0.0, found_out + MARGIN_SECONDS - self.clock()))

    def latest(self, *deadlines: Deadline) -> Deadline:
        """Return the deadline that is furthest away; an empty one if all are over.

        It replaces all open deadlines, so it has a caller only if they all have the same: the death
        of one of several callers does not end the calls of the others.
        """
        waited = [(left, one) for one in deadlines if (left := self.seconds_left(one)) > 0]
        if not waited:
            return Deadline()
        _, found = max(waited, key=lambda pair: pair[0])
        is_of_one = len({one.caller for _, one in waited}) == 1
        return found if is_of_one else replace(found, caller="")

    @property
    def _life(self) -> float:
        """The start of the epoch, in seconds of the queue's clock."""
        birth = self.epoch.split(":")[1:2]
        return int(birth[0]) / 1000 if birth and birth[0].isdigit() else 0.0


@dataclass(frozen=True, slots=True)
class CatalogState:
    """The catalog's versions when the lease was taken; saves the reader a round trip."""

    epoch: str
    versions: dict[str, int]
    complete: frozenset[str]


@dataclass(slots=True)
class Lease:
    """The permission to work on one key.

    Args:
        key: the work.
        locks: the locks held with it.
        token: unique for each lease.
        fence: grows with every lease ever given; the owner with the higher one is newer.
        fails: consecutive counted failures so far (0 = first attempt).
        memo: text of the key's last `fail(memo=...)`, "" without one.
        mark: record of the key's last `WorkQueue.mark`, {} without one.
        permit: returns True if this process may work on such keys now (it depends on the Lease of
            a Go sidecar); None: always.
        waited_seconds: time from the first add to this lease.
        catalog: versions of the catalog at the moment of the lease.
        valid_until: local time until which the lease may be used; moved by the heartbeat.
        is_lost: another process owns the key.
        records: the claim's intent and unsaved PV as stored, and True if its PV was saved in the
            last minutes; for `IntentStore.opened`.
        written: records of this lease's open attempt, by slot: name and record. They are restored
            after Redis lost data.
        started_ms: start of the lease, by the queue's clock.
        asked_at: local time just before.
        seen: newest resourceVersion of the key's object in an event, or read or written by a
            pass, in the last minutes; 0 for none.
        takes_next: the caller takes the next key of the list itself; no wake-up is needed.
        domain: the name of the key's record, see `Key.record_name`.
    """

    key: Key
    locks: tuple[Lock, ...]
    token: str
    fence: int
    fails: int
    memo: str
    waited_seconds: float
    catalog: CatalogState
    session: Session
    is_released: bool = False
    records: tuple[bytes | None, bytes | None, bool] = (None, None, False)
    mark: Mapping[str, Any] = field(default_factory=dict)
    permit: Callable[[], bool] | None = None
    valid_until: float = math.inf
    is_lost: bool = False
    written: dict[str, tuple[str, bytes]] = field(default_factory=dict)
    started_ms: int = 0
    asked_at: float = 0.0
    seen: int = 0
    takes_next: bool = False
    domain: str = field(init=False)

    def __post_init__(self) -> None:
        self.domain = self.key.record_name

    @property
    def volume(self) -> str:
        """The name of the first lock, "" without locks; for claims and volumes the PV's name."""
        return self.locks[0].name if self.locks else ""

    def is_held(self) -> bool:
        """Return True if a write is still allowed."""
        return self.is_ours() and self.is_permitted()

    def is_ours(self) -> bool:
        """Return True if no other worker can have the key, permitted or not."""
        is_over = self.is_released or self.is_lost
        return not is_over and self.session.clock() < self.valid_until

    def is_permitted(self) -> bool:
        """Return True if this process may work on such keys, whether it has the lease or not."""
        return self.permit is None or self.permit()

    def check(self) -> None:
        """Call before each write.

        Raises:
            LeaseLost: the lease is over; write nothing, another worker may have the key.
        """
        if not self.is_held():
            raise LeaseLost(f"lease {self.fence} of {self.key.text} is lost, nothing is written")


CURRENT: ContextVar[Lease | None] = ContextVar("lease", default=None)
"""The lease of this thread's pass: code that waits between a check and its effect checks again."""


def guard_of_lease() -> Callable[[], None] | None:
    """Return the check of this thread's lease, for a write that may have to wait.

    None without a lease, or if the lease is already over: such a write needs no lease.
    """
    lease = CURRENT.get()
    return lease.check if lease is not None and lease.is_held() else None


@dataclass(frozen=True, slots=True)
class FailOutcome:
    """The result of `WorkQueue.fail`.

    Args:
        is_owner: False if the lease was lost; then no failure was counted.
        fails: consecutive failures including this one.
        delay_seconds: time until the retry; 0 if the key was added meanwhile, None for no retry.
    """

    is_owner: bool
    fails: int
    delay_seconds: float | None


class Renewable(Protocol):
    """The part of the queue a heartbeat needs."""

    def heartbeat(self) -> bool:
        """Renew all leases of the process; True if one was lost."""


class Heartbeat:
    """The thread that renews the leases of this process.

    It never runs gRPC or Kubernetes calls, so a slow driver cannot cost a lease.
    """

    def __init__(self, queue: Renewable, *, interval_seconds: float = 1.0) -> None:
        self._queue = queue
        self._interval_seconds = interval_seconds
        # After an error it retries as soon as after an outage of Redis: otherwise the process would
        # take keys and lose each of them.
        backoff = Backoff(interval_seconds / 2, interval_seconds)
        self._loop = Loop("lease-heartbeat", self._step, limit_seconds=60.0, backoff=backoff)

    def start(self) -> None:
        """Start renewing; call once."""
        self._loop.start()

    def wake(self) -> None:
        """Renew now, because Redis no longer knows this process."""
        self._loop.wake()

    def stop(self) -> None:
        """Stop renewing and wait for the thread; the leases then expire."""
        self._loop.stop()
        self._loop.join(None)

    def _step(self) -> float:
        # If Redis does not answer, the local deadline ends the leases.
        with suppress(QueueUnavailable):
            self._queue.heartbeat()
        return self._interval_seconds

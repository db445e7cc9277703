"""Declares leases on keys, and renews the leases of this process.

Every lease has a deadline in Redis, and an earlier one on the local clock. The heartbeat lists
every lease that the process holds, and extends both deadlines. A lease ends if the heartbeat does
not list it, or if Redis has given it to another process. If the process was stopped (SIGSTOP, a
paused virtual machine), the local clock prevents it from writing even before Redis answers (G9).
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


# A process that is silent for this long counts as dead, and its keys are given to other processes.
TTL_SECONDS: Final = 4.0
# The maximum number of ended processes to remember; if there are more, all are forgotten and
# checked again.
_ENDED_KEPT: Final = 1000


def suspend_aware_clock() -> float:
    """Return a local time in seconds that also advances while the process or machine is stopped."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def process_name() -> str:
    """Return a new process id of the form `<host>:<pid>:<random>`, which contains no blanks."""
    host = "".join(socket.gethostname().split())
    return f"{host}:{os.getpid()}:{uuid.uuid4().hex[:16]}"


@dataclass(slots=True)
class Session:
    """This process's identity in Redis, and its estimate of the queue's clock.

    Args:
        epoch: the last known epoch of Redis; "" for none.
        clock: returns the time in seconds of a local clock that keeps running while the
            process is stopped.
        caller: the `Lifeline.caller` of this process if all its calls end when it dies, else empty.
    """

    epoch: str = ""
    clock: Callable[[], float] = suspend_aware_clock
    process_id: str = field(default_factory=process_name)
    caller: str = ""
    # Maps callers to the local time in seconds at which this process found out that they had ended.
    _ended: dict[str, float] = field(default_factory=dict)
    # The time on the queue's clock in seconds, and the local times before and after it was read.
    _heard: tuple[float, float, float] = (0.0, 0.0, 0.0)

    def hear(self, now_ms: int, asked_at: float) -> None:
        """Record the queue's time, as read from a Redis reply."""
        self._heard = now_ms / 1000, asked_at, self.clock()

    def now(self) -> float:
        """Return the queue's time in seconds; it may be too low but is never too high.

        So no wait ends too early.
        """
        heard, _, heard_at = self._heard
        return heard + self.clock() - heard_at

    def deadline(self, timeout_seconds: float) -> Deadline:
        """Return the time by which a call that begins now will certainly have ended."""
        return replace(self.later(timeout_seconds + MARGIN_SECONDS), caller=self.caller)

    def later(self, seconds: float) -> Deadline:
        """Return the deadline that is `seconds` from now; it is never too early."""
        heard, asked_at, _ = self._heard
        return Deadline(heard + self.clock() - asked_at + seconds, seconds, self._life)

    def seconds_left(self, *deadlines: Deadline) -> float:
        """Return the seconds until the last of these deadlines; 0 if there are no deadlines.

        If a caller has certainly ended, its call counts as over `MARGIN_SECONDS` after this process
        found out. The driver needs that time to notice that the caller has ended, just as it needs
        time to notice that a deadline has passed.
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
        """Return the latest of these deadlines; an empty deadline if all of them have passed.

        The result replaces all open deadlines, so it has a caller only if they all have the same
        caller: one caller's death does not end the other callers' calls.
        """
        waited = [(left, one) for one in deadlines if (left := self.seconds_left(one)) > 0]
        if not waited:
            return Deadline()
        _, found = max(waited, key=lambda pair: pair[0])
        is_of_one = len({one.caller for _, one in waited}) == 1
        return found if is_of_one else replace(found, caller="")

    @property
    def _life(self) -> float:
        """The start of the epoch, in seconds on the queue's clock."""
        birth = self.epoch.split(":")[1:2]
        return int(birth[0]) / 1000 if birth and birth[0].isdigit() else 0.0


@dataclass(frozen=True, slots=True)
class CatalogState:
    """The catalog's versions when the lease was taken; they save the reader a round trip."""

    epoch: str
    versions: dict[str, int]
    complete: frozenset[str]


@dataclass(slots=True)
class Lease:
    """The permission to work on one key.

    Args:
        key: the key to work on.
        locks: the locks that are held with the lease.
        token: a string that is unique for each lease.
        fence: a number that grows with every new lease; the owner with the higher number is newer.
        fails: the number of consecutive counted failures so far (0 for the first attempt).
        memo: the string from the key's last `fail(memo=...)`; "" if there is none.
        mark: the record from the key's last `WorkQueue.mark`; {} if there is none.
        permit: returns True if this process may work on such keys now (this depends on a Go
            sidecar's Lease); None if it always may.
        waited_seconds: the time from the key's first addition until this lease.
        catalog: the catalog's versions at the moment of the lease.
        valid_until: the local time until which the lease may be used; the heartbeat extends it.
        is_lost: True if another process owns the key.
        records: the claim's intent and unsaved PV as stored, and whether its PV was saved in the
            last few minutes; for `IntentStore.opened`.
        written: the records of this lease's open attempt; maps each slot to (name, record). The
            records are restored after Redis has lost data.
        started_ms: the start of the lease, on the queue's clock.
        asked_at: the local time just before the lease was requested.
        seen: the newest resourceVersion of the key's object that an event reported, or that a
            reconcile read or wrote, in the last few minutes; 0 for none.
        takes_next: True if the caller itself takes the next key of the list, so that no message
            needs to be sent.
        domain: the name of the key's record (see `Key.record_name`).
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
        """The name of the first lock; "" if there is none.

        For claims and volumes, this is the name of the PV.
        """
        return self.locks[0].name if self.locks else ""

    def is_held(self) -> bool:
        """Return True if a write is still allowed."""
        return self.is_ours() and self.is_permitted()

    def is_ours(self) -> bool:
        """Return True if no other worker can have the key, even if `is_permitted` returns False."""
        is_over = self.is_released or self.is_lost
        return not is_over and self.session.clock() < self.valid_until

    def is_permitted(self) -> bool:
        """Return True if this process may work on keys of this kind and driver now.

        This does not depend on whether the process holds this lease.
        """
        return self.permit is None or self.permit()

    def check(self) -> None:
        """Check that the lease is still held; call this before each write.

        Raises:
            LeaseLost: the lease is over; write nothing, because another worker may have the key.
        """
        if not self.is_held():
            raise LeaseLost(
                f"lease {self.fence} of {self.key.text} was lost, so nothing was written"
            )


CURRENT: ContextVar[Lease | None] = ContextVar("lease", default=None)
"""The lease of the reconcile that runs in this thread. Code that waits between a check and its
effect uses it to check again.
"""


def guard_of_lease() -> Callable[[], None] | None:
    """Return the check of this thread's lease, for a write that may have to wait.

    Return None if there is no lease or it is already over: a write at that point does not depend on
    a lease.
    """
    lease = CURRENT.get()
    return lease.check if lease is not None and lease.is_held() else None


@dataclass(frozen=True, slots=True)
class FailOutcome:
    """The result of `WorkQueue.fail`.

    Args:
        is_owner: False if the lease was lost; no failure was then counted.
        fails: the number of consecutive failures, including this one.
        delay_seconds: the time until the retry; 0 if the key has been added meanwhile; None for no
            retry.
    """

    is_owner: bool
    fails: int
    delay_seconds: float | None


class Renewable(Protocol):
    """The methods of the queue that a heartbeat needs."""

    def heartbeat(self) -> bool:
        """Renew all leases of the process; return True if any lease was lost."""


class Heartbeat:
    """The thread that renews the leases of this process.

    It never makes gRPC or Kubernetes calls, so a slow driver cannot cause a lease to be lost.
    """

    def __init__(self, queue: Renewable, *, interval_seconds: float = 1.0) -> None:
        self._queue = queue
        self._interval_seconds = interval_seconds
        # After an error, the thread retries as quickly as after an outage of Redis. With longer
        # delays, the process would take keys and lose the lease of each of them.
        backoff = Backoff(interval_seconds / 2, interval_seconds)
        self._loop = Loop("lease-heartbeat", self._step, limit_seconds=60.0, backoff=backoff)

    def start(self) -> None:
        """Start the thread; call this once."""
        self._loop.start()

    def wake(self) -> None:
        """Renew now, because Redis no longer has a record of this process."""
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

"""Who owns a key right now, and how does the owner learn that it lost it?

Each lease has a deadline in Redis and one, earlier, by the local clock. The heartbeat names every
lease the process holds and moves both; one that it does not name, or that Redis gave to somebody
else, ends. A process that was stopped (SIGSTOP, a paused virtual machine) refuses to write by its
own clock before it has heard anything (G9).
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


# A process silent for so long is dead and its keys are handed over.
TTL_SECONDS: Final = 4.0
# Processes that ended and are remembered; more of them are looked at again.
_ENDED_KEPT: Final = 1000


def suspend_aware_clock() -> float:
    """Seconds that go on while the process or the machine is stopped."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def process_name() -> str:
    """A new process id that tells people where it runs: `<host>:<pid>:<random>`, no blanks."""
    host = "".join(socket.gethostname().split())
    return f"{host}:{os.getpid()}:{uuid.uuid4().hex[:16]}"


@dataclass(slots=True)
class Session:
    """This process as Redis knows it, and the queue's clock as the process follows it.

    Args:
        epoch: the life of Redis it last heard of, "" for none.
        clock: local seconds that go on while the process is stopped.
        caller: `Lifeline.caller` of this process if its death ends all its calls, else empty.
    """

    epoch: str = ""
    clock: Callable[[], float] = suspend_aware_clock
    process_id: str = field(default_factory=process_name)
    caller: str = ""
    # When this process found out that another one had ended: local seconds by caller.
    _ended: dict[str, float] = field(default_factory=dict)
    # Seconds of the queue's clock, and of the local one before they were asked for and after.
    _heard: tuple[float, float, float] = (0.0, 0.0, 0.0)

    def hear(self, now_ms: int, asked_at: float) -> None:
        """Redis said what time it is for the queue."""
        self._heard = now_ms / 1000, asked_at, self.clock()

    def now(self) -> float:
        """Seconds of the queue's clock, or a moment less: what is waited for is over by then."""
        heard, _, heard_at = self._heard
        return heard + self.clock() - heard_at

    def deadline(self, timeout_seconds: float) -> Deadline:
        """When a call that begins now has surely ended."""
        return replace(self.later(timeout_seconds + MARGIN_SECONDS), caller=self.caller)

    def later(self, seconds: float) -> Deadline:
        """A moment so long from now."""
        heard, asked_at, _ = self._heard
        return Deadline(heard + self.clock() - asked_at + seconds, seconds, self._life)

    def seconds_left(self, *deadlines: Deadline) -> float:
        """How long until the last of them; 0 for none.

        A call whose caller has certainly ended is over a moment after that was found out: what the
        driver needs to notice it, as after a deadline.
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
        """The deadline that is waited for longest, if any is.

        It stands for all that are waited for: where these are of several callers the death of one
        of them ends nothing.
        """
        waited = [(left, one) for one in deadlines if (left := self.seconds_left(one)) > 0]
        if not waited:
            return Deadline()
        _, found = max(waited, key=lambda pair: pair[0])
        is_of_one = len({one.caller for _, one in waited}) == 1
        return found if is_of_one else replace(found, caller="")

    @property
    def _life(self) -> float:
        """When it began: seconds of the queue's clock."""
        birth = self.epoch.split(":")[1:2]
        return int(birth[0]) / 1000 if birth and birth[0].isdigit() else 0.0


@dataclass(frozen=True, slots=True)
class CatalogState:
    """What the catalog looked like when the lease was taken; saves the reader a round trip."""

    epoch: str
    versions: dict[str, int]
    complete: frozenset[str]


@dataclass(slots=True)
class Lease:
    """The right to work on one key.

    Args:
        key: the work.
        locks: what is locked with it.
        fence: grows with every lease ever given; the higher one is the newer owner.
        fails: consecutive counted failures so far (0 = first attempt).
        memo: what the last `fail(memo=...)` of this key left, "" when nothing.
        mark: what the last `WorkQueue.mark` of this key left, {} when nothing.
        permit: says whether this process may work on such keys at all at this moment (the Lease of
            a Go sidecar); None: always.
        waited_seconds: time from the first add to this lease.
        catalog: versions of the catalog at the moment of the lease.
        valid_until: local time until which Redis counts the lease as ours; moved by the heartbeat.
        is_lost: somebody else owns the key by now.
        records: the claim's intent and unsaved PV as stored, and whether its PV was saved in the
            last minutes; for `IntentStore.opened`.
        written: what this lease wrote and has not finished, by slot: name and record. A Redis that
            lost it gets it again.
        started_ms: when it was given, by the queue's clock.
        asked_at: local time just before.
        seen: the newest resourceVersion of the key's object that an event told of, or a pass read
            or wrote, in the last minutes; 0 for none.
        takes_next: after its end the caller takes the next key of the list; nobody else needs to be
            woken for that.
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
        """The name of the first lock, "" without: for claims and volumes the PV's name."""
        return self.locks[0].name if self.locks else ""

    def is_held(self) -> bool:
        """Whether a write is still allowed."""
        return self.is_ours() and self.is_permitted()

    def is_ours(self) -> bool:
        """Whether no other worker may have the key, permitted or not."""
        is_over = self.is_released or self.is_lost
        return not is_over and self.session.clock() < self.valid_until

    def is_permitted(self) -> bool:
        """Whether this process may work on the key, whoever's it is among us."""
        return self.permit is None or self.permit()

    def check(self) -> None:
        """Call before each write.

        Raises:
            LeaseLost: the lease is over; write nothing, another worker may be at it.
        """
        if not self.is_held():
            raise LeaseLost(f"lease {self.fence} of {self.key.text} is lost, nothing is written")


CURRENT: ContextVar[Lease | None] = ContextVar("lease", default=None)
"""The lease of the pass in this thread: whoever waits between a check and its effect asks again."""


def guard_of_lease() -> Callable[[], None] | None:
    """Return the check of this thread's lease, for a write that may have to wait.

    None without a lease, or when it is over already: then the write is one that needs none.
    """
    lease = CURRENT.get()
    return lease.check if lease is not None and lease.is_held() else None


@dataclass(frozen=True, slots=True)
class FailOutcome:
    """What became of a failed key.

    Args:
        is_owner: False when the lease was lost; then nothing was counted.
        fails: consecutive failures including this one.
        delay_seconds: time until the retry, 0 when the key was added meanwhile, None when given up.
    """

    is_owner: bool
    fails: int
    delay_seconds: float | None


class Renewable(Protocol):
    """The part of the queue a heartbeat needs."""

    def heartbeat(self) -> bool:
        """Renew all leases of the process; True when one was lost."""


class Heartbeat:
    """The one thread per process that renews its leases.

    It never runs gRPC or Kubernetes calls, so a slow driver cannot cost a lease.
    """

    def __init__(self, queue: Renewable, *, interval_seconds: float = 1.0) -> None:
        self._queue = queue
        self._interval_seconds = interval_seconds
        # A defect must not cost more leases than Redis being away: the process would take keys
        # and never work on them.
        backoff = Backoff(interval_seconds / 2, interval_seconds)
        self._loop = Loop("lease-heartbeat", self._step, limit_seconds=60.0, backoff=backoff)

    def start(self) -> None:
        """Start renewing; call once."""
        self._loop.start()

    def wake(self) -> None:
        """Renew now: somebody noticed that the process is not registered any more."""
        self._loop.wake()

    def stop(self) -> None:
        """Stop renewing and wait for the thread; the leases then run out by themselves."""
        self._loop.stop()
        self._loop.join(None)

    def _step(self) -> float:
        # When Redis does not answer, the local deadline runs out by itself.
        with suppress(QueueUnavailable):
            self._queue.heartbeat()
        return self._interval_seconds

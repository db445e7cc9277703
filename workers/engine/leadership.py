"""Keeping the Leases of the Go sidecars in drop-in mode: a roll-over either way is safe (M-020).

While a stranger holds a Lease, a Go sidecar or workers of another Redis, its controller's lanes are
paused in ours for all of us: that is a fact about the world. What one process does not know (its
API server is away, its look is old) holds back that process alone: it takes no key, begins no call,
cancels those that run, and leaves the tickets to its fellows.

Whether a key may be worked on is asked of the election's own clock right before each effect, so
nothing here has to be in time for it: Redis may be empty, a request may hang. Each Lease is looked
after by itself, and so is what Redis is told of it.

Differences from client-go's elector: losing the Lease ends no process (F-023); a worker stands by
for its fellows without pausing; it is given back only by the last of them.
"""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol

from workers.backoff import Backoff
from workers.engine.election import Election, Leases, Standing
from workers.errors import QueueUnavailable
from workers.loop import Loop
from workers.observability.health import HEARTBEATS, LeaderHealth
from workers.observability.logging import get_logger
from workers.queue.keys import lane_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from workers.config.settings import LeaderSettings
    from workers.engine.leasename import LeaseIdentity
    from workers.observability.metrics import Metrics
    from workers.queue.workqueue import WorkQueue

_log = get_logger(__name__)

# Requests about Leases at once: a hanging one must not hold up the others.
_THREADS: Final = 16
_SOON_SECONDS: Final = 0.02


@dataclass(frozen=True, slots=True)
class Candidate:
    """One Lease that this process runs for.

    Args:
        queue_name: the driver part of its keys.
        lease: its name.
        kinds: of keys that the Lease is about.
    """

    queue_name: str
    lease: str
    kinds: tuple[str, ...]

    @property
    def lanes(self) -> tuple[str, ...]:
        """What stands still while a stranger holds it."""
        return tuple(lane_name(kind, self.queue_name) for kind in self.kinds)


class Lanes(Protocol):
    """Holding back and letting go, for all workers."""

    def pause(self, lanes: Iterable[str], reason: str, seconds: float) -> None:
        """Admit nothing of these lanes for so long."""

    def resume(self, lanes: Iterable[str]) -> None:
        """Admit again."""


class Fellows(Protocol):
    """Who else of us works because of a Lease; methods raise QueueUnavailable."""

    def installation(self, known: str) -> str:
        """What our Redis is called; `known` if it has no name any more."""

    def works(self, lease: str, identity: str, seconds: float) -> None:
        """This process may, for so long."""

    def is_last(self, lease: str, identity: str) -> bool:
        """True if surely nobody else does; this process does not any more."""


class QueueLanes:
    """Lanes in the queue."""

    def __init__(self, queue: WorkQueue) -> None:
        self._queue = queue

    def pause(self, lanes: Iterable[str], reason: str, seconds: float) -> None:
        """Admit nothing of these lanes for so long."""
        for lane in lanes:
            self._queue.pause(lane, reason, seconds=seconds, kind="lease")

    def resume(self, lanes: Iterable[str]) -> None:
        """Admit again."""
        for lane in lanes:
            self._queue.resume(lane, kind="lease")


@dataclass(slots=True)
class _Kept:
    """One Lease and what was said about it."""

    candidate: Candidate
    election: Election
    health: LeaderHealth
    due: float = field(default=float("-inf"))
    allowed: tuple[bool, bool] | None = None
    is_resumed: bool = False
    was_foreign: bool = False
    stepping: Future[None] | None = None
    telling: Future[None] | None = None


class Leadership:
    """All Leases of one worker process.

    Args:
        leases: the API server; each call must end within the renew deadline.
        settings: flags.
        identity: of this process.
        lanes: told what follows for all workers.
        fellows: asked before a Lease is given back.
        on_change: told a Lease, and whether its work is to be left to other processes, each time
            when what may be worked on here has changed.
        metrics: where the gauges are (F-024), None for none.
        clock: local seconds that go on while the machine is stopped.
    """

    def __init__(
        self,
        leases: Leases,
        settings: LeaderSettings,
        identity: LeaseIdentity,
        lanes: Lanes,
        *,
        fellows: Fellows,
        on_change: Callable[[Candidate, bool], None] = lambda *_: None,
        metrics: Metrics | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._leases = leases
        self._settings = settings
        self._identity = identity
        self._lanes = lanes
        self._fellows = fellows
        self._on_change = on_change
        self._metrics = metrics
        self._clock = clock
        self._kept: dict[Candidate, _Kept] = {}
        self._by_lane: dict[str, Election] = {}
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._loop: Loop | None = None
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="lease")

    def check(self) -> str:
        """Say which Lease of ours is overdue; "" for none (F-022)."""
        return "; ".join(filter(None, (one.health.check() for one in self._all())))

    def may_work(self, kind: str, queue_name: str) -> bool:
        """Tell whether keys of that kind and driver may be worked on here at this moment."""
        election = self._by_lane.get(lane_name(kind, queue_name))
        return election is not None and election.may_work()

    def step(self, candidates: Iterable[Candidate]) -> None:
        """Look after every Lease once, side by side, and wait for it.

        Raises:
            QueueUnavailable: Redis does not answer; the next step repeats what was not told.
        """
        self._join()
        kept = [self._of(one) for one in candidates]
        for one in self._pool.map(self._step, kept):
            self._tell(one)
        self.look()

    def start(self, candidates: Callable[[], Iterable[Candidate]]) -> None:
        """Look after each Lease when it is due, until `stop`, in a thread of its own."""
        period = self._settings.retry_period_seconds
        self._loop = Loop(
            "leases", lambda: self._round(candidates()), backoff=Backoff(period / 2, period)
        )
        self._loop.start()

    def look(self) -> None:
        """Let this process follow what its elections allow now; asks nobody."""
        for one in self._all():
            may_work = one.election.may_work()
            # A stranger's Lease stops the lanes for everybody; there is nothing to leave to others.
            is_back = not may_work and one.election.standing is not Standing.FOREIGN
            if one.allowed != (may_work, is_back):
                one.allowed = may_work, is_back
                self._on_change(one.candidate, is_back)

    def stop(self) -> None:
        """End `run`; the last of us gives back what is held. Call after the last work ended."""
        self._stopped.set()
        if self._loop is not None:
            self._loop.stop()
        self._pool.shutdown(wait=True, cancel_futures=True)
        for one in self._all():
            try:
                is_last = self._fellows.is_last(one.candidate.lease, self._identity.unique)
            except QueueUnavailable as error:
                _log.warning("lease runs out by itself", lease=one.candidate.lease, err=error)
                continue
            if is_last:
                one.election.release()

    def _all(self) -> list[_Kept]:
        with self._lock:
            return list(self._kept.values())

    def _of(self, candidate: Candidate) -> _Kept:
        with self._lock:
            known = self._kept.get(candidate)
            if known is None:
                election = Election(
                    self._leases,
                    candidate.lease,
                    self._identity,
                    self._settings,
                    clock=self._clock,
                    on_slow=self._slow_path(candidate.lease),
                )
                health = LeaderHealth(
                    candidate.lease, self._settings.lease_duration_seconds, self._clock
                )
                known = self._kept[candidate] = _Kept(candidate, election, health)
                self._by_lane |= dict.fromkeys(candidate.lanes, election)
            return known

    def _round(self, candidates: Iterable[Candidate]) -> float:
        """Begin what is due; returns the seconds until something else is."""
        self.look()
        now, next_at = self._clock(), self._clock() + self._settings.retry_period_seconds
        for one in [self._of(candidate) for candidate in candidates]:
            if one.due <= now and (one.stepping is None or one.stepping.done()):
                one.stepping = self._pool.submit(self._step_alone, one)
            elif one.due > now:
                next_at = min(next_at, one.due)
            if one.election.may_work():
                next_at = min(next_at, one.election.valid_until)
        return max(_SOON_SECONDS, next_at - self._clock())

    def _step_alone(self, one: _Kept) -> None:
        """Telling Redis is a task of its own: while it hangs the Lease must be renewed."""
        try:
            with HEARTBEATS.during(f"lease {one.candidate.lease}"):
                self._step(one)
        except Exception:  # noqa: BLE001 - nobody asks for the future's result
            _log.exception("unexpected error, lease not kept", lease=one.candidate.lease)
        if not self._stopped.is_set() and (one.telling is None or one.telling.done()):
            one.telling = self._pool.submit(self._tell_alone, one)
        if self._loop is not None:
            self._loop.wake()

    def _tell_alone(self, one: _Kept) -> None:
        try:
            with HEARTBEATS.during(f"lease {one.candidate.lease} in Redis"):
                self._tell(one)
        except QueueUnavailable as error:
            _log.warning("lanes do not follow the lease", lease=one.candidate.lease, err=error)
        except Exception:  # noqa: BLE001 - nobody asks for the future's result
            _log.exception("unexpected error, lanes do not follow", lease=one.candidate.lease)

    def _step(self, one: _Kept) -> _Kept:
        election = one.election
        election.step()
        one.due = self._clock() + election.pause_seconds()
        is_holder = election.standing is Standing.HELD
        if self._metrics is not None:
            self._metrics.leader_status.labels(election.name).set(int(is_holder))
        if not is_holder:
            one.health.lost()
        elif election.is_fresh:
            one.health.renewed()
        return one

    def _tell(self, one: _Kept) -> None:
        """What all workers have to know, as long as we know it ourselves."""
        election, candidate = one.election, one.candidate
        if not election.is_fresh:
            return
        if self._join() and election.standing is Standing.FOREIGN:
            one.due = float("-inf")  # it may be a fellow by the new name
        elif election.standing is Standing.FOREIGN:
            if not one.was_foreign:
                _log.warning(
                    "waits, the lease is held by another",
                    driver=candidate.queue_name,
                    lease=f"{self._settings.namespace}/{election.name}",
                    holder=election.holder,
                )
            one.was_foreign, one.is_resumed = True, False
            # Longer than a period, so that it lasts until the next step, and ends without us.
            span = 3 * self._settings.retry_period_seconds
            self._lanes.pause(candidate.lanes, f"lease held by {election.holder}", span)
        elif election.may_work():
            one.was_foreign = False
            seconds = election.valid_until - self._clock()
            self._fellows.works(candidate.lease, self._identity.unique, seconds)
            if not one.is_resumed:
                self._lanes.resume(candidate.lanes)
                one.is_resumed = True

    def _join(self) -> bool:
        """Whether our Redis has another name than before, after a loss of data."""
        with self._lock:
            known = self._identity.installation
        name = self._fellows.installation(known)
        with self._lock:
            return self._identity.join(name)

    def _slow_path(self, name: str) -> Callable[[], None]:
        """The counter of one Lease, at 0 from the start as client-go's (F-024)."""
        if self._metrics is None:
            return lambda: None
        return self._metrics.leader_slowpath.labels(name).inc

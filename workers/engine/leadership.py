"""Holds the Go sidecars' Leases in drop-in mode, so that switching back and forth is safe (M-020).

The workers of one Redis are peers, called fellows in the code. While a foreign holder (a Go
sidecar, or the workers of another Redis) holds a Lease, its controller's lanes are paused in this
Redis, for all workers. If only one process does not know the state of the Lease (its API server is
unreachable, or its last read is too old), only that process stops: it takes no key, begins no call,
cancels its running calls, and leaves the keys to its peers.

The election's own clock is checked immediately before each effect, so nothing in this module is
urgent, even if Redis is empty or a request hangs. Each Lease is renewed independently of the
others, and is also reported to Redis independently.

A worker that cannot reach its Redis for a long time can do no work. It lets its Leases expire,
because a foreign holder or a peer may be able to work.

Differences from client-go's elector: losing the Lease does not end the process (F-023), the
holder's peers work too, and only the last peer releases the Lease.
"""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol

from workers.backoff import Backoff
from workers.engine.election import Election, Leases, Standing
from workers.engine.leasename import OURS
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

# The number of threads for requests about Leases: a hanging request must not delay the others.
_THREADS: Final = 16
_SOON_SECONDS: Final = 0.02
SETTLED_PERIODS: Final = 2
"""Number of retry periods within which each worker has read its Redis's name and announced its work
at least once.
"""
# Number of Lease durations for which a Lease is kept while Redis is silent, because calls may still
# be running.
_DEAF_SHARE: Final = 4
# A new name of Redis makes all Leases due at once, unless the last new name came within this time.
_NEWS_SECONDS: Final = 1.0


@dataclass(frozen=True, slots=True)
class Candidate:
    """One Lease for which this process is a candidate.

    Args:
        queue_name: the driver part of the keys.
        lease: the name of the Lease.
        kinds: the kinds of keys that the Lease covers.
    """

    queue_name: str
    lease: str
    kinds: tuple[str, ...]

    @property
    def lanes(self) -> tuple[str, ...]:
        """The lanes to pause while a foreign holder has the Lease."""
        return tuple(lane_name(kind, self.queue_name) for kind in self.kinds)


class Lanes(Protocol):
    """Pauses and resumes lanes for all workers."""

    def pause(self, lanes: Iterable[str], reason: str, seconds: float) -> None:
        """Admit no key of these lanes for `seconds`."""

    def resume(self, lanes: Iterable[str]) -> None:
        """Admit keys of these lanes again."""


class Fellows(Protocol):
    """The register of the workers that work under each Lease.

    Methods may raise QueueUnavailable if Redis does not answer.
    """

    def installation(self, known: str) -> str:
        """Return the name of this Redis; if Redis has no name, give it the name `known`."""

    def works(self, lease: str, worker: str, seconds: float) -> None:
        """Record that this worker may work under the Lease for the next `seconds`."""

    def is_last(self, lease: str, worker: str) -> bool:
        """Remove this worker; return True if certainly no other worker works under the Lease."""


class QueueLanes:
    """Pauses and resumes lanes of the work queue."""

    def __init__(self, queue: WorkQueue) -> None:
        self._queue = queue

    def pause(self, lanes: Iterable[str], reason: str, seconds: float) -> None:
        """Admit no key of these lanes for `seconds`."""
        for lane in lanes:
            self._queue.pause(lane, reason, seconds=seconds, kind="lease")

    def resume(self, lanes: Iterable[str]) -> None:
        """Admit keys of these lanes again."""
        for lane in lanes:
            self._queue.resume(lane, kind="lease")


@dataclass(slots=True)
class _Kept:
    """One Lease, and its last report."""

    candidate: Candidate
    election: Election
    health: LeaderHealth
    due: float = field(default=float("-inf"))
    allowed: tuple[bool, bool] | None = None
    is_resumed: bool = False
    was_foreign: bool = False
    is_unsure: bool = False
    stepping: Future[None] | None = None
    telling: Future[None] | None = None


class Leadership:
    """The Leases for which one worker process is a candidate.

    Args:
        leases: reads and writes Leases; each call must end within the renew deadline.
        settings: the leader election settings from the flags.
        identity: the identity of this process.
        lanes: pauses and resumes lanes for all workers.
        fellows: the register of the workers under each Lease; asked before a Lease is released.
        on_trouble: called at each step with the reason that the state of a Lease is unknown, for
            operators.
        on_change: called when this process's permission to work under a Lease has changed. The
            arguments are the candidate, and whether its keys are left to other processes.
        metrics: the gauges to set (F-024); None for no gauges.
        clock: returns the time in seconds of a local clock that keeps running while the
            machine is suspended.
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
        on_trouble: Callable[[str], None] = lambda _: None,
        metrics: Metrics | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._leases = leases
        self._settings = settings
        self._identity = identity
        self._lanes = lanes
        self._fellows = fellows
        self._on_change, self._on_trouble = on_change, on_trouble
        self._metrics = metrics
        self._clock = clock
        self._kept: dict[Candidate, _Kept] = {}
        self._by_lane: dict[str, Election] = {}
        self._lock = threading.Lock()
        self._heard_at = self._named_at = clock()
        self._stopped = threading.Event()
        self._loop: Loop | None = None
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="lease")
        # The pools are separate so that a hanging Redis does not delay a renewal.
        self._tellers = ThreadPoolExecutor(_THREADS, thread_name_prefix="lease-told")

    def check(self) -> str:
        """Return the held Leases that are overdue for renewal; "" if there are none (F-022)."""
        return "; ".join(filter(None, (one.health.check() for one in self._all())))

    def may_work(self, kind: str, queue_name: str) -> bool:
        """Return True if this process may work now on keys of that kind and driver."""
        election = self._by_lane.get(lane_name(kind, queue_name))
        return election is not None and election.may_work()

    def step(self, candidates: Iterable[Candidate]) -> None:
        """Take one election step for every Lease, in parallel, and wait until all steps have ended.

        Raises:
            QueueUnavailable: Redis does not answer; the next step reports again.
        """
        self._join()
        kept = [self._of(one) for one in candidates]
        for one in self._pool.map(self._step, kept):
            self._tell(one)
        self.look()

    def start(self, candidates: Callable[[], Iterable[Candidate]]) -> None:
        """Start a thread that takes each Lease's election step when it is due, until `stop`."""
        period = self._settings.retry_period_seconds
        self._loop = Loop(
            "leases", lambda: self._round(candidates()), backoff=Backoff(period / 2, period)
        )
        self._loop.start()

    def look(self) -> None:
        """Call `on_change` for each Lease whose permission has changed, without any request."""
        for one in self._all():
            may_work = one.election.may_work()
            # A foreign holder's Lease pauses the lanes for all workers, so no peer can take over
            # the work.
            is_stranger = one.election.standing is Standing.FOREIGN and not one.is_unsure
            is_back = not may_work and not is_stranger
            if one.allowed != (may_work, is_back):
                one.allowed = may_work, is_back
                self._on_change(one.candidate, is_back)

    def stop(self) -> None:
        """Stop the thread; the last of the peers releases the Leases.

        Call this after the last reconcile has ended.
        """
        self._stopped.set()
        if self._loop is not None:
            self._loop.stop()
        self._pool.shutdown(wait=True, cancel_futures=True)
        self._tellers.shutdown(wait=True, cancel_futures=True)
        for one in self._all():
            try:
                is_last = self._fellows.is_last(one.candidate.lease, self._identity.unique)
            except QueueUnavailable as error:
                _log.warning(
                    "could not check for other workers; the Lease expires automatically",
                    lease=one.candidate.lease,
                    err=error,
                )
                continue
            if is_last:
                self._release(one.election)

    def _release(self, election: Election) -> None:
        try:
            election.release()
        except Exception:  # noqa: BLE001 - the other Leases must be released too
            _log.exception(
                "unexpected error while releasing the Lease; it expires automatically",
                lease=election.name,
            )

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
        """Begin the steps that are due; return the seconds until the next one is due."""
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
        """Take the election step of one Lease, and report its state to Redis in a separate task.

        The task is separate so that the report cannot delay renewals.
        """
        try:
            with HEARTBEATS.during(f"lease {one.candidate.lease}"):
                self._step(one)
        except Exception:  # noqa: BLE001 - nobody reads the future's result
            _log.exception("unexpected error while renewing the Lease", lease=one.candidate.lease)
        if not self._stopped.is_set() and (one.telling is None or one.telling.done()):
            one.telling = self._tellers.submit(self._tell_alone, one)
        self._wake()

    def _tell_alone(self, one: _Kept) -> None:
        try:
            with HEARTBEATS.during(f"lease {one.candidate.lease} in Redis"):
                self._tell(one)
        except QueueUnavailable as error:
            _log.warning(
                "could not open or close the driver's queue after a change of the Lease",
                lease=one.candidate.lease,
                err=error,
            )
        except Exception:  # noqa: BLE001 - nobody reads the future's result
            _log.exception(
                "unexpected error while opening or closing the driver's queue after a change "
                "of the Lease",
                lease=one.candidate.lease,
            )

    def _step(self, one: _Kept) -> _Kept:
        election = one.election
        try:
            if self._is_deaf():
                election.leave("Redis does not answer")
            else:
                election.step()
        finally:
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
        """Report one Lease to Redis, unless this process's view of it is outdated.

        If a foreign holder has the Lease, the lanes are paused for all workers. If this process may
        work, the process is registered and the lanes are resumed.
        """
        election, candidate = one.election, one.candidate
        self._join()
        if election.trouble:
            self._on_trouble(election.trouble)
        if not election.is_fresh:
            return
        if election.is_in_doubt:
            one.due = float("-inf")
            self._wake()
        one.is_unsure = self._is_unsure(one)
        if one.is_unsure:
            return
        if election.standing is Standing.FOREIGN:
            if not one.was_foreign:
                _log.warning(
                    "waiting because another program holds the Lease",
                    driver=candidate.queue_name,
                    lease=f"{self._settings.namespace}/{election.name}",
                    holder=election.holder,
                )
            one.was_foreign, one.is_resumed = True, False
            # The pause is longer than a period, so that it lasts until the next step but expires if
            # this process dies.
            span = 3 * self._settings.retry_period_seconds
            self._lanes.pause(candidate.lanes, f"Lease held by {election.holder}", span)
        elif election.may_work():
            one.was_foreign = False
            seconds = election.valid_until - self._clock()
            self._fellows.works(candidate.lease, self._identity.unique, seconds)
            if not one.is_resumed:
                self._lanes.resume(candidate.lanes)
                one.is_resumed = True

    def _join(self) -> None:
        """Read the name of this Redis.

        All Leases become due at once if Redis has been silent for a long time or has a new name. A
        name that changes again within `_NEWS_SECONDS` does not make them due.
        """
        name = self._fellows.installation(self._identity.installation)
        with self._lock:
            now, was_deaf = self._clock(), self._is_deaf()
            self._heard_at = now
            is_new = self._identity.join(name)
            is_news = is_new and now - self._named_at > _NEWS_SECONDS
            if is_new:
                self._named_at = now
            if not (is_news or was_deaf):
                return
            for one in self._kept.values():
                # Peers that learned the new name first took this process for a foreign holder, and
                # may have paused the lanes.
                one.due, one.is_resumed = float("-inf"), False
        self._wake()

    def _is_deaf(self) -> bool:
        deaf_after = _DEAF_SHARE * self._settings.lease_duration_seconds
        return self._clock() - self._heard_at > deaf_after

    def _is_unsure(self, one: _Kept) -> bool:
        """Return True if the foreign holder may be a peer that does not yet know Redis's new name.

        The lanes are then not paused, because that peer may be working on them.
        """
        election, period = one.election, self._settings.retry_period_seconds
        is_stranger = election.standing is Standing.FOREIGN and OURS in election.holder
        return is_stranger and self._clock() - self._named_at < SETTLED_PERIODS * period

    def _wake(self) -> None:
        if self._loop is not None:
            self._loop.wake()

    def _slow_path(self, name: str) -> Callable[[], None]:
        """Return a function that counts how often a Lease takes the slow path.

        As in client-go, the count is exported as 0 before the first slow path (F-024).
        """
        if self._metrics is None:
            return lambda: None
        return self._metrics.leader_slowpath.labels(name).inc

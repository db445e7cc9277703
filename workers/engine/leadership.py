"""Keeping the Leases of the Go sidecars in drop-in mode: a roll-over either way is safe (M-020).

While a stranger holds a Lease, a Go sidecar or workers of another Redis, its controller's lanes are
paused in ours for all of us: that is a fact about the world. What one process does not know (its
API server is away, its look is old) holds back that process alone: it takes no key, begins no call,
cancels those that run, and leaves the keys to its fellows.

Whether a key may be worked on is asked of the election's own clock right before each effect, so
nothing here has to be in time for it: Redis may be empty, a request may hang. Each Lease is looked
after by itself, and so is what Redis is told of it.

A worker that hears nothing of its Redis for long can do no work, and lets its Leases run out, for a
stranger or a fellow may be able to.

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

# Requests about Leases at once: a hanging one must not hold up the others.
_THREADS: Final = 16
_SOON_SECONDS: Final = 0.02
SETTLED_PERIODS: Final = 2
"""Retry periods in which each worker hears of its Redis, and says that it works, at least once."""
# Of the duration: so long a Lease is kept without a word of Redis, for the calls that still run.
_DEAF_SHARE: Final = 4
# Between two new names that are followed at once.
_NEWS_SECONDS: Final = 1.0


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

    def works(self, lease: str, worker: str, seconds: float) -> None:
        """That process may, for so long."""

    def is_last(self, lease: str, worker: str) -> bool:
        """True if surely nobody else does; that process does not any more."""


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
    is_unsure: bool = False
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
        on_trouble: told at each look why a Lease is not known, for people.
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
        # Apart: a Redis that hangs must keep nobody from renewing.
        self._tellers = ThreadPoolExecutor(_THREADS, thread_name_prefix="lease-told")

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
            is_stranger = one.election.standing is Standing.FOREIGN and not one.is_unsure
            is_back = not may_work and not is_stranger
            if one.allowed != (may_work, is_back):
                one.allowed = may_work, is_back
                self._on_change(one.candidate, is_back)

    def stop(self) -> None:
        """End `run`; the last of us gives back what is held. Call after the last work ended."""
        self._stopped.set()
        if self._loop is not None:
            self._loop.stop()
        self._pool.shutdown(wait=True, cancel_futures=True)
        self._tellers.shutdown(wait=True, cancel_futures=True)
        for one in self._all():
            try:
                is_last = self._fellows.is_last(one.candidate.lease, self._identity.unique)
            except QueueUnavailable as error:
                _log.warning("lease runs out by itself", lease=one.candidate.lease, err=error)
                continue
            if is_last:
                self._release(one.election)

    def _release(self, election: Election) -> None:
        try:
            election.release()
        except Exception:  # noqa: BLE001 - the others are to be given back, too
            _log.exception("unexpected error, lease runs out by itself", lease=election.name)

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
            one.telling = self._tellers.submit(self._tell_alone, one)
        self._wake()

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
        """What all workers have to know, as long as we know it ourselves."""
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

    def _join(self) -> None:
        """Hear what our Redis is called.

        A new name, or the end of a long silence, is followed at once; names that change all the
        time are not.
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
                # Who had the new name before us may have paused lanes, as a stranger to us.
                one.due, one.is_resumed = float("-inf"), False
        self._wake()

    def _is_deaf(self) -> bool:
        deaf_after = _DEAF_SHARE * self._settings.lease_duration_seconds
        return self._clock() - self._heard_at > deaf_after

    def _is_unsure(self, one: _Kept) -> bool:
        """Whether that stranger may turn out to be a fellow, once it has heard our Redis' name.

        Its lanes are not stopped for all of us: it may be at work on them.
        """
        election, period = one.election, self._settings.retry_period_seconds
        is_stranger = election.standing is Standing.FOREIGN and OURS in election.holder
        return is_stranger and self._clock() - self._named_at < SETTLED_PERIODS * period

    def _wake(self) -> None:
        if self._loop is not None:
            self._loop.wake()

    def _slow_path(self, name: str) -> Callable[[], None]:
        """The counter of one Lease, at 0 from the start as client-go's (F-024)."""
        if self._metrics is None:
            return lambda: None
        return self._metrics.leader_slowpath.labels(name).inc

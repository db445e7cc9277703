"""Which key is worked on next, by whom, and what happens when nobody finishes it?

client-go's workqueue over all processes (G1-G6, G10-G12), with limits. A key is ready (waits its
turn), running (leased), blocked (its volume is busy) or delayed. A Celery message names no key: it
says "work is due in this list", and one flag per list says that a message is on its way. Which key
is next, and whether the limits allow one, is decided when a thread takes it. Lost and doubled
messages do no harm.

Every script may be repeated after a lost reply, and a delayed copy of one may arrive at any time.
Redis may lose what it acknowledged at any point (a restart, a fail-over, a flush): the epoch
changes, living processes restore their leases and what they recorded under them, nothing new is
admitted meanwhile, and the watcher adds every undecided object again.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any

from workers.errors import LeaseLost
from workers.queue.declaring import Declared
from workers.queue.holding import HeldLeases, owner_of
from workers.queue.leases import (
    TTL_SECONDS,
    FailOutcome,
    Lease,
    suspend_aware_clock,
)
from workers.queue.limits import LaneLimits, LaneStats, PauseKind, read_stats
from workers.queue.locks import Lock, Mode, lock_name
from workers.queue.marks import Remembered
from workers.queue.scripts import Scripts
from workers.queue.seal import UNCHECKED
from workers.queue.wakeups import Wakeups

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    import redis

    from workers.queue.keys import Key
    from workers.queue.seal import Seal

# Keys per script call: keeps one call of Redis under a few milliseconds.
_BATCH = 250
# Keys one sweep moves at most; the next sweep takes the rest.
_SWEEP_LIMIT = 500
# Keys that are due one after the other are moved together.
_LEAST_PUMP_SECONDS = 0.02
# How often a sweep looks for records that somebody's hand broke.
_CHECK_MS = 5000
# Limits are declared again this often, and dropped when nobody did for so long.
_DECLARE_SECONDS = 600.0
_KEEP_LIMITS_MS = 3_600_000


class WorkQueue:
    """The queue as one process sees it; thread-safe, no call waits for another thread.

    Args:
        client: from `workers.queue.connection.connect`, in the Celery broker's database.
        publish: sends one message to each Celery list; may raise QueueUnavailable (the sweep
            repeats it).
        lease_ttl_seconds: a process silent for so long is dead and its keys are handed over.
        clock: local seconds for the lease deadline; must go on while the process is stopped.
        now_ms: tests only; overrides the clock of Redis.
        heartbeat_client: from `connect_heartbeat`, for `heartbeat` alone: a dead connection of the
            others must not cost the leases. None takes `client`.
        on_lost: called without arguments by `heartbeat` after leases were lost, and by `take` when
            Redis began a new life; use it to wake the heartbeat thread.
        before_limits: for `workers.queue.declaring.Declared`.
        seal: the workers' keys, for marks and memos; who takes no keys needs none.
        caller: see `workers.queue.leases.Session`.
    """

    def __init__(
        self,
        client: redis.Redis,
        *,
        publish: Callable[[list[str]], None],
        lease_ttl_seconds: float = TTL_SECONDS,
        heartbeat_client: redis.Redis | None = None,
        clock: Callable[[], float] = suspend_aware_clock,
        now_ms: Callable[[], int] | None = None,
        on_lost: Callable[[], None] = lambda: None,
        before_limits: Callable[[str], None] | None = None,
        seal: Seal = UNCHECKED,
        caller: str = "",
    ) -> None:
        self.scripts = Scripts(client, now_ms)
        self._remembered = Remembered(client, seal)
        self._now_ms = now_ms
        self._wakeups = Wakeups(publish)
        self._ttl_ms = round(lease_ttl_seconds * 1000)
        self._clock = clock
        self._heartbeats = Scripts(heartbeat_client or client, now_ms)
        self.declared = Declared(self.scripts, self._heartbeats, self._wakeups, before_limits)
        self._lease_pauses: dict[str, tuple[str, float]] = {}
        self._declared_at = clock()
        self._leases = HeldLeases(
            self.scripts,
            self._heartbeats,
            self._wakeups,
            ttl_ms=self._ttl_ms,
            clock=clock,
            on_lost=on_lost,
            remembered=self._remembered,
            caller=caller,
        )

    @property
    def epoch(self) -> str:
        """The life of Redis this process heard of, "" before; changes when data may be lost."""
        return self._leases.session.epoch

    def add(self, keys: Iterable[Key], *, delay_seconds: float = 0.0) -> None:
        """Make keys dirty: each is worked on at least once after this call (G2, G3, G4).

        A waiting key is not doubled, a running one runs once more afterwards. With a delay the
        earliest of several wins and an immediate add is never delayed (G10).

        Raises:
            QueueUnavailable: some keys may not have been added; add all again.
        """
        remaining = iter(keys)
        while batch := [key.text for key in islice(remaining, _BATCH)]:
            self._wakeups.publish(self.scripts.run("add", round(delay_seconds * 1000), *batch))

    def add_events(self, versions: Mapping[Key, str]) -> None:
        """Make keys dirty because of events: each event once, however many watchers tell of it.

        An event whose version, or a newer one, was added for its key within the last minute is the
        copy of another watcher: every pass since then has read an object at least as new (COR-15).

        Args:
            versions: by key, the resourceVersion of the event of the key's own object.

        Raises:
            QueueUnavailable: some keys may not have been added; add all again.
        """
        remaining = iter(versions.items())
        while batch := [part for key, one in islice(remaining, _BATCH) for part in (key.text, one)]:
            self._wakeups.publish(self.scripts.run("add_events", *batch))

    def register_process(self) -> None:
        """Meet Redis; needed before `take`, not for `add`."""
        self.heartbeat()

    def heartbeat(self) -> bool:
        """Renew all leases of this process; call each second from one thread.

        In a new life of Redis the leases, what was recorded under them and the limits are given
        back to it. Also ends the leases whose end could not be written while Redis was away.

        Returns:
            True when leases were lost: somebody newer has the key or one of its locks, or Redis
            had to take this process for dead.

        Raises:
            QueueUnavailable: not renewed; the leases end by themselves at the local deadline.
        """
        has_lost = self._leases.heartbeat(self._declare_again)
        if self._clock() - self._declared_at > _DECLARE_SECONDS:
            self._declare_again(is_new_life=False)
        return has_lost

    def take(self, driver: str, kinds: Sequence[str], *, is_woken: bool = False) -> Lease | None:
        """The next due key of some kinds of a driver, under a lease without locks.

        Which key it is, and whether limits, pauses and other drivers' turns allow one, is decided
        here and nowhere before. `enter` comes next.

        Args:
            driver: queue name, "" for kinds without a driver.
            kinds: share one Celery list.
            is_woken: a message of that list led to the call.

        Returns:
            None when nothing is due.
        """
        return self._leases.take(driver, kinds, is_woken=is_woken)

    def enter(self, lease: Lease, locks: Sequence[Lock]) -> bool:
        """Lock what the pass over a taken key needs, all or nothing.

        Args:
            lease: from `take`.
            locks: are held with the lease; intent and unsaved PV of the first one's name come with
                them.

        Returns:
            False when the lease is over: it was lost, or a lock is busy (the key becomes ready when
            that lock is released).
        """
        return self._leases.enter(lease, locks)

    def acquire(self, lease: Lease, *locks: Lock) -> Lock | None:
        """Take more locks for a lease, all or none; they go with it.

        A shared lock that the lease holds becomes exclusive when nobody else holds it.

        Returns:
            None when all are held, else the first busy one: `block` on it.

        Raises:
            LeaseLost: nothing was taken.
        """
        lease.check()
        # Whom we hold alone is asked for alone: Redis may have lost it in a fail-over.
        alone = {lock.name for lock in (*lease.locks, *locks) if lock.mode is Mode.EXCLUSIVE}
        wanted = [Lock(one.name) if one.name in alone else one for one in locks]
        busy = int(self.scripts.run("acquire", *owner_of(lease), *(one.text for one in wanted)))
        if busy < 0:
            raise LeaseLost(f"lease of {lease.key.text} is lost, no lock is taken")
        if busy:
            return wanted[busy - 1]
        known = {(lock.name, lock.mode) for lock in lease.locks}
        added = [one for one in wanted if (one.name, one.mode) not in known]
        kept = [lock for lock in lease.locks if lock.name not in {one.name for one in added}]
        lease.locks = (*kept, *dict.fromkeys(added))
        return None

    def unlock(self, lease: Lease, name: str) -> None:
        """Give a lock back before the lease ends; its waiters go on."""
        reply = self.scripts.run("unlock", *owner_of(lease), lock_name(name))
        lease.locks = tuple(lock for lock in lease.locks if lock.name != name)
        self._wakeups.publish(reply[0])

    def mark(self, lease: Lease, record: Mapping[str, Any]) -> None:
        """Replace what is remembered of the lease's key until `forget`; {} removes it.

        The next leases carry it as `lease.mark`. It survives this process, not the loss of Redis'
        data, and holds no secrets.

        Raises:
            LeaseLost: nothing was written.
            RecordTooLarge: the record is larger than 64 KiB.
        """
        raw = self._remembered.sealed_mark(lease.key, record)
        lease.check()
        known = lease.written.pop("marks", None)
        if raw:  # before it is sent: if Redis loses it, or the lease, it is written again
            lease.written["marks"] = lease.key.text, raw
        if not self.scripts.run("mark", *owner_of(lease), raw):
            lease.written.pop("marks", None)
            lease.written |= {} if known is None else {"marks": known}
            raise LeaseLost(f"lease of {lease.key.text} is lost, its mark is not written")
        lease.mark = dict(record)

    def sealed_copy(self, key: Key, record: bytes) -> bytes:
        """A record of the key as its mark would be, to be kept elsewhere too."""
        return self._remembered.sealed_copy(key, record)

    def is_our_copy(self, key: Key, stored: bytes) -> bool:
        """Whether a worker with our key made it, for this key."""
        return self._remembered.is_our_copy(key, stored)

    def marks_of(self, keys: Iterable[Key]) -> list[dict[str, Any]]:
        """What is remembered of other keys, in their order; {} for nothing.

        For keys of one object: who holds the object's lock is alone with their marks.
        """
        return self._remembered.marks_of(keys)

    def done(self, lease: Lease, *, finish_intent: bool = False, known: str = "") -> bool:
        """Success: forget the failures, release.

        Args:
            lease: from `take`.
            finish_intent: also delete the domain's intent and unsaved PV (M-010 step 5).
            known: the newest resourceVersion of the key's object that the pass read or wrote:
                events up to it, of its own writes say, lead to no further pass. "" for none.

        Returns:
            False when the lease had been lost; then nothing was changed. True for a repeated call.
        """
        if finish_intent:
            lease.written.clear()
        domain = lease.domain if finish_intent else ""
        return bool(self._leases.end("done", lease, domain, known)[0])

    def fail(
        self,
        lease: Lease,
        *,
        base_seconds: float,
        cap_seconds: float,
        min_delay_seconds: float = 0.0,
        threshold: int = 0,
        memo: str = "",
    ) -> FailOutcome:
        """Failure: count it, retry after max(base * 2^n capped, min_delay), release (L-015).

        Args:
            lease: from `take`.
            base_seconds: delay after the first failure.
            cap_seconds: longest back-off.
            min_delay_seconds: not earlier than this (slow set, L-063).
            threshold: give up when so many failures were counted before, 0 for never (L-016).
            memo: text handed to the next lease of this key, until `done` or `forget`; no secrets.
        """
        owner, fails, delay_ms = self._leases.end(
            "fail",
            lease,
            round(base_seconds * 1000),
            round(cap_seconds * 1000),
            round(min_delay_seconds * 1000),
            threshold,
            self._remembered.sealed_memo(lease.key, memo),
        )
        return FailOutcome(bool(owner), int(fails), None if delay_ms < 0 else delay_ms / 1000)

    def release(self, lease: Lease, *, delay_seconds: float = 0.0, count: bool = False) -> bool:
        """Put the key back, ready at once or after a delay, without a back-off step.

        Args:
            lease: from `take`.
            delay_seconds: 0 puts it in front of its lane.
            count: count a failure all the same.

        Returns:
            False when the lease had been lost.
        """
        return bool(self._leases.end("release", lease, round(delay_seconds * 1000), int(count))[0])

    def block(self, lease: Lease, lock: Lock) -> bool:
        """End the lease; the key waits for a busy lock and no counter changes.

        It is ready at once if the lock got free meanwhile.

        Returns:
            False when the lease had been lost.
        """
        return bool(self._leases.end("block", lease, lock.text)[0])

    def ensure(self, keys: Iterable[Key]) -> None:
        """Add the keys that neither wait, run nor have a retry planned; leave all others (M-010).

        For records that outlived the entry of their key. They count as retries' equals: no
        counter changes.
        """
        remaining = iter(keys)
        while batch := [key.text for key in islice(remaining, _BATCH)]:
            self._wakeups.publish(self.scripts.run("ensure", *batch))

    def forget(self, keys: Iterable[Key]) -> None:
        """Objects are gone: drop their keys' failure counter, memo, mark and delayed entry."""
        remaining = iter(keys)
        while batch := [key.text for key in islice(remaining, _BATCH)]:
            self.scripts.run("forget", *batch)

    def pump(self, *, period_seconds: float = 0.2) -> float:
        """Move what time has made due; returns the seconds until the next call, at most a period.

        Each call makes due delayed keys ready. Of all processes one per period does the rest: keys
        of dead processes become ready, and lists are woken whose message was lost. Bounded work per
        call; `period_seconds` 0 does it in any case.
        """
        due, lists = self.scripts.run(
            "sweep",
            round(period_seconds * 1000),
            _SWEEP_LIMIT,
            _CHECK_MS if period_seconds else 0,
            self._ttl_ms,
            _KEEP_LIMITS_MS,
        )
        self._wakeups.publish(lists)
        due_seconds = int(due) / 1000
        if due_seconds < 0:
            return period_seconds
        return min(period_seconds, max(_LEAST_PUMP_SECONDS, due_seconds))

    def set_limits(
        self,
        lane: str,
        concurrency: int,
        *,
        rate_per_second: float = 0.0,
        burst: int = 1,
        total: int = 0,
        hold_seconds: float = 0.0,
    ) -> None:
        """Declare a lane's limits; without any it admits nothing. Remembered for `heartbeat`.

        `total` bounds all calls of the lane's driver together; give it to each of their lanes.
        `hold_seconds` is how long a driver that takes one call at a time may still be at the call
        of a process that died.
        """
        limits = LaneLimits(concurrency, rate_per_second, burst, total, hold_seconds)
        self.declared.set(lane, limits)

    def pause(
        self,
        lane: str,
        reason: str,
        *,
        seconds: float | None = None,
        kind: PauseKind = "driver",
    ) -> None:
        """Stop admitting; running keys go on. `seconds` None = until `resume` of the same kind.

        A pause for a Lease is remembered: registering anew tells a Redis that lost its data.
        """
        if kind == "lease" and seconds is not None:
            self._lease_pauses[lane] = (reason, self._clock() + seconds)
        span_ms = 0 if seconds is None else round(seconds * 1000)
        self.scripts.run("pause", kind, span_ms, reason, lane)

    def resume(self, *lanes: str, kind: PauseKind = "driver") -> None:
        """End a pause; lanes admit unless paused for another kind."""
        if kind == "lease":
            for lane in lanes:
                self._lease_pauses.pop(lane, None)
        self._wakeups.publish(self.scripts.run("resume", kind, *lanes))

    def mirror_pauses(self, version: str, pauses: Mapping[str, str]) -> bool:
        """Take the operators' pauses of the API server; see `workers.queue.pauses`."""
        rows = (part for pair in pauses.items() for part in pair)
        is_taken, *lists = self.scripts.run("mirror", version, *rows)
        self._wakeups.publish(lists)
        return bool(is_taken)

    def stats(self) -> dict[str, LaneStats]:
        """Counts and ages by lane."""
        return read_stats(self.scripts.client, self._now_ms() if self._now_ms else None)

    def close(self) -> None:
        """Hand over the leases of this process at once. Safe to call twice."""
        self._leases.drop_all()
        process = self._leases.session.process_id
        self._wakeups.publish(self.scripts.run("unregister", process))

    def _declare_again(self, *, is_new_life: bool) -> None:
        started = self._clock()
        pauses = [
            ("lease", round((until - started) * 1000), reason, lane)
            for lane, (reason, until) in self._lease_pauses.copy().items()
            if until > started
        ]
        self._heartbeats.run_each("pause", pauses)  # before anything is admitted
        self.declared.again(is_new_life=is_new_life)
        self._declared_at = started

"""client-go's workqueue over all processes, with limits (G1-G6, G10-G12).

A key is ready (waits for its turn), running (leased), blocked (waits for a busy lock) or delayed. A
Celery message names no key: it means "work is due in this list", and a flag per list means that a
message is on its way. Only when a thread takes a key does a script choose it and check the limits.
Lost and doubled messages do no harm.

Every script may be repeated after a lost reply, and a delayed copy of a call may arrive at any
time. Redis may lose acknowledged writes at any point (a restart, a fail-over, a flush). Then the
epoch changes, living processes restore their leases and the records written under them, no new key
is admitted meanwhile, and the watcher adds every undecided object again.
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

# Keys per script call, so that a call takes at most a few milliseconds.
_BATCH = 250
# Most keys that one sweep moves; the next sweep moves the rest.
_SWEEP_LIMIT = 500
# Shortest pause between sweeps: keys that become due shortly after each other are moved together.
_LEAST_PUMP_SECONDS = 0.02
# Interval of the sweep's check for broken records, for instance after manual edits.
_CHECK_MS = 5000
# Interval at which limits are declared again, and the age at which Redis drops them.
_DECLARE_SECONDS = 600.0
_KEEP_LIMITS_MS = 3_600_000


class WorkQueue:
    """The queue as one process sees it; thread-safe, no call waits for another thread.

    Args:
        client: from `workers.queue.connection.connect`, in the Celery broker's database.
        publish: sends one message to each Celery list; may raise QueueUnavailable (the sweep
            repeats it).
        lease_ttl_seconds: a process silent for this long counts as dead; its keys are handed over.
        clock: local seconds for the lease deadline; must also count while the process is stopped.
        now_ms: tests only; overrides the clock of Redis.
        heartbeat_client: from `connect_heartbeat`, for `heartbeat` only: a dead connection of
            `client` must not cost the leases. None: `client`.
        on_lost: called by `heartbeat` after leases were lost, and by `take` when Redis began a new
            epoch; use it to wake the heartbeat thread.
        before_limits: for `workers.queue.declaring.Declared`.
        seal: the signing keys for marks and memos; a process that takes no keys needs none.
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
        """The last known epoch of Redis, "" before; changes when Redis may have lost data."""
        return self._leases.session.epoch

    def add(self, keys: Iterable[Key], *, delay_seconds: float = 0.0) -> None:
        """Make keys dirty: each key gets at least one pass after this call (G2, G3, G4).

        A waiting key is not added twice; a running key runs once more afterwards. Of several
        delays the earliest wins, and an immediate add is never delayed (G10).

        Raises:
            QueueUnavailable: some keys may not have been added; add all again.
        """
        remaining = iter(keys)
        while batch := [key.text for key in islice(remaining, _BATCH)]:
            self._wakeups.publish(self.scripts.run("add", round(delay_seconds * 1000), *batch))

    def add_events(self, versions: Mapping[Key, str]) -> None:
        """Make keys dirty because of events: each event once, however many watchers report it.

        An event is skipped if its version or a newer one was added for its key within the last
        minute, by another watcher: every pass since then has read an object at least as new.

        Args:
            versions: by key, the resourceVersion of the event of the key's own object.

        Raises:
            QueueUnavailable: some keys may not have been added; add all again.
        """
        remaining = iter(versions.items())
        while batch := [part for key, one in islice(remaining, _BATCH) for part in (key.text, one)]:
            self._wakeups.publish(self.scripts.run("add_events", *batch))

    def register_process(self) -> None:
        """Register this process in Redis; needed before `take`, not before `add`."""
        self.heartbeat()

    def heartbeat(self) -> bool:
        """Renew all leases of this process; call it every second from one thread.

        In a new epoch of Redis it restores the leases, the records written under them and the
        limits. It also ends the leases whose end could not be written while Redis was away.

        Returns:
            True if leases were lost: a newer owner has the key or one of its locks, or this
            process counted as dead.

        Raises:
            QueueUnavailable: not renewed; the leases end at the local deadline.
        """
        has_lost = self._leases.heartbeat(self._declare_again)
        if self._clock() - self._declared_at > _DECLARE_SECONDS:
            self._declare_again(is_new_life=False)
        return has_lost

    def take(self, driver: str, kinds: Sequence[str], *, is_woken: bool = False) -> Lease | None:
        """Take the next due key of some kinds of a driver, under a lease without locks.

        Only this call chooses the key, and checks limits, pauses and turns. Call `enter` next.

        Args:
            driver: queue name, "" for kinds without a driver.
            kinds: they share one Celery list.
            is_woken: a message of that list led to the call.

        Returns:
            None if no key may be taken, or Redis' reply came too late.
        """
        return self._leases.take(driver, kinds, is_woken=is_woken)

    def enter(self, lease: Lease, locks: Sequence[Lock]) -> bool:
        """Take the locks for the pass over a taken key, all or none.

        Args:
            lease: from `take`.
            locks: are held with the lease.

        Returns:
            False if the lease is over: it was lost, or a lock is busy (the key becomes ready when
            that lock is released).
        """
        return self._leases.enter(lease, locks)

    def acquire(self, lease: Lease, *locks: Lock) -> Lock | None:
        """Take more locks for a lease, all or none; they are released with it.

        A shared lock that the lease holds becomes exclusive if it has no other holder.

        Returns:
            None if all locks are held, else the first busy lock: `block` on it.

        Raises:
            LeaseLost: no lock was taken.
        """
        lease.check()
        # An exclusively held lock is requested as exclusive: Redis may have lost it in a fail-over.
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
        """Release a lock before the lease ends; keys that wait for it become ready."""
        reply = self.scripts.run("unlock", *owner_of(lease), lock_name(name))
        lease.locks = tuple(lock for lock in lease.locks if lock.name != name)
        self._wakeups.publish(reply[0])

    def mark(self, lease: Lease, record: Mapping[str, Any]) -> None:
        """Replace the mark of the lease's key, kept until `forget`; {} removes it.

        The next leases carry it as `lease.mark`. It survives this process, but not a loss of
        Redis' data, and must hold no secrets.

        Raises:
            LeaseLost: nothing was written.
            RecordTooLarge: the record is larger than 64 KiB.
        """
        raw = self._remembered.sealed_mark(lease.key, record)
        lease.check()
        known = dict(lease.written)
        lease.written.pop("marks", None)
        if raw:  # before it is sent: if Redis loses the mark or the lease, it is written again
            lease.written["marks"] = lease.key.text, raw
        if not self.scripts.run("mark", *owner_of(lease), raw):
            lease.written = known
            raise LeaseLost(f"lease of {lease.key.text} is lost, its mark is not written")
        lease.mark = dict(record)

    def sealed_copy(self, key: Key, record: bytes) -> bytes:
        """Return a record signed as the key's mark, to be stored outside Redis too."""
        return self._remembered.sealed_copy(key, record)

    def is_our_copy(self, key: Key, stored: bytes) -> bool:
        """Return True if a worker signed it for this key."""
        return self._remembered.is_our_copy(key, stored)

    def marks_of(self, keys: Iterable[Key]) -> list[dict[str, Any]]:
        """Return the marks of other keys, in the order of the keys; {} for none.

        For keys of one object: while the caller holds its lock, no other pass changes their marks.
        """
        return self._remembered.marks_of(keys)

    def done(self, lease: Lease, *, finish_intent: bool = False, known: str = "") -> bool:
        """Release the key after success and reset its failures.

        Args:
            lease: from `take`.
            finish_intent: also delete the domain's intent and unsaved PV (M-010 step 5).
            known: newest resourceVersion of the key's object that the pass read or wrote: events
                up to it, for instance of its own writes, cause no further pass. "" for none.

        Returns:
            False if the lease had been lost; then only its key is added again. Else True.
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
        """Count a failure, retry after max(base * 2^n capped, min_delay), release (L-015).

        Args:
            lease: from `take`.
            base_seconds: delay after the first failure.
            cap_seconds: longest back-off.
            min_delay_seconds: shortest delay (slow set, L-063).
            threshold: stop retrying if this many failures were counted before, 0: never (L-016).
            memo: text for the next lease of this key, until `done` or `forget`; no secrets.
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
            delay_seconds: 0 puts the key at the front of its lane.
            count: count a failure anyway.

        Returns:
            False if the lease had been lost.
        """
        return bool(self._leases.end("release", lease, round(delay_seconds * 1000), int(count))[0])

    def block(self, lease: Lease, lock: Lock) -> bool:
        """End the lease; the key waits for a busy lock and no counter changes.

        The key is ready at once if the lock has been released meanwhile.

        Returns:
            False if the lease had been lost.
        """
        return bool(self._leases.end("block", lease, lock.text)[0])

    def ensure(self, keys: Iterable[Key]) -> None:
        """Add the keys that are nowhere in the queue, not even past their retry limit (M-010).

        For records whose key has left the queue. No counter changes.
        """
        remaining = iter(keys)
        while batch := [key.text for key in islice(remaining, _BATCH)]:
            self._wakeups.publish(self.scripts.run("ensure", *batch))

    def forget(self, keys: Iterable[Key]) -> None:
        """Drop the failure counter, memo, mark and delayed entry of deleted objects' keys."""
        remaining = iter(keys)
        while batch := [key.text for key in islice(remaining, _BATCH)]:
            self.scripts.run("forget", *batch)

    def pump(self, *, period_seconds: float = 0.2) -> float:
        """Make due keys ready; returns the seconds until the next call, at most a period.

        Each call moves due delayed keys. One of all processes per period does the rest: it makes
        keys of dead processes ready, and wakes lists whose message was lost. A call's work is
        bounded. With `period_seconds` 0 every call does all of it.
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
        """Declare a lane's limits, without which it admits no key. `heartbeat` repeats them.

        `total` bounds all calls of the lane's driver together; pass it for each of its lanes.
        `hold_seconds` is how long a driver that takes one call at a time may still run the call of
        a dead process.
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
        """Stop admitting; running keys continue. `seconds` None = until `resume` of the same kind.

        A pause for a Lease is remembered here, and restored in a Redis that lost its data.
        """
        if kind == "lease" and seconds is not None:
            self._lease_pauses[lane] = (reason, self._clock() + seconds)
        span_ms = 0 if seconds is None else round(seconds * 1000)
        self.scripts.run("pause", kind, span_ms, reason, lane)

    def resume(self, *lanes: str, kind: PauseKind = "driver") -> None:
        """End a pause; the lanes admit keys again unless they have a pause of another kind."""
        if kind == "lease":
            for lane in lanes:
                self._lease_pauses.pop(lane, None)
        self._wakeups.publish(self.scripts.run("resume", kind, *lanes))

    def mirror_pauses(self, version: str, pauses: Mapping[str, str]) -> bool:
        """Store the operators' pauses of the API server; see `workers.queue.pauses`."""
        rows = (part for pair in pauses.items() for part in pair)
        is_taken, *lists = self.scripts.run("mirror", version, *rows)
        self._wakeups.publish(lists)
        return bool(is_taken)

    def stats(self) -> dict[str, LaneStats]:
        """Return counts and ages by lane."""
        return read_stats(self.scripts.client, self._now_ms() if self._now_ms else None)

    def close(self) -> None:
        """Give up the leases of this process at once. Safe to call twice."""
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

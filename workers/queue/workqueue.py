"""Provides client-go's workqueue across all processes, with limits (G1-G6, G10-G12).

A key is ready (waiting for its turn), running (leased), blocked (waiting for a busy lock) or
delayed. A Celery message contains no key. It means "work is due in this list", and a flag per list
records that a message is on its way. A script chooses the key and checks the limits only when a
thread takes a key. Lost or duplicate messages do no harm.

Every script may be repeated after a lost reply, and a delayed copy of a call may arrive at any
time. Redis may lose acknowledged writes at any point (in a restart, a fail-over or a flush). The
epoch then changes, live processes restore their leases and the records written under them, and no
new key is admitted meanwhile. The watcher adds every object that may need a reconcile again.
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

# The number of keys per script call, so that a call takes at most a few milliseconds.
_BATCH = 250
# The maximum number of keys that one sweep moves; the next sweep moves the rest.
_SWEEP_LIMIT = 500
# The shortest pause between two sweeps, so that keys that become due in quick succession are moved
# together.
_LEAST_PUMP_SECONDS = 0.02
# The interval in ms at which the sweep checks for broken records, for example after manual edits.
_CHECK_MS = 5000
# The interval at which limits are declared again, and the age at which Redis drops them.
_DECLARE_SECONDS = 600.0
_KEEP_LIMITS_MS = 3_600_000


class WorkQueue:
    """The queue as one process sees it; thread-safe, and no call waits for another thread.

    Args:
        client: a client from `workers.queue.connection.connect`, for the Celery broker's database.
        publish: sends one message to each Celery list; may raise QueueUnavailable (the sweep
            repeats the message).
        lease_ttl_seconds: a process that is silent for this long counts as dead, and its keys
            are given to other processes.
        clock: returns the time in seconds for the lease deadline; this local clock must keep
            running while the process is stopped.
        now_ms: returns the time to use in place of Redis's time; used only by tests.
        heartbeat_client: a client from `connect_heartbeat`, used only by `heartbeat`, so that a
            dead connection of `client` does not cause leases to be lost. If None, `client` is
            used.
        on_lost: called by `heartbeat` after leases have been lost, and by `take` when Redis has
            begun a new epoch; use it to wake the heartbeat thread.
        before_limits: passed to `workers.queue.declaring.Declared`.
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
        """The last known epoch of Redis, initially ""; it changes if Redis may have lost data."""
        return self._leases.session.epoch

    def add(self, keys: Iterable[Key], *, delay_seconds: float = 0.0) -> None:
        """Make keys dirty: each key is reconciled at least once after this call (G2, G3, G4).

        A waiting key is not added twice; a running key is reconciled once more afterwards. If a key
        is added with several delays, the shortest delay applies, and an immediate add is never
        delayed (G10).

        Raises:
            QueueUnavailable: some keys may not have been added; add all of them again.
        """
        remaining = iter(keys)
        while batch := [key.text for key in islice(remaining, _BATCH)]:
            self._wakeups.publish(self.scripts.run("add", round(delay_seconds * 1000), *batch))

    def add_events(self, versions: Mapping[Key, str]) -> None:
        """Make keys dirty because of events; several watchers may report the same event.

        An event is skipped if another watcher has added its version or a newer one for its key
        within the last minute: every reconcile since then has read the object in that version or a
        newer one.

        Args:
            versions: maps keys to the resourceVersion of the key's own object in the event.

        Raises:
            QueueUnavailable: some keys may not have been added; add all of them again.
        """
        remaining = iter(versions.items())
        while batch := [part for key, one in islice(remaining, _BATCH) for part in (key.text, one)]:
            self._wakeups.publish(self.scripts.run("add_events", *batch))

    def register_process(self) -> None:
        """Register this process in Redis; this is needed before `take`, but not before `add`."""
        self.heartbeat()

    def heartbeat(self) -> bool:
        """Renew all leases of this process; call this every second from one thread.

        In a new epoch of Redis, this restores the leases, the records written under them and the
        limits. It also ends the leases whose end could not be written while Redis was unavailable.

        Returns:
            True if leases were lost: a newer owner has the key or one of its locks, or this
            process was considered dead.

        Raises:
            QueueUnavailable: the leases were not renewed; they end at the local deadline.
        """
        has_lost = self._leases.heartbeat(self._declare_again)
        if self._clock() - self._declared_at > _DECLARE_SECONDS:
            self._declare_again(is_new_life=False)
        return has_lost

    def take(self, driver: str, kinds: Sequence[str], *, is_woken: bool = False) -> Lease | None:
        """Take a driver's next due key of some kinds, under a lease without locks.

        Only this call chooses keys and checks limits, pauses and turns. Call `enter` next.

        Args:
            driver: the driver's queue name; "" for kinds without a driver.
            kinds: the kinds of key to take; they must share one Celery list.
            is_woken: True if a message of that list led to this call.

        Returns:
            None if no key may be taken, or if the Redis reply arrived too late.
        """
        return self._leases.take(driver, kinds, is_woken=is_woken)

    def enter(self, lease: Lease, locks: Sequence[Lock]) -> bool:
        """Take the locks for reconciling a taken key, all or none.

        Args:
            lease: a lease from `take`.
            locks: the locks to take; they are held with the lease.

        Returns:
            False if the lease is over, because it has been lost or because a lock is busy. In the
            second case, the key becomes ready when that lock is released.
        """
        return self._leases.enter(lease, locks)

    def acquire(self, lease: Lease, *locks: Lock) -> Lock | None:
        """Take more locks for a lease, all or none; they are released with the lease.

        A shared lock that the lease already holds becomes exclusive if it has no other holder.

        Returns:
            None if all locks are now held, otherwise the first busy lock. Pass that lock to
            `block`.

        Raises:
            LeaseLost: no lock was taken.
        """
        lease.check()
        # A lock that is held exclusively is requested as exclusive again, because Redis may have
        # lost it in a fail-over.
        alone = {lock.name for lock in (*lease.locks, *locks) if lock.mode is Mode.EXCLUSIVE}
        wanted = [Lock(one.name) if one.name in alone else one for one in locks]
        busy = int(self.scripts.run("acquire", *owner_of(lease), *(one.text for one in wanted)))
        if busy < 0:
            raise LeaseLost(f"the lease of {lease.key.text} was lost, so no lock was taken")
        if busy:
            return wanted[busy - 1]
        known = {(lock.name, lock.mode) for lock in lease.locks}
        added = [one for one in wanted if (one.name, one.mode) not in known]
        kept = [lock for lock in lease.locks if lock.name not in {one.name for one in added}]
        lease.locks = (*kept, *dict.fromkeys(added))
        return None

    def unlock(self, lease: Lease, name: str) -> None:
        """Release a lock before the lease ends; keys that are waiting for the lock become ready."""
        reply = self.scripts.run("unlock", *owner_of(lease), lock_name(name))
        lease.locks = tuple(lock for lock in lease.locks if lock.name != name)
        self._wakeups.publish(reply[0])

    def mark(self, lease: Lease, record: Mapping[str, Any]) -> None:
        """Replace the mark of the lease's key; the mark is kept until `forget`; {} removes it.

        The key's next leases have it as `lease.mark`. It survives the end of this process, but not
        a loss of Redis data. It must contain no secrets.

        Raises:
            LeaseLost: nothing was written.
            RecordTooLarge: the record is larger than 64 KiB.
        """
        raw = self._remembered.sealed_mark(lease.key, record)
        lease.check()
        known = dict(lease.written)
        lease.written.pop("marks", None)
        if raw:  # before sending it: if Redis loses the mark or the lease, it is written again
            lease.written["marks"] = lease.key.text, raw
        if not self.scripts.run("mark", *owner_of(lease), raw):
            lease.written = known
            raise LeaseLost(f"the lease of {lease.key.text} was lost, so its mark was not written")
        lease.mark = dict(record)

    def sealed_copy(self, key: Key, record: bytes) -> bytes:
        """Return a record signed like the key's mark, for storing outside Redis as well."""
        return self._remembered.sealed_copy(key, record)

    def is_our_copy(self, key: Key, stored: bytes) -> bool:
        """Return True if a worker signed this copy for this key."""
        return self._remembered.is_our_copy(key, stored)

    def marks_of(self, keys: Iterable[Key]) -> list[dict[str, Any]]:
        """Return the marks of other keys, in the order of the keys; {} for a key without a mark.

        Use this for keys of one object: while the caller holds the object's lock, no other
        reconcile changes their marks.
        """
        return self._remembered.marks_of(keys)

    def done(self, lease: Lease, *, finish_intent: bool = False, known: str = "") -> bool:
        """Release the key after a success and reset its failure count.

        Args:
            lease: a lease from `take`.
            finish_intent: True to delete the domain's intent and unsaved PV as well (M-010 step 5).
            known: the newest resourceVersion of the key's object that the reconcile read or wrote;
                "" for none. Events up to this version, for instance from its own writes, cause no
                further reconcile.

        Returns:
            False if the lease had been lost; in that case nothing is reset, and the key is only
            added again.
        """
        if finish_intent:
            lease.written.clear()
        domain = lease.domain if finish_intent else ""
        return bool(self._leases.end("done", lease, domain, known, lease.catalog.epoch)[0])

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
        """Count a failure and release the key for a retry after a back-off (L-015).

        The delay is max(min(base * 2^n, cap), min_delay) seconds.

        Args:
            lease: a lease from `take`.
            base_seconds: the delay after the first failure.
            cap_seconds: the longest back-off.
            min_delay_seconds: the shortest delay (slow set, L-063).
            threshold: the number of earlier failures at which retrying stops; 0 for no limit
                (L-016).
            memo: a string for the next lease of this key, kept until `done` or `forget`; it must
                contain no secrets.
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
            lease: a lease from `take`.
            delay_seconds: the delay; 0 puts the key at the front of its lane.
            count: True to count the reconcile as a failure.

        Returns:
            False if the lease had been lost.
        """
        return bool(self._leases.end("release", lease, round(delay_seconds * 1000), int(count))[0])

    def block(self, lease: Lease, lock: Lock) -> bool:
        """End the lease and let the key wait for a busy lock; no counter changes.

        If the lock has been released meanwhile, the key is ready at once.

        Returns:
            False if the lease had been lost.
        """
        return bool(self._leases.end("block", lease, lock.text)[0])

    def ensure(self, keys: Iterable[Key]) -> None:
        """Add the keys that are nowhere in the queue, not even past their retry limit (M-010).

        Used for records whose key has left the queue. No counter changes.
        """
        remaining = iter(keys)
        while batch := [key.text for key in islice(remaining, _BATCH)]:
            self._wakeups.publish(self.scripts.run("ensure", *batch))

    def forget(self, keys: Iterable[Key]) -> None:
        """Drop the failure count, memo, mark and delayed entry of deleted objects' keys."""
        remaining = iter(keys)
        while batch := [key.text for key in islice(remaining, _BATCH)]:
            self.scripts.run("forget", *batch)

    def pump(self, *, period_seconds: float = 0.2) -> float:
        """Make due keys ready; return the seconds until the next call, at most one period.

        Every call moves delayed keys that are due. In each period, one of all processes does the
        rest: it makes dead processes' keys ready, and sends a new message for each list whose
        message was lost. The amount of work per call is bounded. If `period_seconds` is 0, every
        call does all of it.
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
        """Declare a lane's limits; without limits, it admits no key; `heartbeat` renews them.

        `total` limits all calls to the lane's driver together; pass it for each of the driver's
        lanes. `hold_seconds` is for a driver that accepts only one call at a time: how long a dead
        process's call may still run.
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
        """Stop admitting keys in a lane; running keys continue.

        If `seconds` is None, the pause lasts until `resume` is called for the same kind. This
        process also remembers pauses of the kind `lease`, and restores them in a Redis that has
        lost its data.
        """
        if kind == "lease" and seconds is not None:
            self._lease_pauses[lane] = (reason, self._clock() + seconds)
        span_ms = 0 if seconds is None else round(seconds * 1000)
        self.scripts.run("pause", kind, span_ms, reason, lane)

    def resume(self, *lanes: str, kind: PauseKind = "driver") -> None:
        """End a pause; the lanes admit keys again unless they have another kind of pause."""
        if kind == "lease":
            for lane in lanes:
                self._lease_pauses.pop(lane, None)
        self._wakeups.publish(self.scripts.run("resume", kind, *lanes))

    def mirror_pauses(self, version: str, pauses: Mapping[str, str]) -> bool:
        """Store the operators' pauses from the API server; see `workers.queue.pauses`."""
        rows = (part for pair in pauses.items() for part in pair)
        is_taken, *lists = self.scripts.run("mirror", version, *rows)
        self._wakeups.publish(lists)
        return bool(is_taken)

    def stats(self) -> dict[str, LaneStats]:
        """Return counts and ages, by lane."""
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
        self._heartbeats.run_each("pause", pauses)  # before any key is admitted
        self.declared.again(is_new_life=is_new_life)
        self._declared_at = started

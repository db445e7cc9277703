"""Keeps the leases of this process, and restores them after Redis has lost data.

Once per second, a heartbeat sends the names of all leases of the process. In the same epoch, the
heartbeat extends their deadlines. In a new epoch (after a restart, a fail-over or a flush), it
restores the leases and the records that were written under them. If Redis has not confirmed that a
lease has ended, the lease is kept here until this has been written.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, Final, Protocol
from uuid import uuid4

from workers.errors import QueueUnavailable
from workers.observability import trail
from workers.observability.logging import get_logger
from workers.queue.keys import Key
from workers.queue.leases import CatalogState, Lease, Session
from workers.queue.scripts import Scripts, text, whole

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from workers.queue.locks import Lock
    from workers.queue.marks import Remembered
    from workers.queue.wakeups import Wakeups

_log = get_logger(__name__)

# The share of the TTL that is left unused, because a write takes some time after its lease is
# checked.
_MARGIN: Final = 1 / 8


class Declare(Protocol):
    """A function that declares the limits to Redis again."""

    def __call__(self, *, is_new_life: bool) -> None:
        """Declare all limits; `is_new_life`: Redis may have forgotten dead processes' calls."""


class HeldLeases:
    """The leases of one process; thread-safe.

    Args:
        scripts: runs the scripts that take, enter and end leases.
        heartbeats: runs scripts over a separate client, for the heartbeat's thread.
        wakeups: receives the Celery lists that need a message after the end of a lease.
        ttl_ms: how long Redis keeps a lease that is not renewed.
        clock: returns the time in seconds of a local clock that keeps running while the
            process is stopped.
        on_lost: called after leases have been lost, or when Redis has begun a new epoch.
        remembered: reads marks and memos.
        caller: the `caller` of the session.
    """

    def __init__(
        self,
        scripts: Scripts,
        heartbeats: Scripts,
        wakeups: Wakeups,
        *,
        ttl_ms: int,
        clock: Callable[[], float],
        on_lost: Callable[[], None],
        remembered: Remembered,
        caller: str = "",
    ) -> None:
        self._scripts = scripts
        self._heartbeats = heartbeats
        self._wakeups = wakeups
        self._ttl_ms = ttl_ms
        self._clock = clock
        self._on_lost = on_lost
        self._remembered = remembered
        self.session = Session(clock=clock, caller=caller)
        # The leases by token, from `take` until Redis confirms their end.
        self.held: dict[str, Lease] = {}
        self._owed: deque[tuple[str, Lease, tuple[str | bytes | float, ...]]] = deque()

    def take(self, driver: str, kinds: Sequence[str], *, is_woken: bool) -> Lease | None:
        """See `WorkQueue.take`."""
        token, started = uuid4().hex, self._clock()
        # If only the reply is lost, no heartbeat includes this lease, so it expires.
        owner = (self.session.process_id, token, self._ttl_ms)
        reply = self._scripts.run("take", *owner, int(is_woken), driver, *kinds)
        status, lists, state = text(reply[0]), reply[1], reply[2]
        self._wakeups.publish(lists)
        if status == "new life":
            self._on_lost()
        return self._begun(state, token, started) if status == "taken" else None

    def _begun(self, state: list[Any], token: str, started: float) -> Lease | None:
        """Register the lease in a script's reply; return None if the reply took too long."""
        valid_until = started + usable_seconds(self._ttl_ms)
        key = _parsed(state[0])
        if key is None or self._clock() >= valid_until:
            return None
        fence, started_ms, fails, memo, mark, waited_ms, *rest = state[1:]
        epoch, versions, complete, seen, *records = rest
        kinds, counts = map(text, versions[::2]), (whole(one) or 0 for one in versions[1::2])
        numbers = dict(zip(kinds, counts, strict=True))
        lease = Lease(
            key=key,
            locks=(),
            token=token,
            fence=int(fence),
            fails=whole(fails) or 0,
            memo=self._remembered.memo_of(key, memo),
            waited_seconds=int(waited_ms) / 1000,
            catalog=CatalogState(text(epoch), numbers, frozenset(map(text, complete))),
            session=self.session,
            records=(records[0], records[1], bool(records[2])),
            mark=self._remembered.mark_of(key, mark),
            valid_until=valid_until,
            started_ms=int(started_ms),
            asked_at=started,
            seen=whole(seen) or 0,
        )
        self.held[token] = lease
        return lease

    def enter(self, lease: Lease, locks: Sequence[Lock]) -> bool:
        """See `WorkQueue.enter`."""
        lists, status = self._scripts.run("enter", *owner_of(lease), *(lock.text for lock in locks))
        if status == 1:
            # The locks are set before `publish`, which may take long: if Redis begins a new epoch
            # meanwhile, the heartbeat restores only the locks that are set here. They are not set
            # before the script runs, because the heartbeat would then restore locks that were only
            # requested.
            lease.locks = tuple(locks)
        else:
            lease.is_released = True
            self.held.pop(lease.token, None)
        self._wakeups.publish(lists)
        return bool(status == 1)

    def drop_all(self) -> None:
        """Mark all leases as lost: the process is ending and must not write anything else."""
        for lease in list(self.held.values()):
            lease.is_lost = True
        self.held.clear()

    def heartbeat(self, declare: Declare) -> bool:
        """Renew or restore all leases; return True if leases were lost.

        Raises:
            QueueUnavailable: Redis does not answer.
        """
        session, started, held = self.session, self._clock(), list(self.held.values())
        # A lease whose end is unconfirmed may already have ended, so it is restored only in a Redis
        # that has lost its data.
        running = [lease for lease in held if not lease.is_released]
        names = [part for lease in running for part in (lease.key.text, lease.token)]
        process, epoch = session.process_id, session.epoch
        reply: list[Any] = [0]
        if epoch:
            reply = self._heartbeats.run("renew", process, epoch, self._ttl_ms, *names)
        if reply[0]:
            session.hear(int(reply[1]), started)
        lost = set(map(text, reply[2:])) if reply[0] else self._restore(held, declare)
        for lease in held:
            if lease.token not in lost:
                lease.valid_until = started + usable_seconds(self._ttl_ms)
        has_lost = self._drop(lost)
        self._pay()
        return has_lost

    def _restore(self, held: list[Lease], declare: Declare) -> set[str]:
        """In the new epoch, restore what Redis may have lost; return the tokens of lost leases."""
        session, known = self.session, self.session.epoch
        candidate = self._heartbeats.new_life()
        leases: list[str | bytes | int] = []
        for lease in held:
            locks, written = " ".join(lock.text for lock in lease.locks), lease.written.copy()
            fence, started = str(lease.fence), str(lease.started_ms)
            leases += [lease.key.text, fence, lease.token, started, locks, len(written)]
            for slot, (name, record) in written.items():
                leases += [slot, name, record]
        owner = (session.process_id, candidate, known, self._ttl_ms)
        asked_at = self._clock()
        epoch, lists, lost, now_ms = self._heartbeats.run("regain", *owner, *leases)
        session.hear(int(now_ms), asked_at)
        self._wakeups.hold(lists)
        if known:
            _log.warning(
                "Redis restarted and may have lost its data", leases=len(held), lost=len(lost)
            )
        declare(is_new_life=bool(known))
        # The epoch is set last: if an earlier step fails, the next heartbeat repeats all steps.
        session.epoch = text(epoch)
        return set(map(text, lost))

    def _drop(self, lost: set[str]) -> bool:
        has_lost = False
        for token in lost:
            lease = self.held.get(token)
            # A lease whose end is unconfirmed is kept: its records may still have to be restored.
            if lease is not None and not lease.is_released:
                self.held.pop(token, None)
                lease.is_lost = has_lost = True
        if has_lost:
            _log.warning("lost leases of keys", count=len(lost))
            self._on_lost()
        return has_lost

    def end(self, script: str, lease: Lease, *args: str | bytes | float) -> list[int]:
        """Run a script that ends a lease; return its reply, without the lists that need a message.

        Raises:
            QueueUnavailable: Redis does not answer; the heartbeat retries the call until Redis
                confirms it.
        """
        lease.is_released = True
        owner, args = owner_of(lease), (*args, *trail.collected())
        stays = int(lease.takes_next)
        try:
            return self._settle(self._scripts, script, lease, (*owner, stays, *args))
        except QueueUnavailable:
            # The heartbeat retries the call with `stays` set to 0, because the heartbeat's thread
            # takes no further key.
            self._owed.append((script, lease, (*owner, 0, *args)))
            raise

    def _settle(
        self,
        scripts: Scripts,
        script: str,
        lease: Lease,
        args: tuple[str | bytes | float, ...],
    ) -> list[int]:
        """Write the end of a lease; safe to repeat.

        If the lease has been lost, this only adds its key again and restores its records, because
        they may be the only evidence of the attempt. The records of a newer owner are never
        replaced.
        """
        publish = self._wakeups.publish if scripts is self._scripts else self._wakeups.hold
        lists, is_owner, *reply = scripts.run(script, *args)
        publish(lists)
        if not is_owner:
            records = [part for slot, written in lease.written.items() for part in (slot, *written)]
            publish(scripts.run("orphan", lease.key.text, *records))
        self.held.pop(lease.token, None)
        return [int(value) for value in (is_owner, *reply)]

    def _pay(self) -> None:
        """Retry writing the unconfirmed ends of leases.

        This has no effect if another worker already has the lease.
        """
        while self._owed:
            self._settle(self._heartbeats, *self._owed[0])
            self._owed.popleft()


def _parsed(key: bytes) -> Key | None:
    """Parse a stored key; None if the string is not a key, for example after a manual edit."""
    try:
        return Key.parse(text(key))
    except ValueError as error:
        _log.warning("could not take a key from the queue", err=error)
        return None


def usable_seconds(ttl_ms: int) -> float:
    """Return how long a lease may be used, counted from the moment at which it was requested."""
    return ttl_ms / 1000 * (1 - _MARGIN)


def owner_of(lease: Lease) -> tuple[str, str, str, str]:
    """Return the values that prove a lease to a script: key, process, token, epoch.

    The epoch of a lost lease is empty. If Redis has lost its data since then, it has no record of
    the lost lease, and with the epoch it would mistake the end of the lease for a repeated call.
    """
    session = lease.session
    epoch = "" if lease.is_lost else session.epoch
    return lease.key.text, session.process_id, lease.token, epoch

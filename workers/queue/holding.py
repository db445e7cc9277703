"""Which leases does this process hold, and how do they outlive what Redis forgets?

One heartbeat a second names them all. In the same life of Redis it moves their deadlines; in a new
one (a restart, a fail-over, a flush) it gives Redis back the leases and what was recorded under
them. A lease whose end Redis did not confirm stays here until it is written.
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

# Part of the TTL that is not used, for the time a write needs after its check.
_MARGIN: Final = 1 / 8


class Declare(Protocol):
    """Tells Redis the limits once more."""

    def __call__(self, *, is_new_life: bool) -> None:
        """`is_new_life`: calls of dead processes may be lost from sight."""


class HeldLeases:
    """The leases of one process; thread-safe.

    Args:
        scripts: for the ends of leases.
        heartbeats: of a client of its own, for the heartbeat's thread.
        wakeups: takes the lists that an end wakes.
        ttl_ms: how long Redis keeps a lease nobody renews.
        clock: local seconds that go on while the process is stopped.
        on_lost: called after leases were lost.
        remembered: reads marks and memos.
        caller: of the session.
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
        # By token, from `take` until Redis confirmed the end.
        self.held: dict[str, Lease] = {}
        self._owed: deque[tuple[str, Lease, tuple[str | bytes | float, ...]]] = deque()

    def take(self, driver: str, kinds: Sequence[str], *, is_woken: bool) -> Lease | None:
        """See `WorkQueue.take`."""
        token, started = uuid4().hex, self._clock()
        # If only the reply is lost nobody names the lease, and it runs out.
        owner = (self.session.process_id, token, self._ttl_ms)
        reply = self._scripts.run("take", *owner, int(is_woken), driver, *kinds)
        status, lists, state = text(reply[0]), reply[1], reply[2]
        self._wakeups.publish(lists)
        if status == "new life":
            self._on_lost()
        return self._begun(state, token, started) if status == "taken" else None

    def _begun(self, state: list[Any], token: str, started: float) -> Lease | None:
        """The lease that a script gave, renewed from now on; None when it took too long."""
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
        if status != 1:
            lease.is_released = True
            self.held.pop(lease.token, None)
        self._wakeups.publish(lists)
        if status != 1:
            return False
        lease.locks = tuple(locks)
        return True

    def drop_all(self) -> None:
        """The process ends: nothing more may be written."""
        for lease in list(self.held.values()):
            lease.is_lost = True
        self.held.clear()

    def heartbeat(self, declare: Declare) -> bool:
        """Renew or restore all; True when leases were lost.

        Raises:
            QueueUnavailable: Redis does not answer.
        """
        session, started, held = self.session, self._clock(), list(self.held.values())
        # One whose end is owed may be ended already; only a Redis that lost data gets it back.
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
        """Tell a Redis in a new life what it may have lost; returns the tokens of lost leases."""
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
            _log.warning("Redis began a new life", leases=len(held), lost=len(lost))
        declare(is_new_life=bool(known))
        # Last: whatever failed before is done again by the next heartbeat.
        session.epoch = text(epoch)
        return set(map(text, lost))

    def _drop(self, lost: set[str]) -> bool:
        has_lost = False
        for token in lost:
            lease = self.held.get(token)
            # One whose end is owed stays until that is settled: it may leave something behind.
            if lease is not None and not lease.is_released:
                self.held.pop(token, None)
                lease.is_lost = has_lost = True
        if has_lost:
            _log.warning("leases lost", count=len(lost))
            self._on_lost()
        return has_lost

    def end(self, script: str, lease: Lease, *args: str | bytes | float) -> list[int]:
        """Run a script that ends a lease; its reply without the lists.

        Raises:
            QueueUnavailable: the heartbeat repeats it until Redis confirms it.
        """
        lease.is_released = True
        owner, args = owner_of(lease), (*args, *trail.collected())
        stays = int(lease.takes_next)
        try:
            return self._settle(self._scripts, script, lease, (*owner, stays, *args))
        except QueueUnavailable:
            # Repeated by the heartbeat, whose thread begins no work.
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

        A lost lease changes nothing, but its key is added once more, and what it began is put back
        unless a newer owner's record is there: nobody else may know of it.
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
        """Repeat what Redis did not confirm; without effect where the lease is another's by now."""
        while self._owed:
            self._settle(self._heartbeats, *self._owed[0])
            self._owed.popleft()


def _parsed(key: bytes) -> Key | None:
    """A key as it is stored in Redis; None for what somebody's hand wrote there."""
    try:
        return Key.parse(text(key))
    except ValueError as error:
        _log.warning("key not taken", err=error)
        return None


def usable_seconds(ttl_ms: int) -> float:
    """How long after it was asked for a lease may be used."""
    return ttl_ms / 1000 * (1 - _MARGIN)


def owner_of(lease: Lease) -> tuple[str, str, str, str]:
    """Who a script has to be convinced of: key, process, token, epoch.

    One that was lost has no epoch: a Redis that lost its data since knows of no loss, and would
    take the end of it for the repeat of an earlier one.
    """
    session = lease.session
    epoch = "" if lease.is_lost else session.epoch
    return lease.key.text, session.process_id, lease.token, epoch

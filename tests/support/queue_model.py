"""A model of client-go's workqueue with limits, in plain Python, with which the scripts are
compared.

The model knows what may happen, but not in which order the tenants get their turns. So takes are
observed and checked (`taken`), and everything else is predicted exactly.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from workers.queue.locks import Lock
from workers.queue.scripts import Scripts


def lane_of(key: str) -> str:
    return "|".join(key.split("|")[:2])


def tenant_of(key: str) -> str:
    _, _, object_, uid = key.split("|")
    if "/" in object_:
        return object_.partition("/")[0]
    return uid[1:] if uid.startswith("@") else ""


def modes(locks: Iterable[Lock]) -> dict[str, str]:
    return {lock.name: lock.mode.value for lock in locks}


TTL_MS = 4000


class LossyScripts(Scripts):
    """Runs a script twice on demand, as the client does after a lost reply."""

    loses_reply = False

    def run(self, name: str, *args: str | bytes | float) -> Any:
        if self.loses_reply:
            super().run(name, *args)
        return super().run(name, *args)


@dataclass(slots=True)
class Held:
    """A lease: its owner, its locks' modes by name (`x` or `s`), and the mark that its owner
    wrote."""

    process: str
    locks: dict[str, str]
    token: str
    fence: int = 0
    deadline: int = 0
    mark: str = ""


@dataclass
class QueueModel:
    """The queue's state by the text of the key; times are in ms."""

    limits: dict[str, int] = field(default_factory=dict)
    paused: set[str] = field(default_factory=set)
    # Maps a key to its arrival; a negative number is in front.
    ready: dict[str, float] = field(default_factory=dict)
    blocked: dict[str, tuple[str, str]] = field(default_factory=dict)  # maps a name to a mode
    marks: dict[str, str] = field(default_factory=dict)
    leases: dict[str, Held] = field(default_factory=dict)
    lost: set[str] = field(default_factory=set)  # tokens of leases that were taken away
    dirty: set[str] = field(default_factory=set)
    delayed: dict[str, int] = field(default_factory=dict)
    fails: dict[str, int] = field(default_factory=dict)
    processes: dict[str, int] = field(default_factory=dict)
    arrivals: int = 0
    # The epoch of Redis: whether it has one, whether it is the epoch of this run, and when it
    # began.
    has_epoch: bool = False
    is_alive: bool = False
    born: int = 0
    quiet: int = 0
    may_idle: bool = False

    def begin_life(self, now: int, *, known: bool, is_same: bool) -> None:
        """Handle a call from a process that knows an earlier epoch, or none."""
        if not self.is_alive:
            seen = any(end >= now - 60_000 for end in self.processes.values())
            if self.has_epoch and (self.leases or seen):
                self._be_quiet(now + TTL_MS)
            self.has_epoch = self.is_alive = True
            self.born = now
        if known and not is_same:
            self._be_quiet(self.born + TTL_MS)

    def _be_quiet(self, until: int) -> None:
        self.quiet = max(self.quiet, until)
        self.may_idle = True

    def heartbeat(
        self,
        process: str,
        held: Iterable[tuple[str, Held]],
        now: int,
        *,
        known: bool,
        is_same: bool,
    ) -> set[str]:
        """Renew or restore what a process holds; return the tokens of its lost leases.

        A process may hold a key twice, if it has not noticed yet that it gave up the first lease.
        """
        is_renewal = is_same and self.is_alive
        if not is_renewal:
            self.begin_life(now, known=known, is_same=False)
        self.processes[process] = now + TTL_MS
        lost = set()
        for key, mine in held:
            present = self.leases.get(key)
            ours = present if present is not None and present.token == mine.token else None
            if ours and (is_renewal or [*ours.locks.items()] == [*mine.locks.items()]):
                ours.deadline = now + TTL_MS
            elif is_renewal or mine.token in self.lost or not self._make_room(key, mine, now):
                lost.add(mine.token)
                continue
            else:
                self._put_back(key, mine, now)
            if mine.mark and not is_renewal:
                self.marks[key] = mine.mark
        if not is_renewal:
            self.lost |= lost
        return lost

    def _make_room(self, key: str, mine: Held, now: int) -> bool:
        present = self.leases.get(key)
        rivals = [
            other
            for other, held in self.leases.items()
            if other != key
            and any(
                name in held.locks and "x" in (mode, held.locks[name])
                for name, mode in mine.locks.items()
            )
        ]
        older = [self.leases[other] for other in rivals] + ([present] if present else [])
        if any(held.fence >= mine.fence and held.token != mine.token for held in older):
            return False
        if present is not None:
            self.lost |= {present.token} - {mine.token}
            for name in self.leases.pop(key).locks:
                self._free(name)
        self.take_back(rivals, now)
        return True

    def _put_back(self, key: str, mine: Held, now: int) -> None:
        if self.is_waiting(key):
            self.dirty.add(key)
        self.ready.pop(key, None)
        self.blocked.pop(key, None)
        self.delayed.pop(key, None)
        self.leases[key] = Held(mine.process, {}, mine.token, mine.fence, now + TTL_MS)
        for name, mode in mine.locks.items():
            self.hold(key, name, mode)

    def is_waiting(self, key: str) -> bool:
        return key in self.ready or key in self.blocked

    def enqueue(self, key: str, *, front: bool = False) -> None:
        if key in self.leases:
            self.dirty.add(key)
        elif not self.is_waiting(key):
            self.arrivals += 1
            self.ready[key] = -1 if front else self.arrivals

    def add(self, key: str, now: int, delay_ms: int) -> None:
        if delay_ms:
            self.delayed[key] = min(self.delayed.get(key, now + delay_ms), now + delay_ms)
        else:
            self.enqueue(key)

    def rival(self, key: str, name: str, mode: str) -> bool:
        """Return True if another key holds a conflicting lock."""
        others = [
            held.locks[name]
            for other, held in self.leases.items()
            if other != key and name in held.locks
        ]
        return bool(others) if mode == "x" else "x" in others

    def hold(self, key: str, name: str, mode: str) -> None:
        held = self.leases[key].locks
        if held.get(name) != "x":
            if held.get(name) != mode:  # a lock that becomes exclusive is moved to the end
                held.pop(name, None)
            held[name] = mode

    def taken(self, process: str, key: str, now: int) -> None:
        """Check a key that Redis gave: it was ready, was first in its order, and its lane
        allowed it."""
        lane = lane_of(key)
        assert self.may_take(lane, now), f"{key} was taken although its lane is closed (G11, I-8)"
        assert key in self.ready, f"{key} was taken without being ready"
        earlier = [
            other
            for other, arrival in self.ready.items()
            if arrival < self.ready[key] and self._class(other) == self._class(key)
        ]
        assert not earlier, f"{key} was taken before {earlier} (G12)"
        del self.ready[key]
        self.delayed.pop(key, None)
        self.leases[key] = Held(process, {}, "", deadline=now + TTL_MS)

    def enter(self, key: str, locks: dict[str, str]) -> bool:
        """Take all locks of a taken key, or let the key wait for a busy one."""
        for name, mode in locks.items():
            if self.rival(key, name, mode):
                self._unlease(key)
                self.blocked[key] = (name, mode)
                return False
        for name, mode in locks.items():
            self.hold(key, name, mode)
        return True

    def may_take(self, lane: str, now: int) -> bool:
        """Return True if a key of the lane may be taken now."""
        return (
            self.is_alive
            and now >= self.quiet
            and lane in self.limits
            and lane not in self.paused
            and self.occupied(lane) < self.limits[lane]
            and any(lane_of(key) == lane for key in self.ready)
        )

    def acquire(self, key: str, locks: dict[str, str]) -> str | None:
        """Take all locks, or none; return the busy lock's name."""
        for name, mode in locks.items():
            if self.rival(key, name, mode):
                return name
        for name, mode in locks.items():
            self.hold(key, name, mode)
        return None

    def unlock(self, key: str, name: str) -> None:
        if self.leases[key].locks.pop(name, None) is not None:
            self._free(name)

    def block(self, key: str, name: str, mode: str) -> None:
        self._unlease(key)
        if self.rival(key, name, mode):
            self.blocked[key] = (name, mode)
        else:
            self.enqueue(key, front=True)

    def _free(self, name: str) -> None:
        if not any(name in held.locks for held in self.leases.values()):
            self.wake(name)

    def wake(self, name: str) -> None:
        waiters = [waiter for waiter, (busy, _) in self.blocked.items() if busy == name]
        for waiter in waiters:
            del self.blocked[waiter]
            self.enqueue(waiter, front=True)

    def _unlease(self, key: str) -> bool:
        for name in self.leases.pop(key).locks:
            self._free(name)
        was_dirty = key in self.dirty
        self.dirty.discard(key)
        return was_dirty

    def end_lost(self, key: str, mark: str) -> None:
        """End a lost lease; its records may be the only ones of its attempt."""
        if mark:
            self.marks.setdefault(key, mark)
        self.enqueue(key)

    def done(self, key: str, now: int) -> None:
        self.fails.pop(key, None)
        if self._unlease(key):
            self.enqueue(key)

    def fail(self, key: str, now: int, base_ms: int, cap_ms: int) -> None:
        count = self.fails.get(key, 0)
        self.fails[key] = count + 1
        if self._unlease(key):
            self.enqueue(key)
        else:
            self.add(key, now, min(base_ms * 2**count, cap_ms))

    def release(self, key: str, now: int, *, delay_seconds: float, count: bool) -> None:
        if count:
            self.fails[key] = self.fails.get(key, 0) + 1
        if self._unlease(key) or not delay_seconds:
            self.enqueue(key, front=True)
        else:
            self.add(key, now, round(delay_seconds * 1000))

    def forget(self, key: str) -> None:
        self.fails.pop(key, None)
        self.marks.pop(key, None)
        self.delayed.pop(key, None)

    def take_back(self, keys: Iterable[str], now: int) -> None:
        for key in list(keys):
            self.lost.add(self.leases[key].token)
            self._unlease(key)
            self.enqueue(key, front=True)

    def close(self, process: str, now: int) -> None:
        self.processes.pop(process, None)
        self.take_back([k for k, held in self.leases.items() if held.process == process], now)

    def sweep(self, now: int) -> None:
        if not self.is_alive:
            return
        if now >= self.quiet:
            self.may_idle = False
        for key in sorted(self.delayed, key=lambda one: (self.delayed[one], one)):
            if self.delayed[key] > now:
                break
            del self.delayed[key]
            self.enqueue(key)
        if now >= self.quiet:
            self.take_back([k for k, held in self.leases.items() if held.deadline <= now], now)
        self.processes = {name: end for name, end in self.processes.items() if end > now}
        for key, (name, mode) in list(self.blocked.items()):
            if key in self.blocked and not self.rival(key, name, mode):
                self.wake(name)

    def occupied(self, lane: str) -> int:
        return sum(lane_of(key) == lane for key in self.leases)

    def _class(self, key: str) -> tuple[str, str, bool]:
        return lane_of(key), tenant_of(key), key in self.fails

"""How many passes of this process may use its processor at a time?

Python runs one thread at a time: of sixty-four passes that all could go on, each takes as long as
sixty-four, and whoever comes next waits for all of them. So a few are let in, tenants taking turns.
Who waits for a driver or the API server is not counted.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

SLOTS: Final = 4
"""One computes while the others' commands are on their way to Redis and back."""
PATIENCE_SECONDS: Final = 1.0
"""Who waited that long goes in all the same: what holds the slots is no computing."""


@dataclass(eq=False, slots=True)
class _Waiter:
    number: int
    may_go: threading.Event = field(default_factory=threading.Event)


class CpuSlots:
    """The slots of one process.

    Args:
        slots: passes that are let in side by side.
        patience_seconds: longest wait.
    """

    def __init__(self, slots: int = SLOTS, patience_seconds: float = PATIENCE_SECONDS) -> None:
        self._slots = slots
        self._patience_seconds = patience_seconds
        self._inside = 0
        self._begun: Counter[str] = Counter()
        self._waiters: dict[str, deque[_Waiter]] = {}
        self._numbers = count()
        self._lock = threading.Lock()

    @contextmanager
    def taken(self, tenant: str = "") -> Iterator[None]:
        """Around a pass; waits for a slot. Of those who wait, first who has the fewest passes."""
        self._await_turn(tenant)
        token = _HELD.set(self)
        try:
            yield
        finally:
            _HELD.reset(token)
            self._end(tenant)

    def may_stay(self, tenant: str) -> bool:
        """Whether a pass of this tenant that just ended may be followed by another in its slot.

        To let somebody in who has no better right to it would only cost a wake-up.
        """
        with self._lock:
            mine = self._begun[tenant]
            return all(self._begun[other] >= mine for other in self._waiters)

    @contextmanager
    def lent(self) -> Iterator[None]:
        """Around a wait. Nobody waits to come back: what was begun is ended first."""
        self._leave()
        token = _HELD.set(None)
        try:
            yield
        finally:
            _HELD.reset(token)
            self._enter()

    def _await_turn(self, tenant: str) -> None:
        with self._lock:
            if self._inside < self._slots:
                self._begin(tenant)
                return
            waiter = _Waiter(next(self._numbers))
            self._waiters.setdefault(tenant, deque()).append(waiter)
        try:
            waiter.may_go.wait(self._patience_seconds)
        except BaseException:
            self._go_in(tenant, waiter)
            self._end(tenant)
            raise
        self._go_in(tenant, waiter)

    def _go_in(self, tenant: str, waiter: _Waiter) -> None:
        """After the wait, whether or not somebody gave it a slot."""
        with self._lock:
            if waiter in self._waiters.get(tenant, ()):
                self._remove(tenant, waiter)
                self._begin(tenant)

    def _end(self, tenant: str) -> None:
        self._leave()  # the pass counts until the next one is chosen
        with self._lock:
            self._begun[tenant] -= 1
            if not self._begun[tenant]:
                del self._begun[tenant]

    def _begin(self, tenant: str) -> None:
        self._inside += 1
        self._begun[tenant] += 1

    def _remove(self, tenant: str, waiter: _Waiter) -> None:
        self._waiters[tenant].remove(waiter)
        if not self._waiters[tenant]:
            del self._waiters[tenant]

    def _enter(self) -> None:
        with self._lock:
            self._inside += 1

    def _leave(self) -> None:
        with self._lock:
            self._inside -= 1
            if self._waiters and self._inside < self._slots:
                tenant = min(self._waiters, key=self._place)
                first = self._waiters[tenant][0]
                self._remove(tenant, first)
                self._begin(tenant)
                first.may_go.set()

    def _place(self, tenant: str) -> tuple[int, int]:
        """In the queue of all who wait."""
        return self._begun[tenant], self._waiters[tenant][0].number


_HELD: Final[ContextVar[CpuSlots | None]] = ContextVar("held", default=None)


def waiting() -> AbstractContextManager[None]:
    """Around each wait for a driver or the API server; nothing for a thread without a slot."""
    held = _HELD.get()
    return nullcontext() if held is None else held.lent()

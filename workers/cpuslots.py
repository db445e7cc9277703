"""How many passes of this process may use its processor at a time?

Python runs one thread at a time: of sixty-four passes that all could go on, each takes as long as
sixty-four, and whoever comes next waits for all of them. So a few are let in, tenants taking turns.
Who waits for a driver or the API server is not counted.
"""

from __future__ import annotations

import threading
from collections import Counter
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field
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
    tenant: str
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
        self._waiters: list[_Waiter] = []
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
            self._leave()  # the pass counts until the next one is chosen
            with self._lock:
                self._begun[tenant] -= 1
                if not self._begun[tenant]:
                    del self._begun[tenant]

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
            waiter = _Waiter(tenant)
            self._waiters.append(waiter)
        waiter.may_go.wait(self._patience_seconds)
        with self._lock:
            if waiter in self._waiters:  # nobody gave it a slot
                self._waiters.remove(waiter)
                self._begin(tenant)

    def _begin(self, tenant: str) -> None:
        self._inside += 1
        self._begun[tenant] += 1

    def _enter(self) -> None:
        with self._lock:
            self._inside += 1

    def _leave(self) -> None:
        with self._lock:
            self._inside -= 1
            if self._waiters and self._inside < self._slots:
                first = min(self._waiters, key=lambda one: self._begun[one.tenant])
                self._waiters.remove(first)
                self._begin(first.tenant)
                first.may_go.set()


_HELD: Final[ContextVar[CpuSlots | None]] = ContextVar("held", default=None)


def waiting() -> AbstractContextManager[None]:
    """Around each wait for a driver or the API server; nothing for a thread without a slot."""
    held = _HELD.get()
    return nullcontext() if held is None else held.lent()

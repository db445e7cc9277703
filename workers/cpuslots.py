"""How many passes of this process may use its processor at a time?

Python runs one thread at a time: of sixty-four passes that all could go on, each takes as long as
sixty-four, and whoever comes next waits for all of them. So a few are let in, and the others' keys
wait in Redis, where tenants take turns. Who waits for a driver or the API server is not counted.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

SLOTS: Final = 4
"""One computes while the others' commands are on their way to Redis and back."""
PATIENCE_SECONDS: Final = 1.0
"""Who waited that long goes in all the same: what holds the slots is no computing."""


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
        self._free = threading.Condition(threading.Lock())

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Around a pass; waits for a slot."""
        with self._free:
            self._free.wait_for(lambda: self._inside < self._slots, self._patience_seconds)
        self._enter()
        token = _HELD.set(self)
        try:
            yield
        finally:
            _HELD.reset(token)
            self._leave()

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

    def _enter(self) -> None:
        with self._free:
            self._inside += 1

    def _leave(self) -> None:
        with self._free:
            self._inside -= 1
            if self._inside < self._slots:
                self._free.notify()


_HELD: Final[ContextVar[CpuSlots | None]] = ContextVar("held", default=None)


def waiting() -> AbstractContextManager[None]:
    """Around each wait for a driver or the API server; nothing for a thread without a slot."""
    held = _HELD.get()
    return nullcontext() if held is None else held.lent()

"""Connections that are kept, and whose turn it is to open another one.

A burst of requests does not begin with a burst of greetings: one costs the API server more than a
request does, and the first requests wait for the last greeting. So few are opened at a time, and
who waits for its turn takes a connection that comes back before.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Final, Generic, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

MOST_OPENED_AT_ONCE: Final = 4
"""Of each process."""
_TOO_LATE: Final = "no connection was free in time, and none could be opened"


class Closable(Protocol):
    """What is kept."""

    @property
    def is_fit(self) -> bool:
        """Whether it can be used once more."""

    def close(self) -> None:
        """Drop it."""


C = TypeVar("C", bound=Closable)


class _Turn(Generic[C]):
    """Of one who waits: `connection` stays None for one that is to open its own."""

    def __init__(self) -> None:
        self._has_come = threading.Event()
        self.connection: C | None = None

    def come(self, connection: C | None) -> None:
        self.connection = connection
        self._has_come.set()

    def wait(self, seconds: float) -> bool:
        return self._has_come.wait(max(0.0, seconds))


class Kept(Generic[C]):
    """The connections to one server; for any number of threads.

    Args:
        opened: opens one within so many seconds.
        most: idle ones that are kept.
    """

    def __init__(self, opened: Callable[[float], C], most: int) -> None:
        self._opened = opened
        self._most = most
        self.idle: deque[C] = deque()
        self._lock = threading.Lock()
        self._waiting: deque[_Turn[C]] = deque()
        self._opening = 0

    def at_once(self) -> C | None:
        """The one that was used last and has not ended meanwhile; None: there is none."""
        while True:
            try:
                found = self.idle.pop()
            except IndexError:
                return None
            if found.is_fit:
                return found
            found.close()

    def in_time(self, seconds: float) -> C:
        """One that comes back, or a new one, whichever is there first.

        Raises:
            TimeoutError: neither within that time.
            Exception: of `opened`.
        """
        end = time.monotonic() + seconds
        while True:
            found = self._turn(end)
            if found is None:
                return self._open(end)
            if found.is_fit:
                return found
            found.close()

    def give_back(self, connection: C) -> None:
        """To be used once more."""
        with self._lock:
            if self._waiting:
                self._waiting.popleft().come(connection)
                return
            if len(self.idle) < self._most:
                self.idle.append(connection)
                return
        connection.close()

    def _turn(self, end: float) -> C | None:
        """One that came back; None: the caller is to open one."""
        with self._lock:
            if self.idle:
                return self.idle.pop()
            if self._opening < MOST_OPENED_AT_ONCE:
                self._opening += 1
                return None
            turn: _Turn[C] = _Turn()
            self._waiting.append(turn)
        try:
            has_come = turn.wait(end - time.monotonic())
        except BaseException:
            if not self._renounced(turn):
                self._pass_on(turn)
            raise
        if not has_come and self._renounced(turn):
            raise TimeoutError(_TOO_LATE)
        return turn.connection

    def _renounced(self, turn: _Turn[C]) -> bool:
        """False: it has come in this very moment."""
        with self._lock:
            if turn not in self._waiting:
                return False
            self._waiting.remove(turn)
            return True

    def _pass_on(self, turn: _Turn[C]) -> None:
        if turn.connection is not None:
            self.give_back(turn.connection)
        else:
            self._end_opening(is_good=True)

    def _open(self, end: float) -> C:
        seconds, is_good = end - time.monotonic(), True
        try:
            if seconds <= 0:
                raise TimeoutError(_TOO_LATE)
            is_good = False
            connection = self._opened(seconds)
            is_good = True
        finally:
            self._end_opening(is_good=is_good)
        return connection

    def _end_opening(self, *, is_good: bool) -> None:
        """After one that failed nobody waits for another's: the time of each is for its own."""
        with self._lock:
            self._opening -= 1
            while self._waiting and (self._opening < MOST_OPENED_AT_ONCE or not is_good):
                self._opening += 1
                self._waiting.popleft().come(None)

"""Connections that are kept, and who may open another one.

A greeting costs the API server more than a request does, and a burst of requests would begin with
one for each. So a few connections do: beyond them who wants one waits for one that comes back,
and what ends work goes before what begins some. Who waited for a while opens one all the same, for
the server may be far away or keep no connection; but one after the other, for it may be busy.

Who expects bursts has some open beforehand (`keep`): the server ends a silent one after a while.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Generic, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

ENOUGH: Final = 16
"""Open connections of each process, beyond which a new one is opened only by who waited."""
PATIENCE_SECONDS: Final = 0.05
"""Who waited that long may open one all the same: of sixteen connections one comes back each few
milliseconds, unless each request of ours waits behind those of others."""
PAUSE_SECONDS: Final = 0.1
"""Of those who waited one opens a connection each so many seconds. A server whose processor is busy
lets all wait, and if all of them opened one it would work on nothing but greetings."""
REST_SECONDS: Final = 30.0
"""One that was silent for so long is used once: an API server ends it after 90 s, and some load
balancers after 60."""
AGE_SECONDS: Final = 600.0
"""One that is older is replaced, by and by, so that all of several API servers get their share
again after one of them was away."""
KEEP_SECONDS: Final = 5.0
"""`keep` begins nothing after that, and opens each within as long."""


_NONE_FREE: Final = "no connection was free in time, and none could be opened"


class Closable(Protocol):
    """What is kept."""

    opened_at: float
    """When it was opened."""
    heard_at: float
    """When its last answer came."""

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
        self._first: deque[_Turn[C]] = deque()
        self._others: deque[_Turn[C]] = deque()
        self._open = 0
        """Idle, in use or being opened."""
        self._opened_more_at = -math.inf
        """When somebody who had waited began to open one."""

    def at_once(self) -> C | None:
        """The one that was used last and has not ended meanwhile; None: there is none."""
        while (found := self._popped()) is not None:
            if found.is_fit:
                return found
            self.drop(found)
        return None

    def in_time(self, seconds: float, *, goes_first: bool = False) -> C:
        """One that comes back, or a new one, whichever is there first.

        Args:
            seconds: longest wait.
            goes_first: before all who wait for one without this.

        Raises:
            TimeoutError: neither within that time.
            Exception: of `opened`.
        """
        end = time.monotonic() + seconds
        found = self._turn(end, self._first if goes_first else self._others)
        if found is not None:
            if time.monotonic() >= end:  # it is of more use to somebody else
                self.give_back(found)
                raise TimeoutError(_NONE_FREE)
            if found.is_fit:
                return found
            self._close(found)
        return self._new(end)

    def give_back(self, connection: C) -> None:
        """To be used once more."""
        with self._lock:
            if self._told(connection):
                return
            if len(self.idle) < self._most:
                self.idle.append(connection)
                return
        self.drop(connection)

    def drop(self, connection: C, *, has_served: bool = False) -> None:
        """Not to be used any more.

        Args:
            connection: no more the caller's.
            has_served: the server answered, and ended it: whoever waits opens another in its place,
                however many there are, for that one keeps none.
        """
        try:
            connection.close()
        finally:
            self._one_less(is_passed_on=has_served)

    def drop_older(self, moment: float) -> None:
        """Drop idle ones of which nothing was heard since."""
        for one in list(self.idle):
            if one.heard_at < moment and self._is_taken(one):
                with suppress(OSError):
                    self.drop(one)

    def keep(self, most: int, use: Callable[[C], object]) -> None:
        """Have `most` open ones, of which something was heard lately, and replace the oldest.

        None is given up for one that may not be had: whatever comes, those that are fit stay.

        Args:
            most: counting those in use; silent ones beyond are dropped.
            use: asks the server something over one.

        Raises:
            Exception: of `use` or `opened`; the next call goes on from there.
        """
        begin, most = time.monotonic(), min(most, self._most)
        for one in list(self.idle):
            is_silent = begin - one.heard_at > REST_SECONDS
            if is_silent and _is_in_time(begin) and self._is_taken(one):
                self._used(one, use if self._open <= most else None)
        while _is_in_time(begin) and self._is_one_more(most):
            if not self._used(self._new(time.monotonic() + KEEP_SECONDS), use):
                return  # a server that keeps none
        oldest = min(list(self.idle), key=lambda one: one.opened_at, default=None)
        if oldest is None or begin - oldest.opened_at < AGE_SECONDS or not _is_in_time(begin):
            return
        is_replaced = self._is_one_more(most + 1) and self._used(
            self._new(time.monotonic() + KEEP_SECONDS), use
        )
        if is_replaced and self._is_taken(oldest):
            self.drop(oldest)

    def close(self) -> None:
        """Drop the idle ones."""
        while (found := self._popped()) is not None:
            self.drop(found)

    def _popped(self) -> C | None:
        try:
            return self.idle.pop()
        except IndexError:
            return None

    def _is_taken(self, connection: C) -> bool:
        """Whether that idle one is the caller's now."""
        try:
            self.idle.remove(connection)
        except ValueError:  # taken meanwhile
            return False
        return True

    def _is_one_more(self, most: int) -> bool:
        """Whether the caller is to open one."""
        with self._lock:
            if self._open >= most:
                return False
            self._open += 1
            return True

    def _used(self, connection: C, use: Callable[[C], object] | None) -> bool:
        """Use it, or drop it; returns whether it is idle now."""
        is_fit = False
        try:
            if use is not None:
                use(connection)
                is_fit = connection.is_fit
        finally:
            if is_fit:
                self.give_back(connection)
            else:
                self.drop(connection)
        return is_fit

    def _turn(self, end: float, line: deque[_Turn[C]]) -> C | None:
        """One that came back; None: the caller is to open one."""
        with self._lock:
            found = self._popped()
            if found is not None:
                return found
            if self._open < ENOUGH:
                self._open += 1
                return None
            turn: _Turn[C] = _Turn()
            line.append(turn)
        try:
            while not turn.wait(min(PATIENCE_SECONDS, end - time.monotonic())):
                if self._is_over(turn, line, end):
                    break
        except BaseException:
            self._leave(turn, line)
            raise
        return turn.connection

    def _is_over(self, turn: _Turn[C], line: deque[_Turn[C]], end: float) -> bool:
        """Of a caller who waited: whether it does no more. If not, somebody may open one more."""
        with self._lock:
            now = time.monotonic()
            if turn not in line:  # something came this very moment
                return False
            if now >= end:
                line.remove(turn)
                self._open += 1  # a place to fail in
                return True
            if now - self._opened_more_at >= PAUSE_SECONDS:
                self._opened_more_at = now
                self._open += 1
                self._told(None)  # the first, which may be the caller
            return False

    def _leave(self, turn: _Turn[C], line: deque[_Turn[C]]) -> None:
        """Somebody waits no more; what came for it meanwhile is for others."""
        with self._lock:
            if turn in line:
                line.remove(turn)
                return
        if turn.connection is not None:
            self.give_back(turn.connection)
        else:
            self._one_less()

    def _told(self, connection: C | None) -> bool:
        """Whether somebody waited, and has it now, or is to open one; with the lock."""
        for line in (self._first, self._others):
            if line:
                line.popleft().come(connection)
                return True
        return False

    def _close(self, connection: C) -> None:
        """One that has ended; its place is the caller's, who would else stand in line once more."""
        try:
            connection.close()
        except BaseException:
            self._one_less()
            raise

    def _new(self, end: float) -> C:
        made: C | None = None
        try:
            seconds = end - time.monotonic()
            made = self._opened(seconds) if seconds > 0 else None
        finally:
            if made is None:
                self._one_less()
        if made is None:
            raise TimeoutError(_NONE_FREE)
        return made

    def _one_less(self, *, is_passed_on: bool = False) -> None:
        with self._lock:
            self._open -= 1
            if (is_passed_on or self._open < ENOUGH) and self._told(None):
                self._open += 1


def _is_in_time(begin: float) -> bool:
    """Whether a look that began then may begin something more."""
    return time.monotonic() - begin < KEEP_SECONDS

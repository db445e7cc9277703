"""Deadlines of calls whose outcome is unknown: such a call may still be running until its deadline.

All deadlines use the queue's clock (`workers.queue.clock`), which each process follows through its
heartbeat; `Session` in workers/queue/leases.py creates and compares deadlines. The clock may start
again if Redis starts without data. A deadline from an earlier epoch is therefore capped: it ends
when every call that began before the current epoch must have ended.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, Self

# Added to the deadline of a call, to give the driver time to notice that the deadline has passed.
MARGIN_SECONDS: Final = 1.0


@dataclass(frozen=True, slots=True)
class Deadline:
    """The time by which a call must have ended, or at which something else is due.

    Attributes:
        until: the deadline in seconds on the queue's clock; 0 for no deadline.
        seconds: the time from the creation of the deadline to `until`.
        life: the start of the epoch in which the deadline was created, in seconds on the queue's
            clock; 0 in records from older releases.
        caller: the process whose exit ends the call (`workers.queue.lifeline`); empty if the call
            may outlive its process.
    """

    until: float = 0.0
    seconds: float = 0.0
    life: float = 0.0
    caller: str = ""

    def __bool__(self) -> bool:
        return self.until > 0

    @classmethod
    def read(cls, data: object) -> Self:
        """Read a deadline from decoded JSON; return an empty deadline if the data is invalid."""
        caller = ""
        try:
            if isinstance(data, int | float):  # the format of an older release
                parts = (float(data), 0.0, 0.0)
            else:
                moments, rest = data[:3], data[3:]  # type: ignore[index]
                until, seconds, life = map(float, moments)
                parts = until, seconds, life
                caller = rest[0] if len(rest) == 1 and isinstance(rest[0], str) else ""
        except (TypeError, ValueError, OverflowError, KeyError):
            return cls()
        return cls(*parts, caller) if all(map(math.isfinite, parts)) else cls()

    def data(self) -> list[float | str]:
        """Return the deadline as a JSON value; an empty list if there is no deadline."""
        parts: list[float | str] = [self.until, self.seconds, self.life]
        return (parts + [self.caller] * bool(self.caller)) if self else []

    def seconds_left(self, now: float, life: float) -> float:
        """Return the seconds until the deadline; 0 if it has passed.

        Args:
            now: the current time in seconds on the queue's clock.
            life: the start of the current epoch.
        """
        if not self:
            return 0.0
        until = self.until
        if self.life and self.life != life:
            until = min(until, life + self.seconds)
        return max(0.0, until - now)


NONE: Final = Deadline()

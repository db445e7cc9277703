"""Until when may a call run whose end nobody saw?

A deadline is stamped and compared by one clock, the queue's (`workers.queue.clock`), which each
process follows by its heartbeat: `Session` in workers/queue/leases.py makes deadlines and says what
is left of them. The clock may begin again where Redis loses all data at its start: a deadline of an
earlier life is over once a call that began before this life has surely ended.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, Self

# After the deadline of a call: what the driver needs to notice it.
MARGIN_SECONDS: Final = 1.0


@dataclass(frozen=True, slots=True)
class Deadline:
    """When a call has surely ended, or something else is due.

    Attributes:
        until: seconds of the queue's clock; 0 for none.
        seconds: how far away that was when it was stamped.
        life: when the life of Redis began in which this was stamped, seconds of its clock; 0 for
            records of older releases.
        caller: the process whose death ends the call (`workers.queue.lifeline`); empty where its
            death may leave the call running.
    """

    until: float = 0.0
    seconds: float = 0.0
    life: float = 0.0
    caller: str = ""

    def __bool__(self) -> bool:
        return self.until > 0

    @classmethod
    def read(cls, data: object) -> Self:
        """Of JSON; whatever is not one of ours is none."""
        caller = ""
        try:
            if isinstance(data, int | float):  # of an older release
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
        """JSON, empty for none."""
        parts: list[float | str] = [self.until, self.seconds, self.life]
        return (parts + [self.caller] * bool(self.caller)) if self else []

    def seconds_left(self, now: float, life: float) -> float:
        """How long it has to be waited for.

        Args:
            now: seconds of the queue's clock.
            life: when the present life of Redis began.
        """
        if not self:
            return 0.0
        until = self.until
        if self.life and self.life != life:
            until = min(until, life + self.seconds)
        return max(0.0, until - now)


NONE: Final = Deadline()

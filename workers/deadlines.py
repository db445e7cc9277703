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
    """

    until: float = 0.0
    seconds: float = 0.0
    life: float = 0.0

    def __bool__(self) -> bool:
        return self.until > 0

    @classmethod
    def read(cls, data: object) -> Self:
        """Of JSON; whatever is not one of ours is none."""
        try:
            if isinstance(data, int | float):  # of an older release
                parts = (float(data), 0.0, 0.0)
            else:
                until, seconds, life = map(float, data)  # type: ignore[call-overload]
                parts = until, seconds, life
        except (TypeError, ValueError, OverflowError):
            return cls()
        return cls(*parts) if all(map(math.isfinite, parts)) else cls()

    def data(self) -> list[float]:
        """JSON, empty for none."""
        return [self.until, self.seconds, self.life] if self else []

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

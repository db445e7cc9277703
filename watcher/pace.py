"""Who is woken too often rests a moment, and then finds more to do at once.

Most of what an event costs in a burst is the wake-up for it: with warm caches reading, decoding and
deciding take a fifth. So a thread of the watcher that was told much lately lets more come together
before it goes on. At rest and at the rate of a busy cluster nothing waits.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

# What one claim at a time costs in latency at most, and only in a burst.
REST_SECONDS: Final = 0.01
# Of what nobody waits for. A volume that is to be deleted comes with three events of two objects,
# and most of a burst's other events are of volumes that we made ourselves.
LONG_REST_SECONDS: Final = 0.05
# So many seconds' worth may come at once without a rest.
_AT_ONCE_SECONDS: Final = 0.5


class Pace:
    """One thread's; a token bucket whose end is a rest.

    Args:
        per_second: as many as this never wait.
        rest_seconds: how long a rest is.
        clock: monotonic seconds.
        sleep: waits that many seconds.
    """

    def __init__(
        self,
        per_second: float,
        *,
        rest_seconds: float = REST_SECONDS,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._per_second = per_second
        self._rest_seconds = rest_seconds
        self._clock = clock
        self._sleep = sleep
        self._most = self._left = per_second * _AT_ONCE_SECONDS
        self._at = clock()

    def count(self, done: int = 1) -> None:
        """So much was done."""
        self._left -= done

    def rest(self) -> None:
        """To be called before waiting for more."""
        now = self._clock()
        left = self._left + (now - self._at) * self._per_second
        self._left, self._at = min(self._most, max(0.0, left)), now
        if left < 0:
            self._sleep(self._rest_seconds)

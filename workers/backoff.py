"""Delays between the attempts of a loop: decorrelated jitter between two bounds."""

from __future__ import annotations

import random
from dataclasses import dataclass, field


@dataclass(slots=True)
class Backoff:
    """A delay that grows with each failure and starts again at the base delay after `reset`.

    Each delay is chosen at random from [base, 3 x the last delay] and is at most `cap_seconds`, so
    that many processes that lost their connections to a server do not all reconnect at the same
    time.
    """

    base_seconds: float = 0.8
    cap_seconds: float = 30.0
    random: random.Random = field(default_factory=random.Random)
    _last: float = 0.0

    def next_seconds(self) -> float:
        """Return the next delay in seconds."""
        high = max(self.base_seconds, self._last * 3)
        self._last = min(self.cap_seconds, self.random.uniform(self.base_seconds, high))
        if self._last == self.base_seconds:
            # Without a previous delay the range would be empty, so the first delay is drawn from
            # its own range.
            self._last = self.random.uniform(self.base_seconds, self.base_seconds * 2)
        return self._last

    def reset(self) -> None:
        """Start from the base delay again."""
        self._last = 0.0

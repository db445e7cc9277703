"""Delays between attempts of a loop: decorrelated jitter between two bounds."""

from __future__ import annotations

import random
from dataclasses import dataclass, field


@dataclass(slots=True)
class Backoff:
    """A delay that grows with each failure and starts again after `reset`.

    Each delay is random in [base, 3 x the last delay], at most `cap_seconds`, so that many
    processes that lost the same server do not return at the same time.
    """

    base_seconds: float = 0.8
    cap_seconds: float = 30.0
    random: random.Random = field(default_factory=random.Random)
    _last: float = 0.0

    def next_seconds(self) -> float:
        """Return the next wait in seconds."""
        high = max(self.base_seconds, self._last * 3)
        self._last = min(self.cap_seconds, self.random.uniform(self.base_seconds, high))
        if self._last == self.base_seconds:
            # The first range would be empty, so the first delay is spread separately.
            self._last = self.random.uniform(self.base_seconds, self.base_seconds * 2)
        return self._last

    def reset(self) -> None:
        """Forget the failures."""
        self._last = 0.0

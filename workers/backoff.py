"""Waiting times between attempts of a loop: decorrelated jitter between two bounds."""

from __future__ import annotations

import random
from dataclasses import dataclass, field


@dataclass(slots=True)
class Backoff:
    """Grows with each failure, starts over after a success.

    Each wait is drawn from [base, 3 x the last wait], at most `cap_seconds`, so that many
    processes that lost the same server do not return at the same instant.
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
            # The first draw has an empty range; spread it as the later ones.
            self._last = self.random.uniform(self.base_seconds, self.base_seconds * 2)
        return self._last

    def reset(self) -> None:
        """Forget the failures."""
        self._last = 0.0

"""How long may a call still run whose end nobody saw?"""

from __future__ import annotations

from typing import Final

# After the deadline of a call: what the driver needs to notice it, and clocks that differ.
MARGIN_SECONDS: Final = 1.0


def seconds_left(deadline: float, now: float) -> float:
    """Seconds until nobody has to wait for it; 0 for a deadline of 0, which is none."""
    return max(0.0, deadline + MARGIN_SECONDS - now) if deadline else 0.0

"""Looking at everything undecided once more from time to time (M-016).

Repairs what no event would: an attempt that was given up, an ignored claim, a lost wake-up.
Settled objects are not touched, and the keys come spread over time (S-003).
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

from workers.observability.logging import get_logger

if TYPE_CHECKING:
    from watcher.outbox import Outbox
    from watcher.undecided import Undecided

_log = get_logger()

# Keys that become due each second when many are added at once, at a resync or after Redis lost
# its data: well below what one worker takes, so that new claims keep their latency.
SPREAD_PER_SECOND: Final = 200.0


def add_everything(undecided: Undecided, outbox: Outbox) -> int:
    """Add all undecided keys, spread over time; returns how many."""
    keys = undecided.all_keys()
    outbox.add_spread(keys, per_second=SPREAD_PER_SECOND)
    return len(keys)


class Resync:
    """Adds everything undecided each `period_seconds`."""

    def __init__(self, undecided: Undecided, outbox: Outbox, *, period_seconds: float) -> None:
        self._undecided = undecided
        self._outbox = outbox
        self.period_seconds = period_seconds
        self._stopped = threading.Event()

    def run(self) -> None:
        """Wait and add until `stop`."""
        while not self._stopped.wait(self.period_seconds):
            count = add_everything(self._undecided, self._outbox)
            _log.info("resync", keys=count)

    def stop(self) -> None:
        """End `run` soon."""
        self._stopped.set()

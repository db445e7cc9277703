"""Looking at everything undecided once more from time to time (M-016).

Repairs what no event would: an attempt that was given up, an ignored claim, a lost wake-up.
Settled objects are not touched, and the keys come spread over time (S-003).
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from workers.observability.logging import get_logger

if TYPE_CHECKING:
    from collections.abc import Callable

_log = get_logger()


class Resync:
    """Adds everything undecided each `period_seconds`."""

    def __init__(self, add_everything: Callable[[], None], *, period_seconds: float) -> None:
        self._add_everything = add_everything
        self.period_seconds = period_seconds
        self._stopped = threading.Event()

    def run(self) -> None:
        """Wait and add until `stop`."""
        while not self._stopped.wait(self.period_seconds):
            _log.info("resync")
            self._add_everything()

    def stop(self) -> None:
        """End `run` soon."""
        self._stopped.set()

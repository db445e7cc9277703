"""A signal ends a wait at once.

After a signal's handler Python goes on with the wait that it interrupted, in Celery's event loop up
to a second: that long each worker would take to notice SIGTERM. A wait for a lock may not even be
interrupted, if the signal was given to another thread.
"""

from __future__ import annotations

import contextlib
import select
import signal
import socket
from typing import Any


class SignalWaker:
    """A socket that can be read after each signal; make it in the main thread, once."""

    def __init__(self) -> None:
        self._reader, self._writer = socket.socketpair()
        for end in (self._reader, self._writer):
            end.settimeout(0)
        self._wait = select.poll()  # select() takes no descriptor from 1024 on
        self._wait.register(self._reader, select.POLLIN)
        signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)

    def attach(self, hub: Any) -> None:
        """Let this event loop wait for it too; safe to call again."""
        hub.add_reader(self._reader, self._drain)

    def wait(self) -> None:
        """Until a signal came that has a handler."""
        self._wait.poll()
        self._drain()

    def close(self) -> None:
        """Signals are told nobody any more."""
        signal.set_wakeup_fd(-1)
        self._reader.close()
        self._writer.close()

    def _drain(self) -> None:
        with contextlib.suppress(BlockingIOError):
            self._reader.recv(4096)

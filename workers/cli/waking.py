"""Makes a signal end a wait at once.

After a signal handler has run, Python resumes the wait that the signal interrupted. In Celery's
event loop that wait takes up to a second, so each worker would take that long to notice SIGTERM. A
wait for a lock may not be interrupted at all if the signal was delivered to another thread.
"""

from __future__ import annotations

import contextlib
import select
import signal
import socket
from typing import Any


class SignalWaker:
    """A socket that becomes readable after each signal; create only one, in the main thread."""

    def __init__(self) -> None:
        self._reader, self._writer = socket.socketpair()
        for end in (self._reader, self._writer):
            end.settimeout(0)
        self._wait = select.poll()  # select() does not accept descriptors above 1023
        self._wait.register(self._reader, select.POLLIN)
        signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)

    def attach(self, hub: Any) -> None:
        """Make this event loop wait for the socket too; calling this more than once is harmless."""
        hub.add_reader(self._reader, self._drain)

    def wait(self) -> None:
        """Wait until a signal that has a handler arrives."""
        self._wait.poll()
        self._drain()

    def close(self) -> None:
        """Stop receiving signals."""
        signal.set_wakeup_fd(-1)
        self._reader.close()
        self._writer.close()

    def _drain(self) -> None:
        with contextlib.suppress(BlockingIOError):
            self._reader.recv(4096)

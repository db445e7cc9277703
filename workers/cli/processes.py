"""Starts the supervisor's child processes, restarts them with back-off, and stops them."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from workers.cli import forking

if TYPE_CHECKING:
    from pathlib import Path

    from workers.cli.forking import ForkedProcess

PR_SET_PDEATHSIG = 1
RESTART_BASE_SECONDS = 1.0
RESTART_CAP_SECONDS = 30.0
# A part reports every 5 s that it is alive. If it has been silent for this long, it is treated as
# hanging.
SILENT_SECONDS = 120.0


def die_with_parent() -> None:
    """Make Linux kill this child when the supervisor dies; call it just before exec."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


@dataclass
class Child:
    """One part of the system as a child process.

    Attributes:
        name: watcher, worker, beat or flower; also shown in messages.
        argv: the arguments after `python -m`.
        ready: whether the part has reported that it works; an exit before that is fatal.
        live: the file in which the part reports hanging threads; without the file, the part is
            not checked.
    """

    name: str
    argv: list[str]
    env: dict[str, str]
    ready: bool = False
    process: subprocess.Popen[bytes] | ForkedProcess | None = None
    failures: int = 0
    next_start: float = field(default=0.0)
    live: Path | None = None
    _told: int = 0
    _told_at: float = 0.0
    _complaint: str = ""

    def start(self) -> None:
        """Start the process in its own session, where signals to the supervisor do not reach it."""
        self.process = subprocess.Popen(  # noqa: S603 - our own modules, no shell
            [sys.executable, "-m", *self.argv],
            env={**os.environ, **self.env},
            start_new_session=True,
            preexec_fn=die_with_parent,  # noqa: PLW1509 - the supervisor has one thread
        )

    def fork(self) -> None:
        """Like `start`, but fork this process, which has already imported everything."""
        self.process = forking.fork(self.argv, self.env, die_with_parent)

    def exit_code(self) -> int | None:
        """Return the exit code, or None while the process is running.

        If a signal ended the process, return 128 plus the signal's number.
        """
        code = None if self.process is None else self.process.poll()
        return code if code is None or code >= 0 else 128 - code

    def hangs(self) -> str:
        """Return what is hanging in the part, or that it is silent; "" if it is healthy."""
        try:
            told = self.live.stat().st_mtime_ns if self.live is not None else 0
            if told != self._told:
                self._complaint = self.live.read_text() if self.live is not None else ""
                self._told, self._told_at = told, time.monotonic()
        except FileNotFoundError:
            return ""
        # CLOCK_MONOTONIC stops while the machine is suspended.
        silent = time.monotonic() - self._told_at
        if not self._complaint and told and silent > SILENT_SECONDS:
            return f"silent for {silent:.0f} s"
        return self._complaint

    def schedule_restart(self) -> float:
        """Schedule the next start with exponential back-off; return the delay in seconds."""
        delay = min(RESTART_BASE_SECONDS * 2.0 ** min(self.failures, 10), RESTART_CAP_SECONDS)
        self.failures += 1
        self.process = None
        if self.live is not None:
            self.live.unlink(missing_ok=True)
        self.next_start = time.monotonic() + delay
        return delay

    def terminate(self) -> None:
        """Ask the process to stop."""
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()

    def kill(self) -> None:
        """Kill the process and wait until it has ended."""
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()


def stop_all(children: list[Child], *, grace_seconds: float) -> None:
    """Stop all parts together and wait; parts that exceed the grace time are killed."""
    for child in children:
        child.terminate()
    end = time.monotonic() + grace_seconds
    for child in children:
        if child.process is not None:
            try:
                child.process.wait(max(0.05, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                child.kill()

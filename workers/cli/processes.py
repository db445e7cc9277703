"""Child processes of the supervisor: start, restart with back-off, stop in order."""

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
# A part tells each 5 s that it lives.
SILENT_SECONDS = 120.0


def die_with_parent() -> None:
    """In a child just before exec: asks Linux for SIGKILL when the supervisor dies."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


@dataclass
class Child:
    """One part of the system as a child process.

    Attributes:
        name: watcher, worker, beat or flower; also the name in messages.
        argv: arguments after `python -m`.
        ready: True once the part has said that it works; an exit before that is fatal.
        live: where it keeps saying what hangs in it; None or no such file: it says nothing.
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
        """Starts the process in a session of its own, so that a signal to us is not one to it."""
        self.process = subprocess.Popen(  # noqa: S603 - our own modules, no shell
            [sys.executable, "-m", *self.argv],
            env={**os.environ, **self.env},
            start_new_session=True,
            preexec_fn=die_with_parent,  # noqa: PLW1509 - the supervisor has one thread
        )

    def fork(self) -> None:
        """As `start`, but out of this process, which has imported everything already."""
        self.process = forking.fork(self.argv, self.env, die_with_parent)

    def exit_code(self) -> int | None:
        """Exit code if it has ended, else None; a signal gives 128 + its number."""
        code = None if self.process is None else self.process.poll()
        return code if code is None or code >= 0 else 128 - code

    def hangs(self) -> str:
        """Which thread of it hangs, or that it says nothing any more; "" for none."""
        try:
            told = self.live.stat().st_mtime_ns if self.live is not None else 0
            if told != self._told:
                self._complaint = self.live.read_text() if self.live is not None else ""
                self._told, self._told_at = told, time.monotonic()
        except FileNotFoundError:
            return ""
        # By our own clock, which stands still while the machine sleeps.
        silent = time.monotonic() - self._told_at
        if not self._complaint and told and silent > SILENT_SECONDS:
            return f"silent for {silent:.0f} s"
        return self._complaint

    def schedule_restart(self) -> float:
        """Plans the next start with exponential back-off; returns its delay in seconds."""
        delay = min(RESTART_BASE_SECONDS * 2.0 ** min(self.failures, 10), RESTART_CAP_SECONDS)
        self.failures += 1
        self.process = None
        if self.live is not None:
            self.live.unlink(missing_ok=True)
        self.next_start = time.monotonic() + delay
        return delay

    def terminate(self) -> None:
        """Asks the process to stop."""
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()

    def kill(self) -> None:
        """Ends the process at once."""
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()


def stop_all(children: list[Child], *, grace_seconds: float) -> None:
    """Stops the parts together and waits; what is left after the grace time is killed."""
    for child in children:
        child.terminate()
    end = time.monotonic() + grace_seconds
    for child in children:
        if child.process is not None:
            try:
                child.process.wait(max(0.05, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                child.kill()

"""Starts the parts of a run by forking, so that they need not import everything again.

Python needs more than half a second of CPU time to import what watcher, worker and beat share. The
supervisor imports these modules once and forks, so each part starts at once and shares that memory.
It forks only while it has a single thread and no connections. A part that is restarted later gets a
new interpreter, and so does every part once the supervisor serves HTTP.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import signal
import subprocess
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

# The supervisor only passes on these names; it does not use the modules itself.
WATCHER: Final = "watcher.__main__"
WORKERS: Final = ("workers.cli.worker", "workers.cli.beat")
POLL_SECONDS: Final = 0.02


def preload(*names: str) -> None:
    """Import the modules that the parts need, and exempt them from garbage collection."""
    gc.disable()
    for name in names:
        importlib.import_module(name)
    gc.freeze()
    gc.enable()


def is_possible() -> bool:
    """Return True if this process has only one thread, so that a fork copies all of it."""
    return hasattr(os, "fork") and threading.active_count() == 1


class ForkedProcess:
    """A forked part, with the methods of subprocess.Popen that the supervisor uses."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Return the exit code (negative for a signal), or None while the part is running."""
        if self.returncode is None:
            with contextlib.suppress(ChildProcessError):
                pid, status = os.waitpid(self.pid, os.WNOHANG)
                if pid:
                    self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait until the part ends.

        Raises:
            subprocess.TimeoutExpired: the part is still running.
        """
        end = None if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            if end is not None and time.monotonic() >= end:
                raise subprocess.TimeoutExpired(str(self.pid), timeout or 0.0)
            time.sleep(POLL_SECONDS)
        return code

    def terminate(self) -> None:
        """Send SIGTERM, unless the part has ended."""
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL, unless the part has ended."""
        self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)


def fork(argv: Sequence[str], env: Mapping[str, str], prepare: Callable[[], None]) -> ForkedProcess:
    """Run `python -m argv[0] argv[1:]` in a fork of this process, in its own session.

    Args:
        argv: the module, followed by its arguments.
        env: variables that are added to the environment of the part.
        prepare: a function that the part calls first.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        _become(argv, env, prepare)
    return ForkedProcess(pid)


def _become(argv: Sequence[str], env: Mapping[str, str], prepare: Callable[[], None]) -> NoReturn:
    code = 1
    try:
        os.setsid()
        with contextlib.suppress(OSError):  # shown by `ps -o comm`; otherwise the parent's
            Path("/proc/self/comm").write_text(" ".join(a for a in argv[:2] if a[:1] != "-"))
        prepare()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        os.environ.update(env)
        code = importlib.import_module(f"{argv[0]}.__main__").main(argv[1:])
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:  # noqa: BLE001 - no code above this frame must run in the part
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)

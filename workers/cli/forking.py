"""Starting the parts of a run without importing everything again in each of them.

Python needs more than half a second of CPU to import what watcher, worker and beat share. The
supervisor imports it once and forks: each part starts at once and shares that memory. Only done
while the supervisor has a single thread and has connected to nothing; a part that is started again
later gets a new interpreter, as does every part once the supervisor serves HTTP.
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

# By name: the supervisor decides nothing that these modules know.
WATCHER: Final = "watcher.__main__"
WORKERS: Final = ("workers.cli.worker", "workers.cli.beat")
POLL_SECONDS: Final = 0.02


def preload(*names: str) -> None:
    """Imports what a part needs and keeps it out of the garbage collector's way."""
    gc.disable()
    for name in names:
        importlib.import_module(name)
    gc.freeze()
    gc.enable()


def is_possible() -> bool:
    """True while a fork copies everything there is: one thread."""
    return hasattr(os, "fork") and threading.active_count() == 1


class ForkedProcess:
    """A forked part, with the part of subprocess.Popen's interface that the supervisor uses."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Exit code if it has ended, negative for a signal; else None."""
        if self.returncode is None:
            with contextlib.suppress(ChildProcessError):
                pid, status = os.waitpid(self.pid, os.WNOHANG)
                if pid:
                    self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Waits for the end.

        Raises:
            subprocess.TimeoutExpired: it still runs.
        """
        end = None if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            if end is not None and time.monotonic() >= end:
                raise subprocess.TimeoutExpired(str(self.pid), timeout or 0.0)
            time.sleep(POLL_SECONDS)
        return code

    def terminate(self) -> None:
        """SIGTERM, unless it has ended."""
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL, unless it has ended."""
        self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)


def fork(argv: Sequence[str], env: Mapping[str, str], prepare: Callable[[], None]) -> ForkedProcess:
    """Runs `python -m argv[0] argv[1:]` in a fork of this process, in a session of its own.

    Args:
        argv: module, then its arguments.
        env: added to the environment of the part.
        prepare: called in the part before anything else.
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
        with contextlib.suppress(
            OSError
        ):  # what `ps -o comm` shows: a fork keeps its parent's line
            Path("/proc/self/comm").write_text(" ".join(a for a in argv[:2] if a[:1] != "-"))
        prepare()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        os.environ.update(env)
        code = importlib.import_module(f"{argv[0]}.__main__").main(argv[1:])
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:  # noqa: BLE001 - nothing above this frame may run in the part
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)

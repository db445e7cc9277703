"""Reports what a command is waiting for, after two seconds and then every five seconds.

This module inspects the stack of the command's thread and finds the adapter whose code is running.
So no adapter needs to support this, and a command that sleeps on purpose reports nothing.
"""

from __future__ import annotations

import sys
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

FIRST_SECONDS: Final = 2.0
NEXT_SECONDS: Final = 5.0
_ADAPTERS: Final = {
    "workers.queue": "Redis",
    "workers.kube": "the API server",
    "csi_client": "the driver",
}


@contextmanager
def patience(command: str) -> Iterator[None]:
    """While the command runs, write a line to standard error for each long wait."""
    done = threading.Event()
    thread = threading.Thread(
        target=_watch, args=(command, threading.get_ident(), done), daemon=True, name="patience"
    )
    thread.start()
    try:
        yield
    finally:
        done.set()


def _watch(command: str, ident: int, done: threading.Event) -> None:
    before, since, told = "", time.monotonic(), FIRST_SECONDS
    while not done.wait(0.2):
        now, what = time.monotonic(), waited_for(sys._current_frames().get(ident))  # noqa: SLF001
        if what != before:
            before, since, told = what, now, FIRST_SECONDS
        elif what and now - since >= told:
            seconds = f"{now - since:.0f} s"
            sys.stderr.write(f"csi-fleet {command}: waiting for {what} ({seconds})\n")
            sys.stderr.flush()
            told += NEXT_SECONDS


def waited_for(frame: FrameType | None) -> str:
    """Return the name of the adapter that a frame's code is waiting for; "" if there is none."""
    while frame is not None:
        name = str(frame.f_globals.get("__name__", ""))
        for package, what in _ADAPTERS.items():
            if name == package or name.startswith(f"{package}."):
                return what
        if name.startswith("workers.cli"):
            return ""
        frame = frame.f_back
    return ""

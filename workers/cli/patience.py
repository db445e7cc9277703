"""A command that waits says on what: after two seconds of silence, then each five.

What is waited for is read off the stack of the thread that runs the command: whose adapter it is
in. So no adapter has to know of it, and a command that sleeps on purpose says nothing.
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
    """While the command runs, a line on standard error for each wait that lasts."""
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
    """Whose answer the code of a frame waits for, "" for nobody's."""
    while frame is not None:
        name = str(frame.f_globals.get("__name__", ""))
        for package, what in _ADAPTERS.items():
            if name == package or name.startswith(f"{package}."):
                return what
        if name.startswith("workers.cli"):
            return ""
        frame = frame.f_back
    return ""

"""Profiles of this process, in place of Go's /debug/pprof/ (`--enable-pprof`).

A profile samples the stacks of all threads and prints them in folded form (`root;...;leaf count`),
a format that flame graph tools read. Nothing runs unless a request asks for it.
"""

from __future__ import annotations

import gc
import sys
import threading
import time
import traceback
from collections import Counter
from pathlib import PurePath
from typing import TYPE_CHECKING, Final

from workers.observability.logformat import strip_text

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import FrameType

MAX_PROFILE_SECONDS: Final = 120.0
"""Maximum duration of a profile that a request can ask for."""

# 100 samples per second, as in Go's profiler.
_SAMPLE_PERIOD_SECONDS: Final = 0.01

# The maximum number of types on the heap page.
_HEAP_ROWS: Final = 50

INDEX: Final = """Profiles of csi-fleet (Python):
  cmdline              arguments of the process
  goroutine            stacks of all threads
  heap                 live objects by type
  profile?seconds=30   folded stacks, sampled
"""


def command_line(arguments: Sequence[str]) -> str:
    """Return the arguments separated by NUL, as Go does, with logins hidden."""
    return "\0".join(strip_text(argument) for argument in arguments)


def thread_stacks() -> str:
    """Return the stack of every thread, with the newest call first, as Go does."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    blocks = []
    for ident, frame in sorted(sys._current_frames().items()):  # noqa: SLF001  its documented name
        lines = [line.rstrip() for line in reversed(traceback.format_stack(frame))]
        blocks.append("\n".join([f"thread {ident} [{names.get(ident, 'unknown')}]:", *lines]))
    return "\n\n".join(blocks) + "\n"


def heap() -> str:
    """Return the number of objects that the garbage collector tracks, by type.

    The most frequent types come first.
    """
    counts = Counter(f"{type(o).__module__}.{type(o).__qualname__}" for o in gc.get_objects())
    rows = [f"{count:9d} {name}" for name, count in counts.most_common(_HEAP_ROWS)]
    return "\n".join([f"{counts.total():9d} objects in all", *rows]) + "\n"


def profile(seconds: float, stop: threading.Event) -> str:
    """Sample all other threads for `seconds` and return folded stacks, most frequent first.

    Args:
        seconds: how long to sample, at most `MAX_PROFILE_SECONDS`.
        stop: an event that ends the profile early when it is set.
    """
    stacks: Counter[str] = Counter()
    end = time.monotonic() + min(seconds, MAX_PROFILE_SECONDS)
    own = threading.get_ident()
    while time.monotonic() < end and not stop.wait(_SAMPLE_PERIOD_SECONDS):
        for ident, frame in sys._current_frames().items():  # noqa: SLF001  as above
            if ident != own:
                stacks[_fold(frame)] += 1
    return "".join(f"{stack} {count}\n" for stack, count in stacks.most_common())


def _fold(frame: FrameType | None) -> str:
    calls = []
    while frame is not None:
        code = frame.f_code
        calls.append(f"{code.co_qualname} ({PurePath(code.co_filename).name})")
        frame = frame.f_back
    return ";".join(reversed(calls))

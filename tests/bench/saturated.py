"""Section `saturated`: a burst while others keep all cores busy.

Ten drivers, each a process that works some milliseconds on each call, and a busy loop per core:
each runnable thread of a system then gets its part of the processor, and one process against ten is
at its worst.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.bench.life import drivers_of
from tests.bench.systems import Ours, Peer, System
from tests.bench.throughput import Figures, measure
from tests.bench.usage import watches
from tests.support.kube_api import KubeApi
from tests.support.processes import start_process

DRIVERS = 10


@contextmanager
def busy_cores() -> Iterator[None]:
    """A process per core that computes for ever."""
    with tempfile.TemporaryDirectory(prefix="bb-") as folder, ExitStack() as stack:
        for number in range(os.cpu_count() or 1):
            command = [sys.executable, "-c", "while True: pass"]
            process = start_process("busy", command, log=Path(folder) / f"{number}.log")
            stack.callback(process.stop)
        yield


def measured(api: KubeApi, kubeconfig: Path, claims: int, peer: Path | None) -> Iterator[Figures]:
    """One burst of each system; ours chooses its worker processes by cores."""
    with drivers_of(DRIVERS) as drivers:
        makers: list[Callable[[], System]] = [lambda: Ours(kubeconfig, drivers, workers=0)]
        if peer is not None:
            binary = peer
            makers.append(lambda: Peer(binary, kubeconfig, drivers))
        for make in makers:
            idle = watches(api)
            with make() as system, busy_cores():
                found = measure(api, system, drivers.names, claims=claims, idle_watches=idle)
            found.mode += ", all cores busy"
            yield found

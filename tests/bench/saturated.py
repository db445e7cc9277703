"""Section `saturated`: a burst, and claims at steady rates, while others keep all cores busy.

Ten drivers, each a process that works some milliseconds on each call, and a busy loop per core:
each runnable thread of a system then gets its part of the processor, and one process against ten is
at its worst. How fast a burst's claims are made depends on what the system leaves of the cores and
the API server to who makes them; at a steady rate both systems get the same claims at the same
moments.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.bench.life import drivers_of
from tests.bench.systems import Ours, Peer, ours
from tests.bench.throughput import Figures, measure
from tests.bench.usage import watches
from tests.support.kube_api import KubeApi
from tests.support.processes import start_process

DRIVERS = 10
# Claims a second after the burst, and for how long.
STEADY_RATES = (20, 40)
STEADY_SECONDS = 12


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
    """The burst and the steady rates of each system; ours chooses its worker processes by cores."""
    loads = [(claims, 0), *((rate * STEADY_SECONDS, rate) for rate in STEADY_RATES)]
    with drivers_of(DRIVERS) as drivers:
        makers = ours(lambda code: Ours(kubeconfig, drivers, workers=0, code=code))
        if peer is not None:
            binary = peer
            makers.append(lambda: Peer(binary, kubeconfig, drivers))
        for make in makers:
            idle = watches(api)
            with make() as system, busy_cores():
                for count, rate in loads:
                    found = measure(
                        api,
                        system,
                        drivers.names,
                        claims=count,
                        idle_watches=idle,
                        per_second=rate,
                    )
                    found.mode += ", all cores busy"
                    yield found

"""Section `saturated`: a burst and steady rates of claims, while other processes keep all cores
busy.

There are ten drivers, each a process that works for some milliseconds on each call, and one busy
loop per core. Each runnable thread of a system then gets its share of the processor, which is the
worst case for one process against ten. The speed at which the claims of a burst are created depends
on the CPU that the system leaves to their creators and to the API server. At a steady rate both
systems get the same claims at the same moments.
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
# Claims a second after the burst, and the seconds that each rate lasts.
STEADY_RATES = (20, 40)
STEADY_SECONDS = 12


@contextmanager
def busy_cores() -> Iterator[None]:
    """Run one process per core that computes forever."""
    with tempfile.TemporaryDirectory(prefix="bb-") as folder, ExitStack() as stack:
        for number in range(os.cpu_count() or 1):
            command = [sys.executable, "-c", "while True: pass"]
            process = start_process("busy", command, log=Path(folder) / f"{number}.log")
            stack.callback(process.stop)
        yield


def measured(api: KubeApi, kubeconfig: Path, claims: int, peer: Path | None) -> Iterator[Figures]:
    """Yield the burst and the steady rates; csi-fleet chooses its number of workers."""
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

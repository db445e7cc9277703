"""Measure the cost for a worker when Flower watches its tasks.

Run: python -m tests.bench.watched [ROUNDS]

The same burst of claims at one driver runs alternately without a watching client and with a client
that asks for events every 5 s and receives them, as Flower does. The figures are the CPU of
csi-fleet's processes alone.
"""

from __future__ import annotations

import os
import statistics
import sys
import threading
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from tests.bench.__main__ import cluster
from tests.bench.sections import bench_drivers
from tests.bench.systems import Ours
from tests.bench.throughput import Figures, measure
from tests.support.kube_api import KubeApi
from workers.app import make_app
from workers.config.load import parse

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

CLAIMS = 400
ASK_SECONDS = 5.0


@contextmanager
def watching(redis_url: str) -> Iterator[list[int]]:
    """Ask for the events of tasks and receive them; yield their count."""
    app = make_app(parse("worker", [f"--redis-url={redis_url}"], {}))
    ended, counted = threading.Event(), [0]

    def ask() -> None:
        while not ended.is_set():
            app.control.enable_events()
            ended.wait(ASK_SECONDS)

    def count(_event: object) -> None:
        counted[0] += 1

    def receive() -> None:
        with app.connection() as connection:
            receiver = app.events.Receiver(connection, handlers={"*": count})
            while not ended.is_set():
                try:
                    receiver.capture(limit=None, timeout=1.0)
                except TimeoutError:
                    continue

    threads = [threading.Thread(target=one, daemon=True) for one in (ask, receive)]
    for thread in threads:
        thread.start()
    try:
        ended.wait(1.0)  # the worker has been asked
        yield counted
    finally:
        ended.set()
        for thread in threads:
            thread.join()


def burst(api: KubeApi, kubeconfig: Path, *, is_watched: bool) -> tuple[Figures, int]:
    """Run one burst; return its figures and the number of received events."""
    with bench_drivers(1) as drivers, Ours(kubeconfig, drivers) as system, ExitStack() as stack:
        counted = [0]
        if is_watched:
            counted = stack.enter_context(watching(system.fleet.redis_url))
        return measure(api, system, drivers.names, claims=CLAIMS, idle_watches=0), counted[0]


def main(arguments: list[str]) -> None:
    rounds = int(arguments[0]) if arguments else 3
    found: dict[bool, list[Figures]] = {False: [], True: []}
    with cluster(os.environ) as kubeconfig, KubeApi(kubeconfig) as api:
        for number in range(rounds):
            for is_watched in (False, True) if number % 2 == 0 else (True, False):
                figures, events = burst(api, kubeconfig, is_watched=is_watched)
                found[is_watched].append(figures)
                word = f"watched, {events} events" if is_watched else "not watched"
                cpu = ", ".join(f"{name} {ms}" for name, ms in figures.cpu_ms.items())
                print(f"{word}: {figures.pv_per_s} PV/s; ms of CPU a claim: {cpu}", flush=True)
    for is_watched, runs in found.items():
        cpu = statistics.median(one.cpu_total for one in runs)
        rate = statistics.median(one.pv_per_s for one in runs)
        print(f"{'watched' if is_watched else 'not watched'}: {cpu:.2f} ms a claim, {rate} PV/s")


if __name__ == "__main__":
    main(sys.argv[1:])

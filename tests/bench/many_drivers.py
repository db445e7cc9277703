"""Measure sixteen good drivers with and without four bad ones in the same run.

`python -m tests.bench.many_drivers KUBECONFIG [ROUNDS]`: each round makes one claim for each of
sixteen drivers while four others are idle. Then it does the same while one of the four hangs, one
answers only ResourceExhausted, one loses its socket every two seconds and one is flooded: 60 claims
wait for it, and each finished claim is replaced. The output is the time from a claim's creation to
CreateVolume, and the part of it from the queue on. Rounds of both kinds alternate, so that the load
of the machine is the same for both.

The flood is made before the measured rounds, because the API server needs 8 ms of CPU to accept a
claim. Creating 200 claims at full speed fills two cores and delays watches, whichever program
provisions.
"""

from __future__ import annotations

import itertools
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import redis

from tests.support.driver_host import DriverHost
from tests.support.fleet import Fleet, Scene
from tests.support.kube_api import KubeApi
from tests.support.waiting import wait_until
from workers.queue.names import NAMES

Row = tuple[float, float]
FLOOD = 60
# With 10 calls at once this is 4 volumes a second, so that the run does not measure the machine: 50
# a second fill two cores with the API server, etcd and kube-controller-manager, which also writes
# an event for each waiting claim every 15 s. Two different delays keep the calls from ending
# together.
FLOOD_DELAY_SECONDS = [2.0, 3.0]
FLOOD_PER_SECOND = 4
SETTLE_SECONDS = 2
BAD_CLAIMS = 8
PHASES = 3


class Bench:
    def __init__(self, scene: Scene, host: DriverHost, redis_url: str) -> None:
        self.scene = scene
        self.host = host
        self.redis = redis.Redis.from_url(redis_url)
        self.classes = {name: scene.storage_class(name) for name in host.names}
        self.numbers = itertools.count(1)

    def claim(self, name: str) -> dict[str, Any]:
        made = self.scene.claim(f"c{next(self.numbers)}", self.classes[name])
        return dict(made["metadata"])

    def queued_at(self, claim: dict[str, Any]) -> float:
        """Return when the claim's key was added to the queue."""
        key = f"{claim['namespace']}/{claim['name']}|{claim['uid']}"
        (note,) = self.redis.lrange(f"{NAMES['trail'].full}claims|{key}", 0, 0)
        return int(note.split()[0]) / 1000

    def rounds(self, good: list[str], count: int) -> list[Row]:
        """Return the milliseconds from a claim's creation, and from the queue, to CreateVolume."""
        found = []
        for _ in range(count):
            known = self.host.figures()
            created, claims = {}, {}
            for name in good:
                created[name] = time.time()
                claims[name] = self.claim(name)
                time.sleep(0.05)
            expected = {name: known[name]["creates"] + 1 for name in good}

            def arrived(expected: dict[str, int] = expected) -> bool:
                now = self.host.figures()
                return all(now[name]["creates"] >= least for name, least in expected.items())

            wait_until(arrived, 60, "all of the round arrive", interval_seconds=0.2)
            now = self.host.figures()
            for name in good:
                start = now[name]["starts"][-1]
                queued = self.queued_at(claims[name])
                found.append((1000 * (start - created[name]), 1000 * (start - queued)))
        return found


def report(title: str, rows: list[Row]) -> None:
    for part, column in (("from creation", 0), ("from the queue", 1)):
        found = sorted(row[column] for row in rows)
        p99 = found[min(len(found) - 1, int(len(found) * 0.99))]
        print(
            f"{title:12} {part:14} {len(found):4} claims  p50 {statistics.median(found):5.0f} ms  "
            f"p90 {found[int(len(found) * 0.9)]:5.0f} ms  p99 {p99:5.0f} ms  "
            f"max {found[-1]:5.0f} ms"
        )


def main() -> None:
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 12
    names = [f"many{number}.csi.example.org" for number in range(20)]
    hang, full, crash, flood, *good = names
    with (
        tempfile.TemporaryDirectory(prefix="mb-") as folder,
        DriverHost(Path(folder) / "h", names) as host,
        KubeApi(Path(sys.argv[1])) as api,
    ):
        file = Path(folder) / "drivers.yaml"
        limits = "limits: {create: {concurrency: 10}}, timeouts: {create: 5s}"
        file.write_text(
            "drivers:\n"
            + "".join(f"- {{name: {n}, endpoint: {host.address(n)}, {limits}}}\n" for n in names)
        )
        flags = (f"--drivers-file={file}", "--workers=2", "-v=1")
        with Fleet(Path(folder) / "f", sys.argv[1], [], *flags) as fleet:
            scene = Scene(api)
            bench = Bench(scene, host, fleet.redis_url)
            quiet: list[Row] = []
            loud: list[Row] = []
            try:
                bench.rounds(good, 1)  # connects and warms everything
                for _ in range(PHASES):
                    quiet += bench.rounds(good, rounds // PHASES or 1)
                    loud += disturbed(
                        bench, good, (hang, full, crash, flood), rounds // PHASES or 1
                    )
                    scene.wait_bound(timeout_seconds=180)
            finally:
                scene.clean_up()
    report("undisturbed", quiet)
    report("disturbed", loud)


def disturbed(
    bench: Bench, good: list[str], bad: tuple[str, str, str, str], rounds: int
) -> list[Row]:
    """Run the rounds while four drivers are bad, then repair the drivers."""
    hang, full, crash, flood = bad
    host, over = bench.host, threading.Event()
    host.set_mode(hang, mode="hang")
    host.set_mode(full, mode="exhausted")
    host.set_mode(flood, delay=FLOOD_DELAY_SECONDS)

    def crash_on_and_on() -> None:
        is_gone = False
        while not over.wait(2):
            is_gone = not is_gone
            host.set_mode(crash, mode="gone" if is_gone else "ok")

    def flood_on_and_on() -> None:
        while not over.wait(1 / FLOOD_PER_SECOND):
            bench.claim(flood)

    threads = [threading.Thread(target=work) for work in (crash_on_and_on, flood_on_and_on)]
    try:
        for name in (hang, full, crash):
            for _ in range(BAD_CLAIMS):
                bench.claim(name)
        for _ in range(FLOOD):
            bench.claim(flood)
        time.sleep(SETTLE_SECONDS)
        for thread in threads:
            thread.start()
        return bench.rounds(good, rounds)
    finally:
        over.set()
        for thread in threads:
            if thread.is_alive():
                thread.join()
        for name in bad:
            host.set_mode(name)


if __name__ == "__main__":
    main()

"""Do sixteen good drivers notice four bad ones? Undisturbed and disturbed, side by side in one run.

`python -m tests.bench.many_drivers KUBECONFIG [ROUNDS]`: each round makes one claim for each of
sixteen drivers while four others are idle, then the same while one of the four hangs, one answers
only ResourceExhausted, one loses its socket every two seconds and one is flooded. Printed: time
from a claim's creation to CreateVolume. Rounds of both kinds alternate, so that the load of the
machine is the same for both.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path

from tests.support.driver_host import DriverHost
from tests.support.fleet import Fleet, Scene
from tests.support.kube_api import KubeApi
from tests.support.waiting import wait_until

FLOOD = 200
# With 10 calls at once this is 10 volumes a second: the machine must not be what is measured, and
# 50 a second fill two cores with API server, etcd and kube-controller-manager.
FLOOD_DELAY_SECONDS = 1.0
BAD_CLAIMS = 8
PHASES = 3


class Bench:
    def __init__(self, scene: Scene, host: DriverHost) -> None:
        self.scene = scene
        self.host = host
        self.classes = {name: scene.storage_class(name) for name in host.names}
        self.count = 0

    def claim(self, name: str) -> str:
        self.count += 1
        claim = f"c{self.count}"
        self.scene.claim(claim, self.classes[name])
        return claim

    def rounds(self, good: list[str], count: int) -> list[float]:
        """Milliseconds from each claim's creation to CreateVolume."""
        found = []
        for _ in range(count):
            known = self.host.figures()
            created = {}
            for name in good:
                created[name] = time.time()
                self.claim(name)
                time.sleep(0.05)
            expected = {name: known[name]["creates"] + 1 for name in good}

            def arrived(expected: dict[str, int] = expected) -> bool:
                now = self.host.figures()
                return all(now[name]["creates"] >= least for name, least in expected.items())

            wait_until(arrived, 60, "all of the round arrive", interval_seconds=0.2)
            now = self.host.figures()
            found += [1000 * (now[name]["starts"][-1] - created[name]) for name in good]
        return found


def report(title: str, found: list[float]) -> None:
    found.sort()
    p99 = found[min(len(found) - 1, int(len(found) * 0.99))]
    print(
        f"{title:12} {len(found):4} claims  p50 {statistics.median(found):6.0f} ms  "
        f"p90 {found[int(len(found) * 0.9)]:6.0f} ms  p99 {p99:6.0f} ms  max {found[-1]:6.0f} ms"
    )


def main() -> None:
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 6
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
        with Fleet(Path(folder) / "f", sys.argv[1], [], *flags):
            scene = Scene(api)
            bench = Bench(scene, host)
            quiet: list[float] = []
            loud: list[float] = []
            try:
                bench.rounds(good, 1)  # everything is connected and warm
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
) -> list[float]:
    """The rounds while four drivers are bad, and their mending."""
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

    thread = threading.Thread(target=crash_on_and_on)
    thread.start()
    try:
        for name in (hang, full, crash):
            for _ in range(BAD_CLAIMS):
                bench.claim(name)
        for _ in range(FLOOD):
            bench.claim(flood)
        return bench.rounds(good, rounds)
    finally:
        over.set()
        thread.join()
        for name in bad:
            host.set_mode(name)


if __name__ == "__main__":
    main()

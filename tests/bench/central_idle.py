"""Measure the cost of an idle central worker with 200 drivers, and the latency of a claim.

`python -m tests.bench.central_idle KUBECONFIG [DRIVERS]` prints CPU, memory and threads of the
worker, and the time from a claim's creation to CreateVolume.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

from tests.support.driver_host import DriverHost
from tests.support.fleet import Fleet, Scene
from tests.support.kube_api import KubeApi
from tests.support.waiting import wait_until

IDLE_SECONDS = 20
CLAIMS = 30


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def memory_mib(pid: int) -> float:
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) / 1024
    return 0.0


def measure(kubeconfig: str, count: int) -> None:
    names = [f"bench{number}.csi.example.org" for number in range(count)]
    with (
        tempfile.TemporaryDirectory(prefix="cb-") as folder,
        DriverHost(Path(folder) / "h", names) as host,
        KubeApi(Path(kubeconfig)) as api,
    ):
        file = Path(folder) / "drivers.yaml"
        file.write_text(
            "drivers:\n"
            + "".join(f"  - {{name: {name}, endpoint: {host.address(name)}}}\n" for name in names)
        )
        flags = (f"--drivers-file={file}", "--workers=1", "-v=4")
        started = time.monotonic()
        with Fleet(Path(folder) / "f", kubeconfig, [], *flags) as fleet:
            wait_until(lambda: fleet.log_text().count("Detected CSI") >= count, 60, "all known")
            print(f"{count} drivers known after {time.monotonic() - started:.1f} s")
            time.sleep(8)
            (pid,) = fleet.workers()
            before, begin = cpu_seconds(pid), time.monotonic()
            time.sleep(IDLE_SECONDS)
            share = (cpu_seconds(pid) - before) / (time.monotonic() - begin)
            threads = len(list(Path(f"/proc/{pid}/task").iterdir()))
            memory = memory_mib(pid)
            print(f"idle CPU {100 * share:.2f} % of a core, {memory:.1f} MiB, {threads} threads")
            scene = Scene(api)
            try:
                latency(scene, host, names[:: max(1, count // CLAIMS)])
            finally:
                scene.clean_up()


def latency(scene: Scene, host: DriverHost, names: list[str]) -> None:
    """Make one claim after the other, each of another driver, with an idle system in between."""
    found = []
    for number, name in enumerate(names):
        storage_class = scene.storage_class(name, f"c{number}")
        time.sleep(0.7)
        created = time.time()
        scene.claim(f"b{number}", storage_class)
        scene.wait_bound(f"b{number}")
        found.append(host.figures()[name]["starts"][-1] - created)
    found.sort()
    print(
        f"claim to CreateVolume: p50 {1000 * statistics.median(found):.0f} ms, "
        f"p95 {1000 * found[int(len(found) * 0.95)]:.0f} ms, max {1000 * found[-1]:.0f} ms"
    )


if __name__ == "__main__":
    for size in map(int, sys.argv[2:] or ["200"]):
        measure(sys.argv[1], size)

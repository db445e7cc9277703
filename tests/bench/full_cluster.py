"""As `tests.bench.full_namespace`, with everything real: how long do others' claims take to Bound?

    python -m tests.bench.full_cluster [CLAIMS] [--idle]

A control plane of its own, `csi-fleet run` with an example driver that has no room for the greedy
tenant's claims (264 KB of annotations each), and quiet claims at a steady rate. With `--idle` the
greedy claims are of a class that nobody serves: what remains is the API server's share.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.bench.load import Load, Times
from tests.support.controlplane import ControlPlane
from tests.support.csi_driver import DirectoryDriver
from tests.support.fleet import Fleet
from tests.support.kube_api import KubeApi
from tests.support.redis_server import find_redis_server
from workers.queue.connection import connect

OTHERS, PER_SECOND, CREATORS = 200, 10.0, 4
FILLING = {f"team/{number}": "x" * 250 for number in range(1000)}
HEAD = """\
| others | claims | p50 ms | p99 ms | PV saved, p99 ms | Redis |
|---|---|---|---|---|---|"""
GREEDY = "/api/v1/namespaces/greedy/persistentvolumeclaims"


def claim(number: int, size: str, **annotations: str) -> dict[str, object]:
    """One of the greedy tenant's claims."""
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": f"g{number}", "namespace": "greedy", "annotations": annotations},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": "greedy",
            "resources": {"requests": {"storage": size}},
        },
    }


def each(plane: ControlPlane, count: int, act: Callable[[KubeApi, int], object]) -> float:
    """Do it for so many numbers, side by side; returns the seconds that took."""
    numbers: Iterator[int] = iter(range(count))
    lock, started = threading.Lock(), time.monotonic()

    def run(one: KubeApi) -> None:
        with one as api:
            while True:
                with lock:
                    number = next(numbers, None)
                if number is None:
                    return
                act(api, number)

    apis = [plane.api() for _ in range(CREATORS)]
    threads = [threading.Thread(target=run, args=(one,)) for one in apis]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return time.monotonic() - started


@contextmanager
def stopping(plane: ControlPlane) -> Iterator[ControlPlane]:
    """Until the end."""
    try:
        yield plane
    finally:
        plane.stop()


def shown(name: str, times: Times, redis_url: str) -> None:
    """One line of the table."""
    found = sorted(times.bound[one] - times.created[one] for one in times.bound)
    p50, p99 = statistics.median(found), found[int(len(found) * 0.99) - 1]
    with connect(redis_url) as client:
        used = client.info("memory")["used_memory_human"]  # type: ignore[index]
    saved = sorted(times.saved[one] - times.created[one] for one in times.bound)
    most = saved[int(len(saved) * 0.99) - 1]
    numbers = " | ".join(f"{one * 1000:.0f}" for one in (p50, p99, most))
    print(f"| {name} | {len(found)} | {numbers} | {used} |", flush=True)


def recovered(api: KubeApi) -> float:
    """Seconds that a claim of the greedy tenant takes once its others are gone."""
    started = time.monotonic()
    api.create(claim(10**6, "1Mi"))
    while True:
        found = api.find(f"{GREEDY}/g{10**6}") or {}
        if found.get("status", {}).get("phase") == "Bound":
            return time.monotonic() - started
        time.sleep(0.02)


def main() -> None:
    """Alone, beside the greedy tenant, and after its claims are gone."""
    parser = argparse.ArgumentParser()
    parser.add_argument("claims", type=int, nargs="?", default=2000)
    parser.add_argument("--idle", action="store_true")
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="fc-") as name,
        stopping(ControlPlane(Path(name) / "plane").start()) as plane,
        plane.api() as api,
        DirectoryDriver() as driver,
        Fleet(Path(name) / "f", plane.kubeconfig, [driver]) as fleet,
        Load(api, "quiet", [driver.name]) as load,
    ):
        assert find_redis_server() is not None
        driver.set_capacity(maximum_volume_size=2**30)
        for kind, body in (
            ("Namespace", {"apiVersion": "v1"}),
            ("StorageClass", {"apiVersion": "storage.k8s.io/v1",
                              "provisioner": "nobody" if options.idle else driver.name}),
        ):  # fmt: skip
            api.create({"kind": kind, "metadata": {"name": "greedy"}, **body})
        load.run(50, per_second=PER_SECOND)
        print(HEAD, flush=True)
        shown("alone", load.run(OTHERS, per_second=PER_SECOND), fleet.redis_url)
        took = each(plane, options.claims, lambda a, n: a.create(claim(n, "1Ti", **FILLING)))
        print(f"filled in {took:.0f} s", flush=True)
        for part in ("beside", "beside, later"):
            times = load.run(OTHERS, per_second=PER_SECOND)
            shown(f"{part} {options.claims}", times, fleet.redis_url)
        each(plane, options.claims, lambda a, n: a.delete(f"{GREEDY}/g{n}"))
        while api.request("GET", GREEDY, params={"limit": "1"})["items"]:
            time.sleep(0.2)
        if not options.idle:
            print(f"the greedy one's next claim is bound after {recovered(api) * 1000:.0f} ms")
        shown("after deletion", load.run(OTHERS, per_second=PER_SECOND), fleet.redis_url)


if __name__ == "__main__":
    main()

"""Measure how long other tenants' claims take to Bound while one tenant's large claims fail.

    python -m tests.bench.full_cluster [CLAIMS] [--idle]

This is `tests.bench.full_namespace` with real parts. csi-fleet's share is the time from
kube-controller-manager's request for a volume (it handles one claim after the other, of all
tenants) to the saved PV. The run starts its own control plane and `csi-fleet run` with an example
driver that has no room for the greedy tenant's claims (264 KB of annotations each). Quiet claims
arrive at a steady rate. With `--idle` no driver serves the class of the greedy claims, so the API
server's share remains.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

from tests.bench.load import Load, Times
from tests.bench.resizing import at_once
from tests.support.controlplane import ControlPlane
from tests.support.csi_driver import DirectoryDriver
from tests.support.fleet import Fleet
from tests.support.kube_api import KubeApi
from workers.queue.connection import connect

OTHERS, PER_SECOND = 200, 10.0
FILLING = {f"team/{number}": "x" * 250 for number in range(1000)}
HEAD = """\
| others | claims | p50 ms | p99 ms | asked to saved, p50 ms | p99 ms | Redis |
|---|---|---|---|---|---|---|"""
GREEDY = "/api/v1/namespaces/greedy/persistentvolumeclaims"


def claim(number: int, size: str, **annotations: str) -> dict[str, object]:
    """Return a claim of the greedy tenant."""
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


def shown(name: str, times: Times, redis_url: str) -> None:
    """Print one line of the table."""
    found = sorted(times.bound[one] - times.created[one] for one in times.bound)
    p50, p99 = statistics.median(found), found[int(len(found) * 0.99) - 1]
    with connect(redis_url) as client:
        used = client.info("memory")["used_memory_human"]  # type: ignore[index]
    saved = sorted(times.saved[one] - times.asked[one] for one in times.bound)
    ours, most = statistics.median(saved), saved[int(len(saved) * 0.99) - 1]
    numbers = " | ".join(f"{one * 1000:.0f}" for one in (p50, p99, ours, most))
    print(f"| {name} | {len(found)} | {numbers} | {used} |", flush=True)


def recovered(api: KubeApi) -> float:
    """Return the seconds for a claim of the greedy tenant after its other claims are deleted."""
    started = time.monotonic()
    api.create(claim(10**6, "1Mi"))
    while True:
        found = api.find(f"{GREEDY}/g{10**6}") or {}
        if found.get("status", {}).get("phase") == "Bound":
            return time.monotonic() - started
        time.sleep(0.02)


def main() -> None:
    """Measure alone, next to the greedy tenant, and after its claims are deleted."""
    parser = argparse.ArgumentParser()
    parser.add_argument("claims", type=int, nargs="?", default=2000)
    parser.add_argument("--idle", action="store_true")
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="fc-") as name,
        ControlPlane(Path(name) / "plane") as plane,
        plane.api() as api,
        DirectoryDriver() as driver,
        Fleet(Path(name) / "f", plane.kubeconfig, [driver]) as fleet,
        Load(api, "quiet", [driver.name]) as load,
    ):
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
        started, numbers = time.monotonic(), range(options.claims)
        at_once(lambda number: api.create(claim(number, "1Ti", **FILLING)), numbers)
        print(f"filled in {time.monotonic() - started:.0f} s", flush=True)
        for part in ("beside", "beside, later"):
            times = load.run(OTHERS, per_second=PER_SECOND)
            shown(f"{part} {options.claims}", times, fleet.redis_url)
        at_once(lambda number: api.delete(f"{GREEDY}/g{number}"), numbers)
        while api.request("GET", GREEDY, params={"limit": "1"})["items"]:
            time.sleep(0.2)
        if not options.idle:
            print(f"the greedy one's next claim is bound after {recovered(api) * 1000:.0f} ms")
        shown("after deletion", load.run(OTHERS, per_second=PER_SECOND), fleet.redis_url)


if __name__ == "__main__":
    main()

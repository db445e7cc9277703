"""Measure how long a new snapshot takes beside 15,000 settled ones, and in an empty cluster.

    python -m tests.bench.many_snapshots [SETTLED] [MEASURED]

The run starts its own control plane and `csi-fleet run` with snapshotter, snapshot-controller and a
driver that answers at once. Snapshots are taken one after the other, each as soon as the one before
is ready. The settled snapshots are written while csi-fleet is stopped. Three lines are printed: the
empty cluster; beside the settled ones from the start of csi-fleet on; and beside them during
resyncs, one every 20 s.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from tests.bench.drivers import BenchDrivers
from tests.bench.resizing import Claims, at_once
from tests.bench.snapshotting import ROOT, VERSION, OurPair, Snapshots
from tests.bench.throughput import quantile
from tests.bench.usage import cpu_seconds, memory
from tests.support.controlplane import ControlPlane
from tests.support.fleet import ROOT as CODE
from tests.support.kube_api import KubeApi, KubeApiError
from tests.support.waiting import wait_until
from workers import constants as k

CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
DRIVER = "many.bench.example.org"
RESYNC_SECONDS = 20
HEAD = """\
| snapshots there | measured | p50 ms | p90 ms | longest ms | CPU s | watcher, workers, Redis MiB |
|---|---|---|---|---|---|---|"""


def status_subresource(api: KubeApi, *, on: bool) -> None:
    """Switch the kinds' status subresource, without which one POST writes a whole object."""
    for plural in ("volumesnapshots", "volumesnapshotcontents"):
        path = f"{CRDS}/{plural}.snapshot.storage.k8s.io"
        versions = api.get(path)["spec"]["versions"]
        versions[0]["subresources"] = {"status": {}} if on else {}
        api.patch(path, {"spec": {"versions": versions}})

        def is_switched(path: str = f"/apis/{VERSION}", name: str = f"{plural}/status") -> bool:
            return any(one["name"] == name for one in api.get(path)["resources"]) is on

        wait_until(is_switched, 30, "the subresource is switched")
    time.sleep(2)  # the API server's handler follows its discovery
    for plural in ("volumesnapshots", "volumesnapshotcontents"):

        def is_served(path: str = f"{ROOT}/{plural}") -> bool:
            with suppress(KubeApiError):  # the storage is being initialized again
                api.request("GET", path, params={"limit": "1"})
                return True
            return False

        wait_until(is_served, 120, f"{plural} are served")


def settled(api: KubeApi, claims: Claims, number: int) -> None:
    """Write a ready snapshot and its content, as both controllers leave them."""
    name, uid = f"old-{number}", f"00000000-0000-4000-8000-{number:012}"
    content = f"snapcontent-{uid}"
    snapshot: dict[str, Any] = {
        "apiVersion": VERSION,
        "kind": "VolumeSnapshot",
        "metadata": {
            "name": name,
            "namespace": claims.name,
            "finalizers": [k.FINALIZER_SNAPSHOT_AS_SOURCE, k.FINALIZER_SNAPSHOT_BOUND],
        },
        "spec": {
            "source": {"persistentVolumeClaimName": claims.names[number % len(claims.names)]},
            "volumeSnapshotClassName": claims.name,
        },
        "status": {
            "boundVolumeSnapshotContentName": content,
            "creationTime": "2026-01-01T00:00:00Z",
            "readyToUse": True,
            "restoreSize": "1Gi",
        },
    }
    made = api.create(snapshot)
    api.create(
        {
            "apiVersion": VERSION,
            "kind": "VolumeSnapshotContent",
            "metadata": {"name": content, "finalizers": [k.FINALIZER_CONTENT]},
            "spec": {
                "deletionPolicy": "Delete",
                "driver": DRIVER,
                "source": {"volumeHandle": claims.handle(claims.names[0])},
                "sourceVolumeMode": "Filesystem",
                "volumeSnapshotClassName": claims.name,
                "volumeSnapshotRef": {
                    "apiVersion": VERSION,
                    "kind": "VolumeSnapshot",
                    "namespace": claims.name,
                    "name": name,
                    "uid": made["metadata"]["uid"],
                },
            },
            "status": {
                "creationTime": 1767225600000000000,
                "readyToUse": True,
                "restoreSize": 2**30,
                "snapshotHandle": f"handle-{number}",
            },
        }
    )


class Taking:
    """Takes one snapshot after the other of one claim."""

    def __init__(self, api: KubeApi, snapshots: Snapshots) -> None:
        self.api, self.snapshots, self.taken = api, snapshots, 0

    def one(self) -> float:
        """Take a snapshot; return the seconds until it is ready."""
        name = f"new-{self.taken}"
        self.taken += 1
        claim = self.snapshots.claims.names[self.taken % len(self.snapshots.claims.names)]
        spec = {
            "source": {"persistentVolumeClaimName": claim},
            "volumeSnapshotClassName": self.snapshots.claims.name,
        }
        metadata = {"name": name, "namespace": self.snapshots.claims.name}
        started = time.monotonic()
        self.api.create(
            {"apiVersion": VERSION, "kind": "VolumeSnapshot", "metadata": metadata, "spec": spec}
        )
        while not (self.api.get(f"{self.snapshots.path}/{name}").get("status") or {}).get(
            "readyToUse"
        ):
            if time.monotonic() - started > 300:
                raise TimeoutError(f"snapshot {name} is not ready")
            time.sleep(0.005)
        return time.monotonic() - started


@contextmanager
def system(kubeconfig: Path, drivers: BenchDrivers, *flags: str) -> Iterator[OurPair]:
    """Yield csi-fleet as soon as it is started."""
    pair = OurPair(kubeconfig, drivers, *flags, code=CODE)
    pair.fleet.__enter__()
    try:
        yield pair
    finally:
        pair.fleet.__exit__(None, None, None)


def measure(name: str, pair: OurPair, taking: Taking, count: int, seconds: float = 0) -> float:
    """Take snapshots, at least `count` and for `seconds`; print a line and return the median."""
    pids = [pid for group in pair.groups().values() for pid in group]
    before, started = sum(map(cpu_seconds, pids)), time.monotonic()
    found: list[float] = []
    while len(found) < count or time.monotonic() - started < seconds:
        found.append(taking.one())
    cpu = sum(map(cpu_seconds, pids)) - before
    used = memory(pair.groups())
    shown = ", ".join(f"{used.get(role, 0):.0f}" for role in ("watcher", "workers", "redis"))
    found.sort()
    times = [statistics.median(found), quantile(found, 0.9), found[-1]]
    numbers = " | ".join(f"{1000 * one:.0f}" for one in times)
    print(f"| {name} | {len(found)} | {numbers} | {cpu:.1f} | {shown} |", flush=True)
    return times[0]


def main() -> None:
    """Measure in the empty cluster, then beside the settled snapshots."""
    parser = argparse.ArgumentParser()
    parser.add_argument("settled", type=int, nargs="?", default=15_000)
    parser.add_argument("measured", type=int, nargs="?", default=40)
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="ms-") as folder,
        ControlPlane(Path(folder) / "plane") as plane,
        plane.api() as api,
        BenchDrivers(Path(folder) / "d", [DRIVER], snapshots=True) as drivers,
        Claims(api, DRIVER, 50) as claims,
        Snapshots(api, claims) as snapshots,
    ):
        taking = Taking(api, snapshots)
        with system(plane.kubeconfig, drivers) as pair:
            for _ in range(5):
                taking.one()
            print(HEAD, flush=True)
            empty = measure("0", pair, taking, options.measured)
        started = time.monotonic()
        status_subresource(api, on=False)
        at_once(lambda number: settled(api, claims, number), range(options.settled))
        status_subresource(api, on=True)
        there = options.settled
        print(f"{there} there after {time.monotonic() - started:.0f} s", flush=True)
        with system(plane.kubeconfig, drivers, f"--resync-period={RESYNC_SECONDS}s") as pair:
            first = taking.one()
            print(f"the first one after the start: {1000 * first:.0f} ms", flush=True)
            start = measure(f"{there}, after the start", pair, taking, options.measured)
            time.sleep(5)
            resyncs = measure(
                f"{there}, resyncs", pair, taking, options.measured, 2.5 * RESYNC_SECONDS
            )
        print(f"ratio of medians: {start / empty:.2f}, {resyncs / empty:.2f}", flush=True)


if __name__ == "__main__":
    main()

"""Section `snapshots`: 80 snapshots of 80 volumes in a burst, then the deletion of all of them.

The volumes are made by hand, and the driver answers at once. With `PEER_SNAPSHOTTER` and
`PEER_SNAPSHOT_CONTROLLER` (paths of the two programs), csi-snapshotter and snapshot-controller are
measured in the same run. Each system runs without a limit of its request rate and with its default
limit (5 a second for each Go program; upstream issue 1344).
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

from tests.bench.drivers import BenchDrivers
from tests.bench.resizing import Claims, at_once
from tests.bench.systems import Ours, Peer, System, Together, ours
from tests.bench.throughput import cpu_per_claim, quantile
from tests.bench.usage import memory, sample
from tests.support.fleet import ROOT as HERE
from tests.support.kube_api import KubeApi
from tests.support.waiting import wait_until

VERSION = "snapshot.storage.k8s.io/v1"
ROOT = f"/apis/{VERSION}"
LONGEST_SECONDS = 400
OUR_RATE = ("--kube-api-qps=50", "--kube-api-burst=100")
Record = dict[str, Any]


class Snapshots:
    """One snapshot of each claim."""

    def __init__(self, api: KubeApi, claims: Claims) -> None:
        self.api, self.claims = api, claims
        self.path = f"{ROOT}/namespaces/{claims.name}/volumesnapshots"

    def __enter__(self) -> Self:
        body = {"driver": self.claims.driver, "deletionPolicy": "Delete"}
        self._create("VolumeSnapshotClass", {"name": self.claims.name}, body)
        return self

    def __exit__(self, *_: object) -> None:
        self.api.delete(f"{ROOT}/volumesnapshotclasses/{self.claims.name}")

    def _create(self, kind: str, metadata: Record, body: Record) -> None:
        self.api.create({"apiVersion": VERSION, "kind": kind, "metadata": metadata, **body})

    def take(self, claim: str) -> None:
        """Create a snapshot of a claim, with the claim's name."""
        source = {"persistentVolumeClaimName": claim}
        spec = {"source": source, "volumeSnapshotClassName": self.claims.name}
        metadata = {"name": claim, "namespace": self.claims.name}
        self._create("VolumeSnapshot", metadata, {"spec": spec})

    def _ready(self) -> set[str]:
        return {
            one["metadata"]["name"]
            for one in self.api.items(self.path)
            if (one.get("status") or {}).get("readyToUse")
        }

    def cut(self) -> list[float]:
        """Make all snapshots; return the seconds until each was ready, sorted."""
        started, found = time.monotonic(), dict[str, float]()
        at_once(self.take, self.claims.names)

        def all_ready() -> bool:
            now = time.monotonic()
            for name in self._ready():
                found.setdefault(name, now - started)
            return len(found) == len(self.claims.names)

        wait_until(all_ready, LONGEST_SECONDS, "all are ready", interval_seconds=0.1)
        return sorted(found.values())

    def drop(self) -> float:
        """Delete all snapshots; return the seconds until snapshots and contents are gone."""
        started = time.monotonic()
        at_once(lambda name: self.api.delete(f"{self.path}/{name}"), self.claims.names)
        contents = f"{ROOT}/volumesnapshotcontents"
        wait_until(
            lambda: not self.api.items(self.path) and not self.api.items(contents),
            LONGEST_SECONDS,
            "all are gone",
            interval_seconds=0.1,
        )
        return time.monotonic() - started


class OurPair(Ours):
    """Both controllers in one worker; the name shows if the request rate is the default."""

    def __init__(self, kubeconfig: Path, drivers: BenchDrivers, *rate: str, code: Path) -> None:
        super().__init__(
            kubeconfig,
            drivers,
            "--controllers=snapshotter,snapshot-controller",
            *rate,
            calls_at_once=10,
            operations=("snapshot", "delete-snapshot"),
            code=code,
        )
        self.name += ", default qps" if rate else ""


class PeerSnapshotter(Peer):
    """csi-snapshotter, one process per driver."""

    program = "csi-snapshotter"
    started = "Starting CSI snapshotter"
    flags = ("--feature-gates=CSIVolumeGroupSnapshot=false",)


class PeerController(PeerSnapshotter):
    """snapshot-controller: one process for all drivers, without a flag `--csi-address`."""

    program = "snapshot-controller"
    started = "Starting snapshot controller"
    has_address = False


def peer_pair(
    binaries: tuple[Path, Path], kubeconfig: Path, drivers: BenchDrivers, *, slow: bool
) -> Together:
    """Return csi-snapshotter and snapshot-controller as one system."""
    sidecar, controller = binaries
    first = PeerSnapshotter(sidecar, kubeconfig, drivers, is_throttled=slow)
    second = PeerController(controller, kubeconfig, drivers, is_throttled=slow)
    return Together(first.name, [first, second])


def measured(api: KubeApi, kubeconfig: Path, count: int) -> Iterator[Record]:
    """Yield one record per system."""
    mark = uuid.uuid4().hex[:6]
    name = f"d-{mark}.bench.example.org"
    folder = Path(os.environ.get("TMPDIR", "/tmp")) / f"bs-{mark}"
    with (
        BenchDrivers(folder, [name], snapshots=True) as drivers,
        Claims(api, name, count) as claims,
        Snapshots(api, claims) as snapshots,
    ):
        makers = [
            *ours(lambda code: OurPair(kubeconfig, drivers, code=code)),
            lambda: OurPair(kubeconfig, drivers, *OUR_RATE, code=HERE),
        ]
        if (one := os.environ.get("PEER_SNAPSHOTTER")) and (
            other := os.environ.get("PEER_SNAPSHOT_CONTROLLER")
        ):
            pair = (Path(one), Path(other))
            makers += [
                lambda slow=slow: peer_pair(pair, kubeconfig, drivers, slow=slow)  # type: ignore[misc]
                for slow in (False, True)
            ]
        for make in makers:
            with make() as system:
                yield measure(api, system, snapshots, count)


def measure(api: KubeApi, system: System, snapshots: Snapshots, count: int) -> Record:
    """Measure one burst and its deletion."""
    groups = system.groups()
    before = sample(api, groups)
    waits = snapshots.cut()
    time.sleep(1.5)  # late events are part of the cost
    after = sample(api, groups)
    gone_seconds = snapshots.drop()
    end = sample(api, groups)
    return {
        "system": system.name,
        "snapshots": count,
        "all_ready_s": round(waits[-1], 1),
        "per_s": round(count / waits[-1], 1),
        "p50_s": quantile(waits, 0.5),
        "all_gone_s": round(gone_seconds, 1),
        "cpu_ms": round(sum(cpu_per_claim(before, after, count).values()), 1),
        "cpu_ms_delete": round(sum(cpu_per_claim(after, end, count).values()), 1),
        "api_cpu_ms": round(1000 * (after.api_cpu - before.api_cpu) / count, 1),
        "pss_mib": round(sum(memory(groups).values())),
    }

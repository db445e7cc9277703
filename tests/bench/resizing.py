"""Section `resizing`: 500 expansions in a burst, with 10,000 pods in the cluster.

Pods matter because csi-resizer keeps all of them in memory. csi-fleet lists the pods of one
namespace if a driver refused to expand a volume in use, and otherwise no pods. Claims are bound to
volumes made by hand, so nothing is provisioned. With `PEER_RESIZER=/path/to/csi-resizer`,
csi-resizer is measured in the same run.
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

from tests.bench.drivers import BenchDrivers
from tests.bench.systems import Ours, Peer, ours
from tests.bench.throughput import cpu_per_claim, quantile
from tests.bench.usage import memory, sample
from tests.support.kube_api import KubeApi
from tests.support.waiting import wait_until

THREADS = 8
Record = dict[str, Any]


class Claims:
    """Bound claims of one namespace that can be expanded."""

    def __init__(self, api: KubeApi, driver: str, count: int) -> None:
        self.api, self.driver = api, driver
        self.name = f"b{uuid.uuid4().hex[:7]}"
        self.names = [f"{self.name}-{number}" for number in range(count)]
        self.path = f"/api/v1/namespaces/{self.name}/persistentvolumeclaims"

    def __enter__(self) -> Self:
        self.api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": self.name}})
        self.api.create(
            {
                "apiVersion": "storage.k8s.io/v1",
                "kind": "StorageClass",
                "metadata": {"name": self.name},
                "provisioner": self.driver,
                "allowVolumeExpansion": True,
            }
        )
        at_once(self._create, self.names)
        wait_until(lambda: len(self.sizes("1Gi")) == len(self.names), 180, "claims are bound")
        return self

    def __exit__(self, *_: object) -> None:
        self.api.request("DELETE", self.path)
        at_once(lambda name: self.api.delete(f"/api/v1/persistentvolumes/{name}"), self.names)
        self.api.delete(f"/apis/storage.k8s.io/v1/storageclasses/{self.name}")
        self.api.delete(f"/api/v1/namespaces/{self.name}")

    def _create(self, name: str) -> None:
        shared = {"accessModes": ["ReadWriteOnce"], "storageClassName": self.name}
        self.api.create(
            {
                "apiVersion": "v1",
                "kind": "PersistentVolume",
                "metadata": {"name": name},
                "spec": {
                    **shared,
                    "capacity": {"storage": "1Gi"},
                    "persistentVolumeReclaimPolicy": "Retain",
                    "claimRef": {"namespace": self.name, "name": name},
                    "csi": {"driver": self.driver, "volumeHandle": self.handle(name)},
                },
            }
        )
        self.api.create(
            {
                "apiVersion": "v1",
                "kind": "PersistentVolumeClaim",
                "metadata": {"name": name, "namespace": self.name},
                "spec": {
                    **shared,
                    "volumeName": name,
                    "resources": {"requests": {"storage": "1Gi"}},
                },
            }
        )

    def handle(self, name: str) -> str:
        """Return the handle of the claim's volume."""
        return name

    def sizes(self, size: str) -> list[str]:
        """Return the names of the claims that have this size."""
        return [
            one["metadata"]["name"]
            for one in self.api.items(self.path)
            if (one.get("status", {}).get("capacity") or {}).get("storage") == size
        ]

    def grow(self, size: str) -> dict[str, float]:
        """Edit all claims; return the seconds that each claim took to get the size."""
        edited: dict[str, float] = {}
        found: dict[str, float] = {}

        def edit(name: str) -> None:
            edited[name] = time.time()
            spec = {"resources": {"requests": {"storage": size}}}
            self.api.patch(f"{self.path}/{name}", {"spec": spec})

        at_once(edit, self.names)

        def all_grown() -> bool:
            now = time.time()
            for name in self.sizes(size):
                found.setdefault(name, now)
            return len(found) == len(self.names)

        wait_until(all_grown, 300, f"all claims have {size}", interval_seconds=0.2)
        return {name: found[name] - edited[name] for name in found}


def at_once(work: Callable[[Any], Any], names: Iterable[Any]) -> None:
    """Send a few requests at the same time."""
    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(work, names))


@contextmanager
def pods(api: KubeApi, count: int) -> Iterator[None]:
    """Create pods of other users, of a realistic size."""
    space = f"p{uuid.uuid4().hex[:7]}"
    api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": space}})
    environment = [{"name": f"NAME_{number}", "value": "x" * 60} for number in range(30)]

    def create(name: str) -> None:
        container = {"name": "c", "image": "none", "env": environment}
        spec = {"containers": [container], "automountServiceAccountToken": False}
        metadata = {"name": name, "namespace": space}
        api.create({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})

    at_once(create, [f"p-{number}" for number in range(count)])
    try:
        yield
    finally:
        # Delete in batches: deleting the whole collection takes longer than a request may.
        path = f"/api/v1/namespaces/{space}/pods"
        while api.items(f"{path}?limit=1"):
            api.request("DELETE", f"{path}?gracePeriodSeconds=0&limit=500")
        api.delete(f"/api/v1/namespaces/{space}")


class PeerResizer(Peer):
    """csi-resizer, one process per driver, with a rate limit that does not slow it down."""

    program = "csi-resizer"
    started = "Starting external resizer"
    flags = ("--workers=100",)


def measured(
    api: KubeApi, kubeconfig: Path, peer: Path | None, *, claims: int, others: int, delay: float
) -> Iterator[Record]:
    """Yield one record per system; each system expands the same claims once."""
    mark = uuid.uuid4().hex[:6]
    name = f"d-{mark}.bench.example.org"
    folder = Path(os.environ.get("TMPDIR", "/tmp")) / f"br-{mark}"
    with (
        BenchDrivers(folder, [name], delay_seconds=delay, expands=True) as drivers,
        pods(api, others),
        Claims(api, name, claims) as load,
    ):
        flags = ("--controllers=resizer",)
        makers = ours(
            lambda code: Ours(kubeconfig, drivers, *flags, operations=("expand",), code=code)
        )
        if peer is not None:
            found = peer
            makers.append(lambda: PeerResizer(found, kubeconfig, drivers))
        for number, make in enumerate(makers):
            with make() as system:
                groups = system.groups()
                before = sample(api, groups)
                waits = sorted(load.grow(f"{number + 2}Gi").values())
                time.sleep(1.5)  # late events are part of the cost
                after = sample(api, groups)
                cpu = cpu_per_claim(before, after, claims)
                yield {
                    "system": system.name,
                    "claims": claims,
                    "pods": others,
                    "per_s": round(claims / waits[-1], 1),
                    "p50_s": quantile(waits, 0.5),
                    "p99_s": quantile(waits, 0.99),
                    "cpu_ms": round(sum(cpu.values()), 1),
                    "pss_mib": round(sum(memory(groups).values())),
                    "pod_requests": sum(
                        count
                        for what, count in (after.requests - before.requests).items()
                        if what.endswith(" pods")
                    ),
                }

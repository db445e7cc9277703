"""Section `life`: the whole life of volumes, with csi-fleet and with the five Go sidecars.

Claims of all drivers become volumes, which are attached, expanded, snapshotted, restored from the
snapshots, detached and deleted. The steps run one after the other, each as a burst. Every driver is
a process that works for `WORK_SECONDS` on each call. `PEER_FIVE=folder` has csi-provisioner,
csi-attacher, csi-resizer, csi-snapshotter and snapshot-controller, each with one process per driver
except the last.
"""

from __future__ import annotations

import tempfile
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from tests.bench.attaching import ATTACHMENTS, NODES, STORAGE, PeerAttacher, attachment, csi_node
from tests.bench.drivers import BenchDrivers
from tests.bench.resizing import PeerResizer, at_once
from tests.bench.snapshotting import ROOT as SNAPSHOTS
from tests.bench.snapshotting import VERSION as SNAPSHOT_VERSION
from tests.bench.snapshotting import PeerController, PeerSnapshotter
from tests.bench.systems import CONTROLLERS, Ours, Peer, System, Together, ours
from tests.bench.throughput import quantile
from tests.bench.usage import Sample, memory, sample, watches
from tests.support.kube_api import KubeApi
from tests.support.waiting import wait_until

WORK_SECONDS = 0.003
LONGEST_SECONDS = 600
OPERATIONS = ("create", "delete", "attach", "detach", "expand", "snapshot", "delete-snapshot")
VOLUMES = "/api/v1/persistentvolumes"
Record = dict[str, Any]
Waits = dict[str, float]


class OneEach:
    """Runs one process per driver, with the interface of a host of several drivers."""

    def __init__(self, folder: Path, names: Sequence[str]) -> None:
        self.names = list(names)
        self._hosts = {
            name: BenchDrivers(folder / str(number), [name], whole=True, work_seconds=WORK_SECONDS)
            for number, name in enumerate(names)
        }

    def address(self, name: str) -> str:
        """Return the path of the driver's socket."""
        return self._hosts[name].address(name)

    def __enter__(self) -> Self:
        self._stack = ExitStack()
        for host in self._hosts.values():
            self._stack.enter_context(host)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()


def peer_five(folder: Path, kubeconfig: Path, drivers: Any) -> Together:
    """Return the Go sidecars of all drivers as one system."""
    kinds = (Peer, PeerAttacher, PeerResizer, PeerSnapshotter, PeerController)
    parts = [kind(folder / kind.program, kubeconfig, drivers) for kind in kinds]
    return Together("five Go sidecars", parts)


class WholeOurs(Ours):
    """All controllers in one `csi-fleet run`, which chooses its number of workers by cores."""

    def __init__(self, kubeconfig: Path, drivers: Any, code: Path) -> None:
        flags = (f"--controllers={CONTROLLERS}",)
        super().__init__(kubeconfig, drivers, *flags, workers=0, operations=OPERATIONS, code=code)


@dataclass
class Life:
    """Volumes of one namespace, spread over the drivers.

    Attributes:
        waits: seconds from the request of a step to its end, by step and object.
    """

    api: KubeApi
    drivers: Sequence[str]
    count: int
    mark: str = field(default_factory=lambda: f"l{uuid.uuid4().hex[:6]}")
    waits: dict[str, Waits] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.names = [f"{self.mark}-{number}" for number in range(self.count)]
        self.copies = [f"{name}-copy" for name in self.names]
        space = f"namespaces/{self.mark}"
        self.claims = f"/api/v1/{space}/persistentvolumeclaims"
        self.snapshots = f"{SNAPSHOTS}/{space}/volumesnapshots"
        self.volumes: dict[str, str] = {}

    def __enter__(self) -> Self:
        self._make("v1", "Namespace", {"name": self.mark})
        for number, driver in enumerate(self.drivers):
            name = {"name": f"{self.mark}-{number}"}
            grows = {"provisioner": driver, "allowVolumeExpansion": True}
            self._make(STORAGE, "StorageClass", name, **grows)
            policy = {"driver": driver, "deletionPolicy": "Delete"}
            self._make(SNAPSHOT_VERSION, "VolumeSnapshotClass", name, **policy)
        for number in range(NODES):
            self.api.create(csi_node(f"{self.mark}-n{number}", self.drivers))
        return self

    def __exit__(self, *_: object) -> None:
        for number in range(len(self.drivers)):
            self.api.delete(f"/apis/{STORAGE}/storageclasses/{self.mark}-{number}")
            self.api.delete(f"{SNAPSHOTS}/volumesnapshotclasses/{self.mark}-{number}")
        for number in range(NODES):
            self.api.delete(f"/apis/{STORAGE}/csinodes/{self.mark}-n{number}")
        self.api.delete(f"/api/v1/namespaces/{self.mark}")

    def steps(self) -> dict[str, Callable[[], None]]:
        """Return the steps of a life in their order."""
        return {
            "bound": lambda: self._claim(self.names),
            "attached": self._attach,
            "grown": self._grow,
            "snapshot ready": self._cut,
            "restored": lambda: self._claim(self.copies, restored=True),
            "detached": self._detach,
            "snapshot gone": self._drop,
            "deleted": self._delete,
        }

    def _make(self, version: str, kind: str, metadata: Record, **body: Any) -> None:
        self.api.create({"apiVersion": version, "kind": kind, "metadata": metadata, **body})

    def _kind(self, name: str) -> str:
        """Return the name of the object's class, for both kinds of class."""
        return f"{self.mark}-{int(name.split('-')[1]) % len(self.drivers)}"

    def _step(
        self,
        title: str,
        names: Sequence[str],
        ask: Callable[[str], object],
        found: Callable[[], Iterable[str]],
    ) -> None:
        """Request one step for each object, and note when each object has reached it."""
        asked: Waits = {}
        waits = self.waits[title] = {}

        def one(name: str) -> None:
            asked[name] = time.monotonic()
            ask(name)

        at_once(one, names)

        def all_so() -> bool:
            now = time.monotonic()
            for name in found():
                if name in asked:
                    waits.setdefault(name, now - asked[name])
            return len(waits) == len(names)

        wait_until(all_so, LONGEST_SECONDS, f"all are {title}", interval_seconds=0.1)

    def _claim(self, names: Sequence[str], *, restored: bool = False) -> None:
        def ask(name: str) -> None:
            size = {"requests": {"storage": "2Gi" if restored else "1Gi"}}
            spec: Record = {"accessModes": ["ReadWriteOnce"], "resources": size}
            spec["storageClassName"] = self._kind(name)
            if restored:
                group = SNAPSHOT_VERSION.partition("/")[0]
                source = {"apiGroup": group, "kind": "VolumeSnapshot"}
                spec["dataSource"] = source | {"name": name.removesuffix("-copy")}
            metadata = {"name": name, "namespace": self.mark}
            self._make("v1", "PersistentVolumeClaim", metadata, spec=spec)

        def found() -> Iterator[str]:
            for one in self.api.items(self.claims):
                if one.get("status", {}).get("phase") == "Bound":
                    name = one["metadata"]["name"]
                    self.volumes[name] = one["spec"]["volumeName"]
                    yield name

        self._step("restored" if restored else "bound", names, ask, found)

    def _attach(self) -> None:
        def ask(name: str) -> None:
            number = int(name.split("-")[1])
            driver = self.drivers[number % len(self.drivers)]
            wanted = attachment(name, driver, f"{self.mark}-n{number % NODES}")
            wanted["spec"]["source"] = {"persistentVolumeName": self.volumes[name]}
            self.api.create(wanted)

        def found() -> Iterator[str]:
            for one in self.api.items(ATTACHMENTS):
                if one.get("status", {}).get("attached"):
                    yield one["metadata"]["name"]

        self._step("attached", self.names, ask, found)

    def _grow(self) -> None:
        size = {"spec": {"resources": {"requests": {"storage": "2Gi"}}}}

        def found() -> Iterator[str]:
            for one in self.api.items(self.claims):
                if (one.get("status", {}).get("capacity") or {}).get("storage") == "2Gi":
                    yield one["metadata"]["name"]

        ask = lambda name: self.api.patch(f"{self.claims}/{name}", size)  # noqa: E731
        self._step("grown", self.names, ask, found)

    def _cut(self) -> None:
        def ask(name: str) -> None:
            source = {"persistentVolumeClaimName": name}
            spec = {"source": source, "volumeSnapshotClassName": self._kind(name)}
            metadata = {"name": name, "namespace": self.mark}
            self._make(SNAPSHOT_VERSION, "VolumeSnapshot", metadata, spec=spec)

        def found() -> Iterator[str]:
            for one in self.api.items(self.snapshots):
                if (one.get("status") or {}).get("readyToUse"):
                    yield one["metadata"]["name"]

        self._step("snapshot ready", self.names, ask, found)

    def _detach(self) -> None:
        ask = lambda name: self.api.delete(f"{ATTACHMENTS}/{name}")  # noqa: E731
        self._step("detached", self.names, ask, lambda: self._missing(ATTACHMENTS, self.names))

    def _drop(self) -> None:
        contents = f"{SNAPSHOTS}/volumesnapshotcontents"

        def found() -> Iterable[str]:
            kept = {one["spec"]["volumeSnapshotRef"]["name"] for one in self.api.items(contents)}
            return set(self.names) - kept

        ask = lambda name: self.api.delete(f"{self.snapshots}/{name}")  # noqa: E731
        self._step("snapshot gone", self.names, ask, found)

    def _delete(self) -> None:
        names = [*self.names, *self.copies]
        by_volume = {volume: name for name, volume in self.volumes.items()}

        def found() -> Iterable[str]:
            return [by_volume[one] for one in self._missing(VOLUMES, list(by_volume))]

        self._step("deleted", names, lambda name: self.api.delete(f"{self.claims}/{name}"), found)

    def _missing(self, path: str, names: Sequence[str]) -> set[str]:
        return set(names) - {one["metadata"]["name"] for one in self.api.items(path)}


def measured(
    api: KubeApi, kubeconfig: Path, count: int, lives: int, peer: Path | None
) -> Iterator[Record]:
    """Yield one record per system with this number of drivers."""
    idle = watches(api)
    with drivers_of(count) as drivers:
        makers = ours(lambda code: WholeOurs(kubeconfig, drivers, code))
        if peer is not None:
            found = peer
            makers.append(lambda: peer_five(found, kubeconfig, drivers))
        for make in makers:
            with make() as system:
                with Life(api, drivers.names, len(drivers.names)) as first:
                    for step in first.steps().values():
                        step()
                yield measure(api, system, drivers.names, lives, idle)


@contextmanager
def drivers_of(count: int) -> Iterator[OneEach]:
    """Run drivers with fresh names, so that no system serves objects of an earlier run."""
    mark = uuid.uuid4().hex[:6]
    names = [f"d{number}-{mark}.bench.example.org" for number in range(count)]
    with tempfile.TemporaryDirectory(prefix="bl-") as folder, OneEach(Path(folder), names) as found:
        yield found


def measure(
    api: KubeApi, system: System, drivers: Sequence[str], lives: int, idle_watches: int
) -> Record:
    """Run this number of lives at the same time; CPU and requests are those of one life."""
    groups = system.groups()
    with Life(api, drivers, lives) as life:
        before, seconds = sample(api, groups), dict[str, float]()
        for title, step in life.steps().items():
            started = time.monotonic()
            step()
            seconds[title] = time.monotonic() - started
        time.sleep(1.5)  # late events are part of the cost
        after = sample(api, groups)
    record: Record = {"drivers": len(drivers), "system": system.name, "lives": lives}
    for title, took in seconds.items():
        waits = sorted(life.waits[title].values())
        per_second = len(waits) / took
        ends = f"{quantile(waits, 0.5):.2f} / {quantile(waits, 0.99):.2f}"
        record[title] = f"{per_second:.0f}/s, {ends} s"
    spent = {name: after.cpu[name] - before.cpu[name] for name in after.cpu}
    record["CPU ms"] = round(1000 * sum(spent.values()) / lives, 1)
    record["of which"] = ", ".join(f"{n} {1000 * one / lives:.1f}" for n, one in spent.items())
    record["PSS MiB"] = round(sum(memory(groups).values()))
    record["watches"] = watches(api) - idle_watches
    record["requests"] = round(requests_made(before, after) / lives, 1)
    record["API server CPU ms"] = round(1000 * (after.api_cpu - before.api_cpu) / lives, 1)
    return record


def requests_made(before: Sample, after: Sample) -> int:
    """Return all requests; those of the load and the cluster are equal for both systems."""
    return sum((after.requests - before.requests).values())

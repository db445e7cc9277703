"""Measure the traffic of a claim alone, which is about the least that a worker needs.

    python -m tests.bench.floor KUBECONFIG CSI-PROVISIONER [ROUNDS]

The traffic is a watch, the queue's scripts (ADD, TAKE, ENTER, BEGIN, CREATED, DONE), a live GET of
the claim, CreateVolume and the POST of the PV. It uses csi-fleet's clients in twelve threads,
without any decision, check, event, metric or Celery. The runs are a burst at one driver, and a
burst at ten drivers with all cores busy (one process per core). Each alternates with
csi-provisioner.

This is no provisioner: it checks and deletes nothing. As in csi-fleet, a thread takes keys until no
key is due. Unlike in csi-fleet, each claim is added by its own call, and watch and workers share a
process, which saves more than the calls cost.
"""

from __future__ import annotations

import os
import sys
import tempfile
import threading
import traceback
import uuid
from collections.abc import Sequence
from contextlib import ExitStack, nullcontext
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Self

import msgspec

from csi_client import messages as csi
from csi_client.client import CsiClient
from tests.bench.drivers import BenchDrivers
from tests.bench.life import drivers_of
from tests.bench.load import ANN_PROVISIONER, Load
from tests.bench.saturated import DRIVERS, busy_cores
from tests.bench.sections import bench_drivers
from tests.bench.systems import Ours, Peer, System
from tests.bench.throughput import quantile
from tests.support.kube_api import KubeApi
from tests.support.processes import start_process
from tests.support.redis_server import RedisServer, find_redis_server
from tests.support.waiting import wait_until
from workers.kube.client import KubeClient
from workers.queue.connection import connect
from workers.queue.intents import IntentStore
from workers.queue.keys import KIND_CLAIMS, claim_key
from workers.queue.leases import Lease
from workers.queue.locks import Lock
from workers.queue.names import CELERY_QUEUE_PREFIX
from workers.queue.workqueue import WorkQueue

CLAIMS = 400
THREADS = int(os.environ.get("THREADS", "12"))
READY = "ready"
CLAIMS_PATH = "/api/v1/persistentvolumeclaims"


class Traffic:
    """One process of the traffic, for some drivers; runs until it is killed."""

    def __init__(self, kubeconfig: str, redis_url: str, drivers: dict[str, str]) -> None:
        self._drivers = {name: CsiClient(address) for name, address in drivers.items()}
        self._kube = KubeClient.from_settings(kubeconfig)
        client = connect(redis_url)
        self._lists: SimpleQueue[str] = SimpleQueue()
        self._queue = WorkQueue(client, publish=self._publish)
        self._queue.register_process()
        self._store = IntentStore(client)
        for name in drivers:
            self._queue.set_limits(claim_key(name, "default", "any", "any").lane, 100)

    def _publish(self, lists: list[str]) -> None:
        for name in lists:
            self._lists.put(name)

    def run(self) -> None:
        version = self._kube.get(CLAIMS_PATH)["metadata"]["resourceVersion"]
        query = {"watch": "true", "resourceVersion": version, "timeoutSeconds": 3600}
        stream = self._kube.watch_raw(CLAIMS_PATH, query, read_timeout_seconds=3600)
        for _ in range(THREADS):
            threading.Thread(target=self._work, daemon=True).start()
        print(READY, flush=True)
        seen = set[str]()
        for line in stream.lines():
            meta = msgspec.json.decode(line)["object"]["metadata"]
            name = meta.get("annotations", {}).get(ANN_PROVISIONER, "")
            if name in self._drivers and meta["uid"] not in seen:
                seen.add(meta["uid"])
                key = claim_key(name, meta["namespace"], meta["name"], meta["uid"])
                self._queue.add([key])

    def _work(self) -> None:
        while True:
            driver, is_woken = self._lists.get().removeprefix(CELERY_QUEUE_PREFIX), True
            while lease := self._queue.take(driver, [KIND_CLAIMS], is_woken=is_woken):
                is_woken = False
                if self._queue.enter(lease, [Lock(lease.domain)]):
                    self._provision(lease)

    def _provision(self, lease: Lease) -> None:
        key, name = lease.key, lease.domain
        namespace, _, claim_name = key.object.partition("/")
        claim = self._kube.get(
            f"/api/v1/namespaces/{namespace}/persistentvolumeclaims/{claim_name}"
        )
        self._store.begin(name, {"stage": "calling", "claim": claim}, lease)
        request = csi.CreateVolumeRequest(name=name)
        request.capacity_range.required_bytes = 1 << 30
        volume = self._drivers[key.driver].create_volume(request).volume
        saved = persistent_volume(name, key.driver, volume.volume_id, claim)
        self._store.created(name, {"stage": "created", "claim": claim}, saved)
        self._kube.create("/api/v1/persistentvolumes", saved)
        lease.takes_next = True
        self._queue.done(lease, finish_intent=True)


def end(hook: threading.ExceptHookArgs) -> None:
    """Exit if a thread failed, because the figures would be those of fewer threads."""
    traceback.print_exception(hook.exc_value)
    os._exit(1)


def persistent_volume(name: str, driver: str, handle: str, claim: Any) -> dict[str, Any]:
    """Return a PV as csi-provisioner writes it."""
    reference = {
        one: claim["metadata"][one] for one in ("name", "namespace", "uid", "resourceVersion")
    }
    spec = claim["spec"]
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": name, "annotations": {"pv.kubernetes.io/provisioned-by": driver}},
        "spec": {
            "accessModes": spec["accessModes"],
            "capacity": spec["resources"]["requests"],
            "claimRef": {"apiVersion": "v1", "kind": "PersistentVolumeClaim", **reference},
            "csi": {"driver": driver, "volumeHandle": handle, "fsType": "ext4"},
            "persistentVolumeReclaimPolicy": "Delete",
            "storageClassName": spec["storageClassName"],
            "volumeMode": "Filesystem",
        },
    }


class Floor:
    """The traffic as a measured system: its processes and their Redis."""

    name = "traffic alone"

    def __init__(self, kubeconfig: Path, drivers: BenchDrivers, processes: int) -> None:
        self._stack = ExitStack()
        self._kubeconfig, self._drivers, self._processes = kubeconfig, drivers, processes

    def groups(self) -> dict[str, list[int]]:
        return {}

    def __enter__(self) -> Self:
        folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="bt-")))
        binary = find_redis_server()
        assert binary is not None, "no redis-server found"
        server = RedisServer(binary, folder).start()
        self._stack.callback(server.kill)
        for number in range(self._processes):
            names = self._drivers.names[number :: self._processes]
            drivers = [f"{name}={self._drivers.address(name)}" for name in names]
            command = [sys.executable, "-m", "tests.bench.floor", "--traffic"]
            command += [str(self._kubeconfig), server.unix_url, *drivers]
            log = folder / f"{number}.log"
            process = start_process(self.name, command, log=log)
            self._stack.callback(process.kill)
            wait_until(lambda log=log: READY in log.read_text(), 30, "the watch is open")
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()


def burst(
    api: KubeApi, kubeconfig: Path, system: System, drivers: BenchDrivers, *, is_busy: bool
) -> None:
    """Measure claims until each has its PV, then delete them with csi-fleet."""
    with Load(api, f"b{uuid.uuid4().hex[:7]}", drivers.names) as load:
        with system, busy_cores() if is_busy else nullcontext():
            load.run(len(drivers.names), timeout_seconds=60)
            times = load.run(CLAIMS)
        with Ours(kubeconfig, drivers):
            load.delete_all()
    waits = sorted(times.saved[name] - at for name, at in times.created.items())
    p50, p99 = quantile(waits, 0.5), quantile(waits, 0.99)
    rate = CLAIMS / (max(times.saved.values()) - min(times.created.values()))
    label = f"{len(drivers.names)} drivers" + ", busy cores" * is_busy
    print(
        f"{label}: {system.name:14} {rate:4.0f} PV/s, p50 {p50:.3f} s, p99 {p99:.3f} s",
        flush=True,
    )


def main(arguments: Sequence[str]) -> None:
    kubeconfig, binary, *rest = arguments
    path, peer = Path(kubeconfig), Path(binary)
    with KubeApi(path) as api:
        for _ in range(int(rest[0]) if rest else 2):
            with bench_drivers(1) as drivers:
                for one in (Floor(path, drivers, 1), Peer(peer, path, drivers)):
                    burst(api, path, one, drivers, is_busy=False)
            with drivers_of(DRIVERS) as drivers:
                for one in (Floor(path, drivers, os.cpu_count() or 1), Peer(peer, path, drivers)):
                    burst(api, path, one, drivers, is_busy=True)


if __name__ == "__main__":
    if sys.argv[1] == "--traffic":
        threading.excepthook = end
        given = dict(one.split("=", 1) for one in sys.argv[4:])
        Traffic(sys.argv[2], sys.argv[3], given).run()
    else:
        main(sys.argv[1:])

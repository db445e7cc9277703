"""Measure the memory of a watcher of a large cluster (target: below 150 MiB).

    python tests/bench/watcher_memory.py [--pairs 50000] [--undecided 100] [--redis-url URL]

A child process runs the real watcher against a scripted API server in this process. The server
sends generated claims and volumes as a cluster would, including managed fields. The output is the
resident and proportional memory of the child after the lists and after a burst of events.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.support.fake_api import FakeApi, Reply, Request, status
from tests.support.redis_server import RedisServer, find_redis_server
from workers.queue.connection import connect
from workers.queue.registry import DriverRegistry
from workers.queue.workqueue import WorkQueue

DRIVER = "bench.csi"
CLAIMS = "/api/v1/persistentvolumeclaims"
VOLUMES = "/api/v1/persistentvolumes"
LISTS = (
    "/apis/storage.k8s.io/v1/storageclasses",
    "/apis/storage.k8s.io/v1/csinodes",
    "/apis/storage.k8s.io/v1/volumeattachments",
    "/api/v1/nodes",
)


def managed_fields(manager: str) -> list[dict[str, Any]]:
    fields = {f"f:field-{number}": {} for number in range(12)}
    entry = {"manager": manager, "operation": "Update", "apiVersion": "v1", "fieldsV1": fields}
    return [entry, {**entry, "subresource": "status"}]


def claim(number: int, *, is_bound: bool) -> dict[str, Any]:
    uid = f"{number:08x}-0000-4000-8000-000000000000"
    return {
        "metadata": {
            "name": f"data-app-{number}",
            "namespace": f"team-{number % 200}",
            "uid": uid,
            "resourceVersion": str(1000 + number),
            "annotations": {
                "volume.kubernetes.io/storage-provisioner": DRIVER,
                "pv.kubernetes.io/bind-completed": "yes",
            },
            "finalizers": ["kubernetes.io/pvc-protection"],
            "managedFields": managed_fields("kube-controller-manager"),
        },
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "10Gi"}},
            "storageClassName": "bench",
            "volumeMode": "Filesystem",
            **({"volumeName": f"pvc-{uid}"} if is_bound else {}),
        },
        "status": {"phase": "Bound" if is_bound else "Pending"},
    }


def volume(number: int) -> dict[str, Any]:
    uid = f"{number:08x}-0000-4000-8000-000000000000"
    return {
        "metadata": {
            "name": f"pvc-{uid}",
            "uid": f"pv-{uid}",
            "resourceVersion": str(1000 + number),
            "annotations": {"pv.kubernetes.io/provisioned-by": DRIVER},
            "finalizers": [
                "kubernetes.io/pv-protection",
                "external-provisioner.volume.kubernetes.io/finalizer",
            ],
            "managedFields": managed_fields("csi-provisioner"),
        },
        "spec": {
            "persistentVolumeReclaimPolicy": "Delete",
            "claimRef": {"name": f"data-app-{number}", "namespace": f"team-{number % 200}"},
            "csi": {"driver": DRIVER, "volumeHandle": uid, "volumeAttributes": {"a": "b" * 40}},
        },
        "status": {"phase": "Bound"},
    }


def answer(pairs: int, undecided: int) -> Any:
    def page_of(request: Request) -> Reply:
        if request.path not in (CLAIMS, VOLUMES):
            items: list[Any] = []
            return Reply(
                body=json.dumps({"metadata": {"resourceVersion": "1"}, "items": items}).encode()
            )
        start = int(request.query.get("continue") or 0)
        end = min(pairs, start + int(request.query["limit"]))
        numbers = range(start, end)
        made = (
            [claim(number, is_bound=number >= undecided) for number in numbers]
            if request.path == CLAIMS
            else [volume(number) for number in numbers]
        )
        metadata = {"resourceVersion": "900000", **({"continue": str(end)} if end < pairs else {})}
        return Reply(body=json.dumps({"metadata": metadata, "items": made}).encode())

    return page_of


def burst(count: int) -> Iterator[bytes]:
    for number in range(count):
        item = claim(number, is_bound=True)
        item["metadata"]["resourceVersion"] = str(1_000_000 + number)
        yield json.dumps({"type": "MODIFIED", "object": item}).encode()


def memory(pid: int) -> str:
    found = {}
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        name, _, rest = line.partition(":")
        if name in ("Rss", "Pss"):
            found[name] = int(rest.split()[0]) / 1024
    return f"RSS {found['Rss']:.0f} MiB, PSS {found['Pss']:.0f} MiB"


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--pairs", type=int, default=50_000)
    parser.add_argument("--undecided", type=int, default=100)
    parser.add_argument("--relists", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory, FakeApi() as api:
        server = RedisServer(str(find_redis_server()), Path(directory)).start()
        client = connect(server.url)
        record = {
            "name": DRIVER,
            "topology": True,
            "controller_capabilities": ["PUBLISH_UNPUBLISH_VOLUME"],
        }
        DriverRegistry(client).register(DRIVER, record, ttl_seconds=3600)
        WorkQueue(client, publish=lambda _: None).set_limits(f"claims|{DRIVER}", 100)
        api.other = answer(options.pairs, options.undecided)
        api.watches[CLAIMS].append(Reply(lines=burst(20_000), stays_open=not options.relists))
        for path in (CLAIMS, VOLUMES):
            expired = [status(410, "Expired", "too old") for _ in range(options.relists)]
            api.watches[path].extend(expired)
        environment = {key: value for key, value in os.environ.items() if key != "KUBECONFIG"}
        command = [
            sys.executable,
            "-m",
            "watcher",
            f"--master={api.url}",
            f"--redis-url={server.url}",
        ]
        started = time.monotonic()
        child = subprocess.Popen(command, env=environment)
        try:
            while client.zcard(f"csifleet:ready:claims|{DRIVER}") + client.zcard(
                f"csifleet:ticketed:claims|{DRIVER}"
            ) < options.undecided or not any(
                request.path == VOLUMES and "watch" in request.query for request in api.requests
            ):
                if child.poll() is not None or time.monotonic() - started > 300:
                    print("the watcher did not get through the lists")
                    return 1
                time.sleep(0.2)
            print(
                f"{options.pairs} claims and volumes listed in {time.monotonic() - started:.1f} s"
            )
            print(f"after the lists:        {memory(child.pid)}")
            time.sleep(10)
            print(f"after 20,000 events:    {memory(child.pid)}")
            for number in range(1, options.relists + 1):
                end = time.monotonic() + 120
                while api.count(CLAIMS, watch=True) < number + 2 and time.monotonic() < end:
                    time.sleep(0.2)
                print(f"after relist {number}: {memory(child.pid)}")
        finally:
            child.send_signal(signal.SIGTERM)
            print(f"exit code {child.wait(10)}")
            client.close()
            server.kill()
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Attachments of one system with N drivers: rate and CPU of a burst; SIGKILL during a publish.

With `PEER_ATTACHER=/path/to/csi-attacher`, csi-attacher is measured in the same run.
"""

from __future__ import annotations

import os
import signal
import time
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import redis

from tests.bench.systems import Ours, Peer, System
from tests.bench.throughput import cpu_per_claim
from tests.bench.usage import memory, sample
from tests.support.attach_cluster import CAPABILITIES, AttachCluster
from tests.support.csi_driver import DirectoryDriver
from tests.support.kube_api import KubeApi, KubeApiError
from tests.support.waiting import wait_until

NODES = 20
CLIENTS = 8
ATTACHMENTS = "/apis/storage.k8s.io/v1/volumeattachments"
STORAGE = "storage.k8s.io/v1"


class PeerAttacher(Peer):
    """Runs csi-attacher, one process per driver."""

    program = "csi-attacher"
    started = "Starting CSI attacher"


class LeadingAttacher(PeerAttacher):
    """A replica that has the Lease and works."""

    flags = ("--leader-election", "--leader-election-namespace=default")


class WaitingAttacher(LeadingAttacher):
    """A replica that waits for the Lease.

    It gets another host name, because otherwise both replicas would have the same identity.
    """

    prefix = ("unshare", "--uts", "sh", "-c", 'hostname second && exec "$@"', "sh")
    started = "to acquire leader lease"


class OneDriver:
    """Gives one driver the interface of a host of several drivers."""

    def __init__(self, driver: DirectoryDriver) -> None:
        self.names = [driver.name]
        self.address = lambda _: driver.address


def attach(api: KubeApi, system: System, drivers: Sequence[str], count: int) -> dict[str, Any]:
    """Run one burst, after a first attachment per driver, and return its record."""
    mark = f"b{uuid.uuid4().hex[:6]}"
    nodes = [f"{mark}-n{index}" for index in range(NODES)]
    each(nodes, lambda node: api.create(csi_node(node, drivers)))
    names = [f"{mark}-{index}" for index in range(count + len(drivers))]
    chosen = {name: drivers[index % len(drivers)] for index, name in enumerate(names)}
    each(names, lambda name: api.create(volume(name, chosen[name])))

    def make(index: int) -> None:
        name = names[index]
        api.create(attachment(name, chosen[name], nodes[index % NODES]))

    warm, groups = len(drivers), system.groups()
    each(range(warm), make)
    wait_until(lambda: attached(api, mark) == warm, 60, "first ones", interval_seconds=0.2)
    time.sleep(1)
    before, started = sample(api, groups), time.monotonic()
    each(range(warm, len(names)), make)
    made_seconds = time.monotonic() - started
    wait_until(lambda: attached(api, mark) == len(names), 300, "all attached", interval_seconds=0.1)
    attach_seconds = time.monotonic() - started
    after, started = sample(api, groups), time.monotonic()
    each(names, lambda name: api.delete(f"{ATTACHMENTS}/{name}"))
    wait_until(lambda: attached(api, mark) == 0, 300, "all detached", interval_seconds=0.1)
    detach_seconds = time.monotonic() - started
    end = sample(api, groups)
    attach_cpu = cpu_per_claim(before, after, count)
    record = {
        "system": system.name,
        "drivers": len(drivers),
        "attachments": count,
        "attached_per_s": round(count / attach_seconds, 1),
        "made_per_s": round(count / made_seconds, 1),
        "detached_per_s": round(count / detach_seconds, 1),
        "cpu_ms_attach": round(sum(attach_cpu.values()), 2),
        "of which": ", ".join(f"{name} {spent:.1f}" for name, spent in attach_cpu.items() if spent),
        "cpu_ms_detach": round(sum(cpu_per_claim(after, end, count).values()), 2),
        "api_cpu_ms": round(1000 * (after.api_cpu - before.api_cpu) / count, 2),
        "pss_mib": round(sum(memory(groups).values()), 1),
    }
    clean_up(api, names, nodes)
    return record


def attached(api: KubeApi, mark: str) -> int:
    """Return how many attachments of this run are attached now; deleted ones do not count."""
    found = api.items(ATTACHMENTS)
    return sum(
        one["metadata"]["name"].startswith(mark) and one["status"]["attached"] for one in found
    )


def each(items: Sequence[Any], act: Callable[[Any], Any]) -> None:
    """Run `act` for all items with several clients at once."""
    with ThreadPoolExecutor(CLIENTS) as pool:
        for future in [pool.submit(act, item) for item in items]:
            future.result()


def csi_node(name: str, drivers: Sequence[str]) -> dict[str, Any]:
    """Return a CSINode with all drivers."""
    entries = [{"name": one, "nodeID": f"id-{name}", "topologyKeys": None} for one in drivers]
    return {
        "apiVersion": STORAGE,
        "kind": "CSINode",
        "metadata": {"name": name},
        "spec": {"drivers": entries},
    }


def volume(name: str, driver: str) -> dict[str, Any]:
    """Return a PV of a driver."""
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": name},
        "spec": {
            "capacity": {"storage": "1Gi"},
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": "none",
            "persistentVolumeReclaimPolicy": "Retain",
            "csi": {"driver": driver, "volumeHandle": name},
        },
    }


def attachment(name: str, driver: str, node: str) -> dict[str, Any]:
    """Return a VolumeAttachment as the attach/detach controller makes it."""
    source = {"persistentVolumeName": name}
    return {
        "apiVersion": STORAGE,
        "kind": "VolumeAttachment",
        "metadata": {"name": name},
        "spec": {"attacher": driver, "nodeName": node, "source": source},
    }


def clean_up(api: KubeApi, names: Sequence[str], nodes: Sequence[str]) -> None:
    """Delete the volumes and nodes of the run."""

    def remove(name: str) -> None:
        path = f"/api/v1/persistentvolumes/{name}"
        api.delete(path)
        with suppress(KubeApiError):  # it is deleted already, as it should be
            api.patch(path, {"metadata": {"finalizers": None}})

    each(names, remove)
    each(nodes, lambda name: api.delete(f"/apis/{STORAGE}/csinodes/{name}"))


def killed(api: KubeApi, kubeconfig: Path, peer: Path | None) -> list[dict[str, Any]]:
    """Kill the publishing process while a second one runs; return the seconds to `attached`."""
    found = []
    for name in ("csi-fleet",) if peer is None else ("csi-fleet", "reference"):
        with DirectoryDriver(arguments=[f"--capabilities={CAPABILITIES}"]) as driver:
            host: Any = OneDriver(driver)
            if peer is None or name == "csi-fleet":
                with Ours(kubeconfig, host, "--controllers=attacher", workers=2) as system:
                    url = system.fleet.redis_url
                    seconds = killed_once(api, driver, lambda url=url: owner(url))
            else:
                with LeadingAttacher(peer, kubeconfig, host) as first:
                    victim = first.groups()["csi-attacher"][0]
                    with WaitingAttacher(peer, kubeconfig, host):
                        seconds = killed_once(api, driver, lambda pid=victim: pid)
        found.append({"killed during a publish": name, "attached after s": round(seconds, 1)})
    return found


def killed_once(api: KubeApi, driver: DirectoryDriver, victim: Callable[[], int]) -> float:
    """Kill the process whose publish call hangs, and return the seconds to `attached`."""
    driver.set_rules({"method": "ControllerPublishVolume", "hang": True, "times": 1})
    cluster = AttachCluster(api, [driver])
    try:
        (node,), (name,) = cluster.add_nodes(1), cluster.add_volumes(driver, 1)
        api.create(attachment(name, driver.name, node))
        wait_until(lambda: bool(driver.calls("ControllerPublishVolume")), 60, "the call runs")
        time.sleep(1)
        os.kill(victim(), signal.SIGKILL)
        started = time.monotonic()
        wait_until(lambda: attached(api, name) == 1, 120, "attached", interval_seconds=0.05)
        seconds = time.monotonic() - started
        api.delete(f"{ATTACHMENTS}/{name}")
        wait_until(lambda: not cluster.published(), 60, "detached")
        return seconds
    finally:
        cluster.clean_up()


def owner(redis_url: str) -> int:
    """Return the process id in the only lease, `... <host>:<pid>:<random> ...`."""
    with redis.Redis.from_url(redis_url, decode_responses=True) as client:
        (lease,) = client.hvals("csifleet:leases")
    return int(lease.split(" ")[1].split(":")[-2])

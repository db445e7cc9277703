"""A driver as a cloud's vendor ships it: two replicas, Go sidecars with Leases, volumes to attach.

`Work` makes claims that come, are attached, detached, grown and deleted; `Sides` looks who is at
work meanwhile.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from itertools import groupby, pairwise
from pathlib import Path

from tests.support.csi_driver import DriverCall
from tests.support.kube_api import JsonObject, KubeApi
from tests.support.node import moving
from tests.support.node.cluster import NODE, NodeCluster
from tests.support.node.moving import CLAIMS, DRIVER, NAMESPACE
from tests.support.waiting import wait_until
from workers.cli import gateway
from workers.engine.leasename import OURS

PROGRAMS = ("csi-provisioner", "csi-attacher", "csi-resizer")
CAPABILITIES = "CONTROLLER_SERVICE,CREATE_DELETE_VOLUME,PUBLISH_UNPUBLISH_VOLUME,EXPAND_VOLUME"
ATTACHMENTS = "/apis/storage.k8s.io/v1/volumeattachments"
CSI_NODE = f"/apis/storage.k8s.io/v1/csinodes/{NODE}"
LEASE = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/moved-csi-example-org"
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
GROWN = "2Mi"
_STORAGE = "storage.k8s.io"
_RULES = (
    ("", "persistentvolumes", ["patch"]),
    ("", "persistentvolumeclaims/status", ["patch", "update"]),
    ("", "pods", ["get", "list", "watch"]),
    (_STORAGE, "volumeattachments", ["patch"]),
    (_STORAGE, "volumeattachments/status", ["patch"]),
)


def install(cluster: NodeCluster, programs: Path) -> None:
    """The vendor's objects, with the Go programs of the folder."""
    for program in PROGRAMS:
        moving.import_program(cluster, _image(program), programs / program)
    # What the driver's node plug-in would bring: the node's name at the driver.
    own = {"name": DRIVER, "nodeID": NODE, "topologyKeys": None}
    cluster.api.patch(CSI_NODE, {"spec": {"drivers": [own]}})
    moving.install(cluster, _manifests())


def remove(cluster: NodeCluster) -> None:
    """All of it."""
    moving.remove(cluster)
    cluster.api.patch(CSI_NODE, {"spec": {"drivers": []}})


def _image(program: str) -> str:
    return f"registry.example.com/sig-storage/{program}:v1"


def _manifests() -> list[JsonObject]:
    objects = moving.manifests()
    for item in objects:
        if item["kind"] == "CSIDriver":
            item["spec"]["attachRequired"] = True
        elif item["kind"] == "StorageClass":
            item["allowVolumeExpansion"] = True
        elif item["kind"] == "ClusterRole":
            item["rules"] += [
                {"apiGroups": [group], "resources": [resource], "verbs": verbs}
                for group, resource, verbs in _RULES
            ]
        elif item["kind"] == "Deployment":
            item["spec"]["replicas"] = 2
            pod = item["spec"]["template"]["spec"]
            sidecar, driver = pod["containers"]
            driver["args"].append(f"--capabilities={CAPABILITIES}")
            arguments = ["-v=2", "--csi-address=/csi/csi.sock", "--leader-election"]
            pod["containers"] = [driver] + [
                sidecar
                | {
                    "name": program,
                    "image": _image(program),
                    "command": [f"/{program}"],
                    "args": arguments + ["--extra-create-metadata"] * (program == PROGRAMS[0]),
                }
                for program in PROGRAMS
            ]
    return objects


class Work:
    """A new claim each second.

    Each is attached, detached and grown once it is Bound, and every second one is deleted then.
    """

    def __init__(self, api: KubeApi) -> None:
        self.api = api
        self.made = 0
        self.waited: dict[str, float] = {}
        self.stages: dict[str, str] = {}
        self._created: dict[str, float] = {}
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def wait_more(self, count: int) -> None:
        """Until so many that are not made yet have all behind them."""
        target = self.made + count
        wait_until(lambda: self.is_done(target), moving.SECONDS, f"{count} more claims are through")

    def stop(self) -> None:
        """No more claims; those that are there come to their end."""
        target = self.made
        self._ends.set()
        wait_until(lambda: self.is_done(target), moving.SECONDS, "all claims are through")
        self._thread.join()

    def is_done(self, count: int) -> bool:
        """Whether the first so many claims have all behind them."""
        return all(self.stages.get(f"c{n}") in {"kept", "deleted"} for n in range(count))

    def names(self, stage: str) -> set[str]:
        """Of the claims in that stage."""
        return {name for name, one in self.stages.items() if one == stage}

    def _run(self) -> None:
        started = time.monotonic()
        while not (self._ends.is_set() and self.is_done(self.made)):
            if not self._ends.is_set() and time.monotonic() >= started + self.made:
                name = f"c{self.made}"
                self.api.create(moving.claim(name))
                self._created[name] = time.monotonic()
                self.stages[name] = "made"
                self.made += 1
            claims = {one["metadata"]["name"]: one for one in self.api.items(CLAIMS)}
            attached = {
                one["metadata"]["name"]: one.get("status") or {}
                for one in self.api.items(ATTACHMENTS)
            }
            for name, stage in list(self.stages.items()):
                self._step(name, stage, claims.get(name), attached.get(name))
            self._ends.wait(0.2)

    def _step(
        self, name: str, stage: str, claim: JsonObject | None, attached: JsonObject | None
    ) -> None:
        if stage == "made" and claim and moving.is_bound(claim):
            self.waited[name] = time.monotonic() - self._created[name]
            self.api.create(_attachment(name, claim["spec"]["volumeName"]))
            self.stages[name] = "attaching"
        elif stage == "attaching" and attached and attached.get("attached"):
            self.api.delete(f"{ATTACHMENTS}/{name}")
            self.stages[name] = "detaching"
        elif stage == "detaching" and attached is None:
            wanted = {"spec": {"resources": {"requests": {"storage": GROWN}}}}
            self.api.patch(f"{CLAIMS}/{name}", wanted)
            self.stages[name] = "growing"
        elif stage == "growing" and claim and claim["status"]["capacity"]["storage"] == GROWN:
            is_kept = int(name[1:]) % 2 == 0
            if not is_kept:
                self.api.delete(f"{CLAIMS}/{name}")
            self.stages[name] = "kept" if is_kept else "deleted"


def _attachment(name: str, volume: str) -> JsonObject:
    return {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "VolumeAttachment",
        "metadata": {"name": name},
        "spec": {
            "attacher": DRIVER,
            "nodeName": NODE,
            "source": {"persistentVolumeName": volume},
        },
    }


class Sides:
    """Who is at work: `leads` are the holders of the provisioner's Lease, one after the other.

    `both` counts moments in which pods ran a Go sidecar and pods ran the gateway.
    """

    def __init__(self, api: KubeApi) -> None:
        self.api = api
        self.leads: list[str] = []
        self.both = 0
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Look no more."""
        self._ends.set()
        self._thread.join()

    @property
    def order(self) -> list[str]:
        """The sides that had the Lease: `go` and `csi-fleet` in turn."""
        sides = ("csi-fleet" if OURS in one else "go" for one in self.leads)
        return [side for side, _ in groupby(sides)]

    def _run(self) -> None:
        while not self._ends.wait(0.2):
            lease = self.api.find(LEASE)
            holder = (lease or {}).get("spec", {}).get("holderIdentity") or ""
            if holder and holder != (self.leads or [""])[-1]:
                self.leads.append(holder)
            running = {
                one["name"]
                for pod in self.api.items(PODS)
                for one in pod["status"].get("containerStatuses") or ()
                if "running" in one["state"]
            }
            self.both += gateway.NAME in running and not running.isdisjoint(PROGRAMS)


def processes(calls: list[DriverCall]) -> list[str]:
    """The driver's processes that were called, one after the other, in the order of the calls."""
    ids = (one.call.rpartition("-")[0] for one in sorted(calls, key=lambda one: one.started_at))
    return [one for one, _ in groupby(ids)]


def came_back(calls: list[DriverCall]) -> list[str]:
    """Processes that were called again after another one had been."""
    return [one for one, count in Counter(processes(calls)).items() if count > 1]


def longest_gap(calls: list[DriverCall]) -> float:
    """Seconds between two calls that follow one another."""
    times = sorted(one.started_at for one in calls)
    return max(later - earlier for earlier, later in pairwise(times))

"""A driver as its vendor ships it, with Go's csi-provisioner, and claims that keep coming.

`PEER=PROGRAM` is the real csi-provisioner. Without it our own image has its name: as a drop-in with
a Redis of its own it is another program for csi-fleet, with the same Lease.
"""

from __future__ import annotations

import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from itertools import pairwise
from pathlib import Path

import yaml

from tests.support.csi_driver import DirectoryDriver, DriverCall
from tests.support.kube_api import JsonObject, KubeApi
from tests.support.node.cluster import NodeCluster
from tests.support.node.images import FLEET_IMAGE, Image, program_layer, write_archive
from tests.support.waiting import wait_until

DRIVER = "moved.csi.example.org"
NAMESPACE = "vendor"
DEPLOYMENT = "vendor-controller"
ACCOUNT = "vendor-controller-sa"
GO_IMAGE = "registry.k8s.io/sig-storage/csi-provisioner:v6.3.0"
STORAGE = f"/var/lib/kubelet/plugins/{DRIVER}/storage"
CLAIMS = f"/api/v1/namespaces/{NAMESPACE}/persistentvolumeclaims"
VOLUMES = "/api/v1/persistentvolumes"
SECONDS = 180
_EXAMPLE = (
    "{name: directory.csi.example.org, namespace: csi-driver-example, serviceAccount: driver}"
)
# What docs/migration.md is read with: its driver is this one. The chart's list has the example too.
REPLACED = {
    "nfs.csi.k8s.io": DRIVER,
    "kube-system": NAMESPACE,
    "csi-nfs-controller-sa": ACCOUNT,
    "csi-nfs-controller": DEPLOYMENT,
    "drivers:\n": f"drivers:\n  - {_EXAMPLE}\n",
}
_MANIFESTS = Path(__file__).with_name("vendor.yaml")
_RBAC = "/apis/rbac.authorization.k8s.io/v1"
_PATHS = {
    "Namespace": "/api/v1/namespaces",
    "CSIDriver": "/apis/storage.k8s.io/v1/csidrivers",
    "StorageClass": "/apis/storage.k8s.io/v1/storageclasses",
    "ClusterRole": f"{_RBAC}/clusterroles",
    "ClusterRoleBinding": f"{_RBAC}/clusterrolebindings",
}


def provide_image(cluster: NodeCluster, program: str) -> None:
    """`GO_IMAGE` on the node: the program, or ours under its name."""
    if not program:
        cluster.ctr("images", "tag", "--force", f"docker.io/library/{FLEET_IMAGE}", GO_IMAGE)
        return
    with tempfile.TemporaryDirectory(dir=cluster.directory) as scratch:
        image = Image(GO_IMAGE, [program_layer(Path(scratch), Path(program))])
        archive = Path(scratch, "images.tar")
        write_archive(archive, [image])
        cluster.ctr("images", "import", str(archive))


def install(cluster: NodeCluster) -> None:
    """The vendor's objects; its calls take a moment, so that a move meets some under way."""
    for item in yaml.safe_load_all(_MANIFESTS.read_text()):
        cluster.api.apply(item)
    with closing(journal(cluster)) as driver:
        driver.set_rules(
            {"method": "CreateVolume", "delay_seconds": [0.1, 1.5]},
            {"method": "DeleteVolume", "delay_seconds": [0.1, 1.0]},
        )
    wait_until(lambda: ready(cluster.api), SECONDS, "the vendor's driver runs")


def ready(api: KubeApi) -> bool:
    """Whether its pod is."""
    path = f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments/{DEPLOYMENT}"
    return bool(api.get(path).get("status", {}).get("readyReplicas"))


def kill_sidecar(cluster: NodeCluster) -> str:
    """The provisioner's container dies and is started again in its pod; returns what it says then.

    It can say something as soon as somebody has the Lease again.
    """
    (pod,) = cluster.api.items(f"/api/v1/namespaces/{NAMESPACE}/pods")
    statuses = {one["name"]: one for one in pod["status"]["containerStatuses"]}
    held = holder(cluster.api)
    cluster.kill_container(statuses["csi-provisioner"])
    wait_until(lambda: holder(cluster.api) not in {"", held}, SECONDS, "it has the Lease again")
    return cluster.logs(NAMESPACE, pod["metadata"]["name"], "csi-provisioner")


def journal(cluster: NodeCluster) -> DirectoryDriver:
    """What the driver stored and was asked; not started, for its pods are."""
    root = cluster.directory / STORAGE.removeprefix("/var/lib/")
    return DirectoryDriver(DRIVER, root=root)


def holder(api: KubeApi) -> str:
    """Who has csi-provisioner's Lease now."""
    path = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases"
    held = [one["spec"].get("holderIdentity") or "" for one in api.items(path)]
    return held[0] if held else ""


@contextmanager
def other_holder(api: KubeApi, claims: Claims) -> Iterator[None]:
    """What is done within ends with somebody else at work; says how long nobody was."""
    before = holder(api)
    yield
    since, made = time.monotonic(), claims.made
    wait_until(lambda: holder(api) not in {"", before}, SECONDS, "another one has the Lease")
    seconds = time.monotonic() - since
    print(f"after claim {made}: {holder(api)} has the Lease {seconds:.1f} s later", flush=True)


class Claims:
    """One more claim each second; the oldest bound one of every second such is deleted."""

    def __init__(self, api: KubeApi) -> None:
        self.api = api
        self.waited: dict[str, float] = {}
        self.made = self.deleted = 0
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """No more of them."""
        self._ends.set()
        self._thread.join()

    def wait_more(self, count: int) -> None:
        """Until so many that are not made yet are Bound."""
        target = self.made + count

        def done() -> bool:
            numbers = (int(name[1:]) for name in self.waited)
            return sum(number >= target - count for number in numbers) >= count

        wait_until(done, SECONDS, f"{count} more claims are Bound", interval_seconds=0.5)

    def waiting(self) -> list[str]:
        """Those that are not Bound yet."""
        return [one["metadata"]["name"] for one in self.api.items(CLAIMS) if not _bound(one)]

    def _run(self) -> None:
        started = time.monotonic()
        created: dict[str, float] = {}
        while not self._ends.wait(0.2):
            if time.monotonic() >= started + self.made:
                name = f"c{self.made}"
                self.api.create(_claim(name))
                created[name] = time.monotonic()
                self.made += 1
            for one in self.api.items(CLAIMS):
                name = one["metadata"]["name"]
                if _bound(one) and name not in self.waited:
                    self.waited[name] = time.monotonic() - created[name]
                    if int(name[1:]) % 2:
                        self.api.delete(f"{CLAIMS}/{name}")
                        self.deleted += 1


def _bound(claim: JsonObject) -> bool:
    return bool(claim["status"].get("phase") == "Bound")


def _claim(name: str) -> JsonObject:
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {
            "storageClassName": "moved",
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "1Mi"}},
        },
    }


def volumes(api: KubeApi) -> dict[str, str]:
    """The claim of each of the driver's PVs."""
    return {
        one["metadata"]["name"]: one["spec"]["claimRef"]["name"]
        for one in api.items(VOLUMES)
        if one["spec"]["csi"]["driver"] == DRIVER
    }


def overlapping(calls: list[DriverCall], key: str) -> list[str]:
    """Names that two calls were about at one time; a call without end ended with its driver."""
    return [
        f"{name}: until {ended}, from {begun}"
        for name, own in _by_name(calls, key)
        for (_, ended), (begun, _) in pairwise(sorted(own, key=lambda one: one[0]))
        if ended is not None and ended > begun
    ]


def repeated(calls: list[DriverCall], key: str) -> int:
    """How many names were asked for more than once."""
    return sum(count > 1 for count in Counter(one.request[key] for one in calls).values())


def _by_name(
    calls: list[DriverCall], key: str
) -> Iterator[tuple[str, list[tuple[float, float | None]]]]:
    for name in {one.request[key] for one in calls}:
        yield name, [(c.started_at, c.ended_at) for c in calls if c.request[key] == name]


def nothing_lost(node: NodeCluster, claims: Claims) -> None:
    """Checks at the API server and at the driver that each claim has one volume, and no other."""
    kept = {f"c{n}" for n in range(claims.made)} - {
        name for name in claims.waited if int(name[1:]) % 2
    }
    is_done = lambda: set(volumes(node.api).values()) == kept  # noqa: E731
    wait_until(is_done, SECONDS, "volumes of deleted claims are gone")
    found = volumes(node.api)
    assert sorted(found.values()) == sorted(kept), "one volume for each claim"
    with closing(journal(node)) as driver:
        stored = sorted(one["name"] for one in driver.volumes().values())
        created, deleted = driver.calls("CreateVolume"), driver.calls("DeleteVolume")
    assert stored == sorted(found), "the driver stores what the cluster knows"
    assert overlapping(created, "name") == []
    assert overlapping(deleted, "volume_id") == []
    print(
        f"{claims.made} claims, {claims.deleted} of them deleted; calls: {len(created)} creations, "
        f"{len(deleted)} deletions; asked again: {repeated(created, 'name')} and "
        f"{repeated(deleted, 'volume_id')}; at one time: none"
    )


def remove(cluster: NodeCluster) -> None:
    """The vendor's objects, its volumes first; its driver need not be slow any more."""
    with closing(journal(cluster)) as driver:
        driver.set_rules()
    for one in cluster.api.items(CLAIMS):
        cluster.api.delete(f"{CLAIMS}/{one['metadata']['name']}")
    wait_until(lambda: not volumes(cluster.api), SECONDS, "its volumes are deleted")
    items = [one for one in yaml.safe_load_all(_MANIFESTS.read_text()) if one["kind"] in _PATHS]
    for one in items:
        cluster.api.delete(f"{_PATHS[one['kind']]}/{one['metadata']['name']}")
    path = f"/api/v1/namespaces/{NAMESPACE}"
    wait_until(lambda: cluster.api.find(path) is None, SECONDS, f"{NAMESPACE} is gone")

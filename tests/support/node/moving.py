"""A vendor's driver with Go's csi-provisioner, and claims that are created continuously.

`PEER` is the real csi-provisioner, or a folder with it and other Go sidecars. Without it our own
image has its name: as a drop-in with a Redis of its own it is another program for csi-fleet, with
the same Lease.
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
# The values with which the commands of docs/migration.md are run, for this driver. The chart's list
# also contains the example driver.
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
    """Import `GO_IMAGE` on the node: the given program, or csi-fleet's image under its name."""
    if not program:
        cluster.ctr("images", "tag", "--force", f"docker.io/library/{FLEET_IMAGE}", GO_IMAGE)
        return
    path = Path(program)
    import_program(cluster, GO_IMAGE, path / "csi-provisioner" if path.is_dir() else path)


def import_program(cluster: NodeCluster, image: str, program: Path) -> None:
    """An image on the node that is one program."""
    with tempfile.TemporaryDirectory(dir=cluster.directory) as scratch:
        archive = Path(scratch, "images.tar")
        write_archive(archive, [Image(image, [program_layer(Path(scratch), program)])])
        cluster.ctr("images", "import", str(archive))


def manifests() -> list[JsonObject]:
    """The vendor's objects."""
    return list(yaml.safe_load_all(_MANIFESTS.read_text()))


def install(cluster: NodeCluster, objects: list[JsonObject] | None = None) -> None:
    """The vendor's objects; its calls take a moment, so that a move meets some under way."""
    for item in objects or manifests():
        cluster.api.apply(item)
    with closing(journal(cluster)) as driver:
        driver.set_rules(
            {"method": "CreateVolume", "delay_seconds": [0.1, 1.5]},
            {"method": "DeleteVolume", "delay_seconds": [0.1, 1.0]},
        )
    wait_until(lambda: ready(cluster.api), SECONDS, "the vendor's driver runs")


def ready(api: KubeApi) -> bool:
    """Return True if the driver's pod is ready."""
    path = f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments/{DEPLOYMENT}"
    return bool(api.get(path).get("status", {}).get("readyReplicas"))


def kill_sidecar(cluster: NodeCluster) -> str:
    """Kill the provisioner's container, wait until kubelet has restarted it, and return its log.

    The log has an entry as soon as a process holds the Lease again.
    """
    (pod,) = cluster.api.items(f"/api/v1/namespaces/{NAMESPACE}/pods")
    statuses = {one["name"]: one for one in pod["status"]["containerStatuses"]}
    held = holder(cluster.api)
    cluster.kill_container(statuses["csi-provisioner"])
    wait_until(lambda: holder(cluster.api) not in {"", held}, SECONDS, "it has the Lease again")
    return cluster.logs(NAMESPACE, pod["metadata"]["name"], "csi-provisioner")


def journal(cluster: NodeCluster) -> DirectoryDriver:
    """Return a reader of the driver's volumes and calls; it starts no driver."""
    root = cluster.directory / STORAGE.removeprefix("/var/lib/")
    return DirectoryDriver(DRIVER, root=root)


def holder(api: KubeApi) -> str:
    """Return the holder of csi-provisioner's Lease."""
    path = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases"
    held = [one["spec"].get("holderIdentity") or "" for one in api.items(path)]
    return held[0] if held else ""


@contextmanager
def other_holder(api: KubeApi, claims: Claims) -> Iterator[None]:
    """Check that another process holds the Lease afterwards, and print for how long no process
    did."""
    before = holder(api)
    yield
    since, made = time.monotonic(), claims.made
    wait_until(lambda: holder(api) not in {"", before}, SECONDS, "another one has the Lease")
    seconds = time.monotonic() - since
    print(f"after claim {made}: {holder(api)} has the Lease {seconds:.1f} s later", flush=True)


class Claims:
    """Creates one more claim each second, and deletes the oldest bound claim every two seconds."""

    def __init__(self, api: KubeApi) -> None:
        self.api = api
        self.waited: dict[str, float] = {}
        self.made = self.deleted = 0
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop creating claims."""
        self._ends.set()
        self._thread.join()

    def wait_more(self, count: int) -> None:
        """Wait until this many of the open claims are Bound."""
        target = self.made + count

        def done() -> bool:
            numbers = (int(name[1:]) for name in self.waited)
            return sum(number >= target - count for number in numbers) >= count

        wait_until(done, SECONDS, f"{count} more claims are Bound", interval_seconds=0.5)

    def waiting(self) -> list[str]:
        """Those that are not Bound yet."""
        return [one["metadata"]["name"] for one in self.api.items(CLAIMS) if not is_bound(one)]

    def _run(self) -> None:
        started = time.monotonic()
        created: dict[str, float] = {}
        while not self._ends.wait(0.2):
            if time.monotonic() >= started + self.made:
                name = f"c{self.made}"
                self.api.create(claim(name))
                created[name] = time.monotonic()
                self.made += 1
            for one in self.api.items(CLAIMS):
                name = one["metadata"]["name"]
                # `adopt` verifies with a claim of its own.
                if name in created and name not in self.waited and is_bound(one):
                    self.waited[name] = time.monotonic() - created[name]
                    if int(name[1:]) % 2:
                        self.api.delete(f"{CLAIMS}/{name}")
                        self.deleted += 1


def is_bound(item: JsonObject) -> bool:
    """Whether Kubernetes has bound the claim to its volume."""
    return bool(item["status"].get("phase") == "Bound")


def claim(name: str) -> JsonObject:
    """One of the vendor's class."""
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
    """Return the claim of each of the driver's PVs."""
    return {
        one["metadata"]["name"]: one["spec"]["claimRef"]["name"]
        for one in api.items(VOLUMES)
        if one["spec"]["csi"]["driver"] == DRIVER
    }


def overlapping(calls: list[DriverCall], key: str) -> list[str]:
    """Return names for which two calls ran at one time; an unfinished call ended with its
    driver."""
    return [
        f"{name}: until {ended}, from {begun}"
        for name, own in _by_name(calls, key)
        for (_, ended), (begun, _) in pairwise(sorted(own, key=lambda one: one[0]))
        if ended is not None and ended > begun
    ]


def repeated(calls: list[DriverCall], key: str) -> int:
    """Return how many names were requested more than once."""
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
    """Remove the vendor's objects, its volumes first; the driver need not be slow any more."""
    with closing(journal(cluster)) as driver:
        driver.set_rules()
    for one in cluster.api.items(CLAIMS):
        cluster.api.delete(f"{CLAIMS}/{one['metadata']['name']}")
    wait_until(lambda: not volumes(cluster.api), SECONDS, "its volumes are deleted")
    items = [one for one in manifests() if one["kind"] in _PATHS]
    for one in items:
        cluster.api.delete(f"{_PATHS[one['kind']]}/{one['metadata']['name']}")
    path = f"/api/v1/namespaces/{NAMESPACE}"
    wait_until(lambda: cluster.api.find(path) is None, SECONDS, f"{NAMESPACE} is gone")

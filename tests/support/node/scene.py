"""The claims, pods and snapshots of one test on the node, in a namespace that is removed with
them."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Self

from tests.support.kube_api import JsonObject
from tests.support.node.cluster import NodeCluster
from tests.support.node.images import BUSYBOX_IMAGE
from tests.support.node.workloads import DRIVER
from tests.support.waiting import wait_until

SECONDS = 180  # for a machine that is three times slower, and for kubelet's own periods
SNAPSHOTS = "snapshot.storage.k8s.io/v1"
CLASS = "node-test"
IMMEDIATE = f"{CLASS}-immediate"


class NodeScene:
    """Creates objects and waits for them; on exit, removes the namespace with all its objects."""

    def __init__(self, cluster: NodeCluster) -> None:
        self.cluster = cluster
        self.api = cluster.api
        self.namespace = f"node-{uuid.uuid4().hex[:6]}"

    def __enter__(self) -> Self:
        meta = {"name": self.namespace}
        self.api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": meta})
        for name, mode in ((CLASS, "WaitForFirstConsumer"), (IMMEDIATE, "Immediate")):
            self.api.apply(
                {
                    "apiVersion": "storage.k8s.io/v1",
                    "kind": "StorageClass",
                    "metadata": {"name": name},
                    "provisioner": DRIVER,
                    "volumeBindingMode": mode,
                    "allowVolumeExpansion": True,
                }
            )
        self.api.apply(
            {
                "apiVersion": SNAPSHOTS,
                "kind": "VolumeSnapshotClass",
                "metadata": {"name": CLASS},
                "driver": DRIVER,
                "deletionPolicy": "Delete",
            }
        )
        return self

    def __exit__(self, *_: object) -> None:
        path = f"/api/v1/namespaces/{self.namespace}"
        for kind in ("pods", "persistentvolumeclaims"):
            for one in self.api.items(f"{path}/{kind}"):
                self.api.delete(f"{path}/{kind}/{one['metadata']['name']}")
        for one in self.api.items(self.snapshots):
            self.api.delete(f"{self.snapshots}/{one['metadata']['name']}")
        self.api.delete(path)
        wait_until(lambda: self.api.find(path) is None, SECONDS, f"{self.namespace} is gone")

    @property
    def snapshots(self) -> str:
        """Return the path of the namespace's snapshots."""
        return f"/apis/{SNAPSHOTS}/namespaces/{self.namespace}/volumesnapshots"

    def claim(
        self,
        name: str,
        *,
        source: JsonObject | None = None,
        block: bool = False,
        size: str = "64Mi",
        immediate: bool = False,
    ) -> None:
        """Create a claim of the driver's class; a claim with immediate binding waits for no pod."""
        spec = claim_spec(source, block=block, size=size)
        if immediate:
            spec["storageClassName"] = IMMEDIATE
        self._create("v1", "PersistentVolumeClaim", name, spec)

    def snapshot(self, name: str, claim: str) -> None:
        """Create a snapshot of a claim, and wait until it is ready to use."""
        source = {"persistentVolumeClaimName": claim}
        spec = {"volumeSnapshotClassName": CLASS, "source": source}
        self._create(SNAPSHOTS, "VolumeSnapshot", name, spec)
        wait_until(
            lambda: self.api.get(f"{self.snapshots}/{name}").get("status", {}).get("readyToUse"),
            SECONDS,
            f"snapshot {name} is ready",
        )

    def pod(self, name: str, script: str, *volumes: JsonObject, block: bool = False) -> None:
        """Create a busybox pod that runs `script`; its volumes are mounted at /v0, /v1, ..."""
        mounts = [{"name": f"v{n}", "mountPath": f"/v{n}"} for n in range(len(volumes))]
        devices = [{"name": f"v{n}", "devicePath": f"/v{n}"} for n in range(len(volumes))]
        container = {
            "name": "main",
            "image": BUSYBOX_IMAGE,
            "command": ["sh", "-ec", f"trap 'exit 0' TERM; {script}"],
            **({"volumeDevices": devices} if block else {"volumeMounts": mounts}),
        }
        named = [{"name": f"v{n}", **volume} for n, volume in enumerate(volumes)]
        spec = {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 5,
            "automountServiceAccountToken": False,
            "containers": [container],
            "volumes": named,
        }
        self._create("v1", "Pod", name, spec)

    def phase(self, name: str) -> str:
        """Return the phase of a pod."""
        found: str = self.api.get(self.pod_path(name))["status"]["phase"]
        return found

    def pod_path(self, name: str) -> str:
        """Return the path of a pod."""
        return f"/api/v1/namespaces/{self.namespace}/pods/{name}"

    def wait_phase(self, name: str, phase: str) -> None:
        """Wait until the pod has this phase.

        Raises:
            RuntimeError: the pod failed.
        """

        def reached() -> bool:
            now = self.phase(name)
            if now == "Failed" != phase:
                raise RuntimeError(f"pod {name} failed: {self.log(name)}")
            return now == phase

        wait_until(reached, SECONDS, f"pod {name} is {phase}", fatal=RuntimeError)

    def printed(self, name: str, script: str, *volumes: JsonObject, block: bool = False) -> str:
        """Run a pod to its end, delete it, and return what it printed."""
        self.pod(name, script, *volumes, block=block)
        self.wait_phase(name, "Succeeded")
        found = self.log(name)
        self.delete_pod(name)
        return found

    def log(self, name: str) -> str:
        """Return what a pod printed."""
        return self.cluster.logs(self.namespace, name, "main").strip()

    def delete_pod(self, name: str) -> None:
        """Delete a pod and wait until it is gone; its volumes may stay staged a little longer."""
        self.api.delete(self.pod_path(name))
        path = self.pod_path(name)
        wait_until(lambda: self.api.find(path) is None, SECONDS, f"pod {name} is gone")

    def grow(self, claim: str, size: str) -> None:
        """Request more space and wait until the claim has it."""
        path = f"/api/v1/namespaces/{self.namespace}/persistentvolumeclaims/{claim}"
        self.api.patch(path, {"spec": {"resources": {"requests": {"storage": size}}}})
        wait_until(
            lambda: self.api.get(path)["status"]["capacity"]["storage"] == size,
            SECONDS,
            f"claim {claim} has {size}",
        )

    def volume_of(self, claim: str) -> JsonObject:
        """Return the PersistentVolume of a bound claim."""
        path = f"/api/v1/namespaces/{self.namespace}/persistentvolumeclaims/{claim}"
        name = self.api.get(path)["spec"]["volumeName"]
        return self.api.get(f"/api/v1/persistentvolumes/{name}")

    def _create(self, version: str, kind: str, name: str, spec: JsonObject) -> None:
        meta = {"name": name, "namespace": self.namespace}
        self.api.create({"apiVersion": version, "kind": kind, "metadata": meta, "spec": spec})


def claim_spec(
    source: JsonObject | None = None, *, block: bool = False, size: str = "64Mi"
) -> JsonObject:
    """Return the specification of a claim, also for a generic ephemeral volume."""
    return {
        "storageClassName": CLASS,
        "accessModes": ["ReadWriteOnce"],
        "volumeMode": "Block" if block else "Filesystem",
        "resources": {"requests": {"storage": size}},
        **({"dataSource": source} if source else {}),
    }


def of_claim(name: str) -> JsonObject:
    """Return a pod's volume for a claim."""
    return {"persistentVolumeClaim": {"claimName": name}}


def from_snapshot(name: str) -> JsonObject:
    """Return a claim's data source: a snapshot."""
    return {"apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": name}


def from_claim(name: str) -> JsonObject:
    """Return a claim's data source: another claim."""
    return {"kind": "PersistentVolumeClaim", "name": name}


def remains(cluster: NodeCluster) -> Sequence[str]:
    """Return what volumes left on the node, in the API server and in the driver's storage."""
    path = "/apis/storage.k8s.io/v1/volumeattachments"
    attached = [one["metadata"]["name"] for one in cluster.api.items(path)]
    volumes = [
        one["metadata"]["name"]
        for one in cluster.api.items("/api/v1/persistentvolumes")
        if one["spec"]["csi"]["driver"] == DRIVER
    ]
    contents = cluster.api.items(f"/apis/{SNAPSHOTS}/volumesnapshotcontents")
    storage = cluster.directory / "kubelet/plugins" / DRIVER / "storage"
    stored = [
        str(one)
        for kind in ("volumes", "snapshots", "published")
        for one in (storage / kind).iterdir()
    ]
    mounted = cluster.mounts("kubernetes.io~csi") + cluster.mounts("kubernetes.io/csi/")
    snapshots = [one["metadata"]["name"] for one in contents]
    return [*attached, *volumes, *snapshots, *stored, *mounted]

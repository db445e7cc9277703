"""Nodes, volumes and pods as API objects, for the cluster's own attach/detach controller.

No kubelet runs the pods. A pod that is bound to a node is enough for kube-controller-manager to
create VolumeAttachments, and deleting the pod is enough to remove them. The test itself writes what
kubelet would write (volumes in use).
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any
from urllib.parse import unquote

from csi_client import messages as csi
from tests.support.csi_driver import DirectoryDriver
from tests.support.kube_api import JsonObject, KubeApi, KubeApiError
from tests.support.waiting import wait_until
from workers.constants import ANN_PROVISIONED_BY

CAPABILITIES = (
    "CONTROLLER_SERVICE,CREATE_DELETE_VOLUME,PUBLISH_UNPUBLISH_VOLUME,PUBLISH_READONLY,"
    "LIST_VOLUMES,LIST_VOLUMES_PUBLISHED_NODES"
)
CONTROLLER = "persistentvolume-attach-detach-controller"
MANAGED = "volumes.kubernetes.io/controller-managed-attach-detach"
OUT_OF_SERVICE = "node.kubernetes.io/out-of-service"
ATTACHMENTS = "/apis/storage.k8s.io/v1/volumeattachments"
NODES, CSI_NODES = "/api/v1/nodes", "/apis/storage.k8s.io/v1/csinodes"
VOLUMES = "/api/v1/persistentvolumes"
CLIENTS = 8


class AttachCluster:
    """The objects of one test, with names that no other test uses."""

    def __init__(self, api: KubeApi, drivers: Sequence[DirectoryDriver]) -> None:
        self.api, self.drivers = api, list(drivers)
        self.name = f"at-{uuid.uuid4().hex[:6]}"
        self.nodes: list[str] = []
        self.volumes: list[str] = []
        self.pods: list[str] = []
        metadata = {"name": self.name}
        api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})
        for driver in drivers:
            spec = {"attachRequired": True}
            kind = {"apiVersion": "storage.k8s.io/v1", "kind": "CSIDriver"}
            api.apply({**kind, "metadata": {"name": driver.name}, "spec": spec})

    # Objects.

    def add_nodes(self, count: int) -> list[str]:
        """Create nodes on which all drivers run; the node id is `id-<name>`."""
        names = [f"{self.name}-n{len(self.nodes) + index}" for index in range(count)]
        self._each(self._add_node, names)
        self.nodes += names
        return names

    def _add_node(self, name: str) -> None:
        self.api.create(
            {
                "apiVersion": "v1",
                "kind": "Node",
                "metadata": {"name": name, "annotations": {MANAGED: "true"}},
            }
        )
        drivers = [
            {"name": one.name, "nodeID": f"id-{name}", "topologyKeys": None} for one in self.drivers
        ]
        kind = {"apiVersion": "storage.k8s.io/v1", "kind": "CSINode"}
        self.api.create({**kind, "metadata": {"name": name}, "spec": {"drivers": drivers}})

    def add_volumes(
        self,
        driver: DirectoryDriver,
        count: int,
        mode: str = "ReadWriteOnce",
        *,
        provisioned: bool = False,
    ) -> list[str]:
        """Create volumes of the driver, each with a PV and a claim of the same name, bound.

        If a volume is `provisioned`, the provisioner deletes it after its claim is deleted.
        """
        names = [f"{self.name}-v{len(self.volumes) + index}" for index in range(count)]
        client = driver.client()
        try:
            self._each(
                lambda name: self._add_volume(client, driver, name, mode, provisioned=provisioned),
                names,
            )
        finally:
            client.close()
        self.volumes += names
        return names

    def _add_volume(
        self, client: Any, driver: DirectoryDriver, name: str, mode: str, *, provisioned: bool
    ) -> None:
        capability = csi.VolumeCapability(mount=csi.VolumeCapability.MountVolume())
        capability.access_mode.mode = csi.VolumeCapability.AccessMode.SINGLE_NODE_WRITER
        request = csi.CreateVolumeRequest(name=name, volume_capabilities=[capability])
        handle = client.create_volume(request).volume.volume_id
        claim = {"name": name, "namespace": self.name}
        spec = {
            "capacity": {"storage": "1Gi"},
            "accessModes": [mode],
            "storageClassName": "",
            "persistentVolumeReclaimPolicy": "Delete" if provisioned else "Retain",
        }
        notes = {ANN_PROVISIONED_BY: driver.name} if provisioned else {}
        source = {"driver": driver.name, "volumeHandle": handle}
        self.api.create(
            {
                "apiVersion": "v1",
                "kind": "PersistentVolume",
                "metadata": {"name": name, "annotations": notes},
                "spec": {**spec, "csi": source, "claimRef": claim},
            }
        )
        wanted = {"accessModes": [mode], "storageClassName": "", "volumeName": name}
        resources = {"requests": {"storage": "1Gi"}}
        self.api.create(
            {
                "apiVersion": "v1",
                "kind": "PersistentVolumeClaim",
                "metadata": claim,
                "spec": {**wanted, "resources": resources},
            }
        )

    def wait_bound(self) -> None:
        """Wait until every claim is bound, because the attach/detach controller ignores other
        claims."""

        def is_bound() -> bool:
            path = f"/api/v1/namespaces/{self.name}/persistentvolumeclaims"
            phases = [one.get("status", {}).get("phase") for one in self.api.items(path)]
            return all(phase == "Bound" for phase in phases)

        wait_until(is_bound, 90, "claims are bound", interval_seconds=0.3)

    def add_pod(self, node: str, volumes: Sequence[str]) -> str:
        """Create a pod on the node that uses these claims; no kubelet runs it."""
        name = f"{self.name}-p{len(self.pods)}"
        self.pods.append(name)
        uses = [
            {"name": f"v{index}", "persistentVolumeClaim": {"claimName": volume}}
            for index, volume in enumerate(volumes)
        ]
        spec = {"nodeName": node, "containers": [{"name": "c", "image": "none"}], "volumes": uses}
        self.api.create(
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": name, "namespace": self.name},
                "spec": spec,
            }
        )
        return name

    def delete_pod(self, name: str) -> None:
        """Delete the pod at once, as if kubelet had already unmounted everything."""
        path = f"/api/v1/namespaces/{self.name}/pods/{name}"
        with suppress(KubeApiError):
            self.api.request("DELETE", path, {"gracePeriodSeconds": 0})
        if name in self.pods:
            self.pods.remove(name)

    def in_use(self, node: str, driver: DirectoryDriver, volumes: Sequence[str]) -> None:
        """Write the status that kubelet writes while the volumes are mounted."""
        handles = [self.handle(one) for one in volumes]
        names = [f"kubernetes.io/csi/{driver.name}^{handle}" for handle in handles]
        self.api.patch(f"{NODES}/{node}/status", {"status": {"volumesInUse": names}})

    # Reading the state.

    def attach(self, name: str, driver: str, volume: str, node: str) -> None:
        """Create a VolumeAttachment, as the attach/detach controller would."""
        source = {"persistentVolumeName": volume}
        spec = {"attacher": driver, "nodeName": node, "source": source}
        kind = {"apiVersion": "storage.k8s.io/v1", "kind": "VolumeAttachment"}
        self.api.create({**kind, "metadata": {"name": name}, "spec": spec})

    def handle(self, volume: str) -> str:
        """Return the driver's id of a volume."""
        found = self.api.get(f"{VOLUMES}/{volume}")
        return str(found["spec"]["csi"]["volumeHandle"])

    def attachments(self) -> list[JsonObject]:
        """Return the VolumeAttachments of this test's nodes."""
        return [one for one in self.api.items(ATTACHMENTS) if one["spec"]["nodeName"] in self.nodes]

    def attached(self) -> set[tuple[str, str]]:
        """Return (volume, node) of each attached VolumeAttachment."""
        return {
            (one["spec"]["source"]["persistentVolumeName"], one["spec"]["nodeName"])
            for one in self.attachments()
            if one["status"]["attached"]
        }

    def published(self) -> set[tuple[str, str]]:
        """Return (volume handle, node id) for this test's nodes, as the drivers have recorded
        them."""
        ids = {f"id-{name}" for name in self.nodes}
        return {
            (unquote(path.stem), node)
            for driver in self.drivers
            for path in (driver.root / "published").glob("*.json")
            for node in json.loads(path.read_text())
            if node in ids
        }

    def finalizers(self, volume: str) -> list[str]:
        """Return the finalizers of a PV that the attacher set."""
        found = self.api.get(f"{VOLUMES}/{volume}")["metadata"].get("finalizers") or ()
        return [one for one in found if one.startswith("external-attacher/")]

    def wait_attached(self, wanted: set[tuple[str, str]], seconds: float = 90) -> None:
        """Wait until exactly these pairs are attached, and the drivers' records agree."""

        def is_so() -> bool:
            found = self.attached()
            missing, more = wanted - found, found - wanted
            assert found == wanted, f"missing {sorted(missing)[:4]}, too many {sorted(more)[:4]}"
            return True

        wait_until(is_so, seconds, f"{len(wanted)} attached", interval_seconds=0.3)
        assert len(self.published()) == len(wanted)

    def wait_noticed(self, count: int) -> None:
        """Wait until the cluster's own controller has seen that its attachments are attached.

        After an error, that controller looks again only after its own back-off, and does not detach
        before.
        """

        def is_noticed() -> bool:
            nodes = [self.api.get(f"{NODES}/{node}") for node in self.nodes]
            lists = [one.get("status", {}).get("volumesAttached") or () for one in nodes]
            return sum(map(len, lists)) == count

        wait_until(is_noticed, 150, "nodes list their volumes", interval_seconds=0.5)

    def wait_detached(self, seconds: float = 90) -> None:
        """Wait until no attachment and no publication is left."""
        wait_until(lambda: not self.attachments(), seconds, "detached", interval_seconds=0.3)
        assert self.published() == set()

    # Removing.

    def clean_up(self) -> None:
        """Remove all objects, even if no controller is left to remove the finalizers."""
        self._each(self.delete_pod, list(self.pods))
        with suppress(TimeoutError):
            wait_until(lambda: not self.attachments(), 20, "detached", interval_seconds=0.3)
        paths = [f"{ATTACHMENTS}/{one['metadata']['name']}" for one in self.attachments()]
        for volume in self.volumes:
            claims = f"/api/v1/namespaces/{self.name}/persistentvolumeclaims"
            paths += [f"{claims}/{volume}", f"{VOLUMES}/{volume}"]
        for node in self.nodes:
            paths += [f"{NODES}/{node}", f"{CSI_NODES}/{node}"]
        self._each(self._remove, paths)
        self.api.delete(f"/api/v1/namespaces/{self.name}")

    def _remove(self, path: str) -> None:
        with suppress(KubeApiError):
            self.api.delete(path)
            self.api.patch(path, {"metadata": {"finalizers": None}})

    @staticmethod
    def _each(act: Any, items: Sequence[Any]) -> None:
        """Call the function for each item, in several threads that each have their own client."""
        with ThreadPoolExecutor(CLIENTS) as pool:
            for future in [pool.submit(act, item) for item in items]:
                future.result()

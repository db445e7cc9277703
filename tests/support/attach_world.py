"""The defaults of the attacher's cases (section 11): a driver, a node, a volume and an
attachment, all in memory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from tests.support.fake_context import DRIVER, PLUGIN, FakeWorld
from workers.controllers.attacher import names
from workers.controllers.attacher.controller import CONTROLLER
from workers.controllers.attacher.spec import AttacherSettings
from workers.kube import paths
from workers.queue.keys import Key

FIN = "external-attacher/csi-test"
PUBLISHES = frozenset({"PUBLISH_UNPUBLISH_VOLUME", "PUBLISH_READONLY"})
LISTS = PUBLISHES | {"LIST_VOLUMES", "LIST_VOLUMES_PUBLISHED_NODES"}
NOW = "2026-01-01T00:00:00Z"

JsonObject = dict[str, Any]


class AttachWorld(FakeWorld):
    """A world with node1 (id nodeID1) and the objects that a test adds."""

    def __init__(
        self,
        *,
        capabilities: Iterable[str] = PUBLISHES,
        plugin: Iterable[str] = PLUGIN,
        driver: str = DRIVER,
        has_node: bool = True,
        **settings: Any,
    ) -> None:
        super().__init__(
            driver_name=driver,
            plugin=plugin,
            capabilities=capabilities,
            settings={"attacher": replace(AttacherSettings(), **settings)},
        )
        if has_node:
            self.add_node()

    # The cluster.

    def add_node(self, name: str = "node1", node_id: str = "nodeID1", driver: str = "") -> None:
        """Add a CSINode with one driver."""
        entry = {"name": driver or self.driver.name, "nodeID": node_id, "topologyKeys": None}
        self.api.add(paths.CSI_NODES, {"metadata": {"name": name}, "spec": {"drivers": [entry]}})

    def add_volume(
        self,
        name: str = "pv1",
        *,
        finalizers: Sequence[str] | None = (FIN,),
        modes: Sequence[str] = ("ReadWriteMany",),
        csi: Mapping[str, Any] | None = None,
        **spec: Any,
    ) -> JsonObject:
        """Add an RWX PV with the handle `handle1` and csi-fleet's finalizer."""
        metadata: JsonObject = {"name": name}
        if finalizers is not None:
            metadata["finalizers"] = list(finalizers)
        source = {"driver": self.driver.name, "volumeHandle": "handle1", **(csi or {})}
        body = {"accessModes": list(modes), "csi": source, **spec}
        return self.api.add(paths.VOLUMES, {"metadata": metadata, "spec": body})

    def add_attachment(
        self,
        name: str = "pv1-node1",
        *,
        node: str = "node1",
        source: Mapping[str, Any] | None = None,
        attached: bool = False,
        is_marked: bool = False,
        finalizers: Sequence[str] = (),
        node_id: str | None = None,
        attacher: str = "",
        is_deleting: bool = False,
        **status: Any,
    ) -> Key:
        """Add a VolumeAttachment and return its key; `is_marked` sets its finalizer and node id."""
        if is_marked:
            finalizers, node_id = [*finalizers, FIN], node_id or "nodeID1"
        metadata: JsonObject = {"name": name, "creationTimestamp": NOW}
        if finalizers:
            metadata["finalizers"] = list(finalizers)
        if node_id is not None:
            metadata["annotations"] = {names.NODE_ID: node_id}
        if is_deleting:
            metadata["deletionTimestamp"] = NOW
        volume = {"persistentVolumeName": "pv1"} if source is None else source
        spec = {"attacher": attacher or self.driver.name, "nodeName": node, "source": volume}
        made = self.api.add(
            paths.ATTACHMENTS,
            {"metadata": metadata, "spec": spec, "status": {"attached": attached, **status}},
        )
        if name := volume.get("persistentVolumeName", ""):
            known = self.catalog.attachments.setdefault(name, {})
            known[made["metadata"]["name"]] = node
        name, uid = made["metadata"]["name"], made["metadata"]["uid"]
        kind = names.DETACHMENTS if is_deleting else names.ATTACHMENTS
        return names.attachment_key(self.driver.name, node, name, uid, kind)

    def add_secret(self, name: str, data: Mapping[str, str], namespace: str = "default") -> None:
        """Add a Secret; its values are in base64."""
        body = {"metadata": {"name": name, "namespace": namespace}, "data": dict(data)}
        self.api.add(paths.SECRETS, body)

    # Reconciling, and reading the result.

    def run(self, key: Key) -> Any:
        """Reconcile once; if the attachment turns out to be deleted, reconcile again to detach
        it."""
        outcome = self.sync(CONTROLLER, key)
        detach = replace(key, kind=names.DETACHMENTS)
        if (detach.text, 0.0) in self.queue.added:
            self.queue.added.remove((detach.text, 0.0))
            outcome = self.sync(CONTROLLER, detach)
        return outcome

    def force(self, key: Key) -> Any:
        """Reconcile once, as a forced attach or detach."""
        return self.run(Key(names.FORCED, key.driver, key.object, key.uid))

    def release(self, name: str = "pv1") -> Any:
        """Reconcile a PV's finalizer once."""
        return self.run(names.finalizer_key(self.driver.name, name))

    def compare(self) -> Any:
        """Run the comparison with ListVolumes once."""
        return self.run(names.reconcile_key(self.driver.name))

    def attachment(self, name: str = "pv1-node1") -> JsonObject:
        """Return the attachment as it is now."""
        found = self.api.of(paths.ATTACHMENTS, name)
        assert found is not None, f"{name} is gone"
        return found

    def is_gone(self, name: str = "pv1-node1") -> bool:
        """Return True if the attachment was removed."""
        return self.api.of(paths.ATTACHMENTS, name) is None

    def status(self, name: str = "pv1-node1") -> JsonObject:
        """Return the attachment's status."""
        found: JsonObject = self.attachment(name)["status"]
        return found

    def message(self, field: str = "attachError") -> str:
        """Return the text of the attachment's error; "" without an error."""
        return str((self.status().get(field) or {}).get("message", ""))

    def finalizers(self, name: str = "pv1-node1") -> list[str]:
        """Return the attachment's finalizers."""
        return list(self.attachment(name)["metadata"].get("finalizers") or ())

    def node_id(self, name: str = "pv1-node1") -> str | None:
        """Return the value of the annotation."""
        found = self.attachment(name)["metadata"].get("annotations") or {}
        return found.get(names.NODE_ID)

    def volume_finalizers(self, name: str = "pv1") -> list[str]:
        """Return the PV's finalizers."""
        found = self.api.of(paths.VOLUMES, name)
        assert found is not None
        return list(found["metadata"].get("finalizers") or ())

    @property
    def calls(self) -> list[tuple[str, str, str]]:
        """Return the publish and unpublish calls as (word, volume id, node id)."""
        words = {"ControllerPublishVolume": "publish", "ControllerUnpublishVolume": "unpublish"}
        return [
            (words[method], request.volume_id, request.node_id)
            for method, request in self.client.calls
            if method in words
        ]

    @property
    def written(self) -> list[str]:
        """Return the paths of the writes, in order."""
        return [request.path for request in self.api.writes]

"""One operation of each kind that a driver can perform, on a real API server, all at the same time.

`Life` prepares volumes; `begin` then starts each operation once. Tests use this for a matrix of
modes, pauses or signals by controller.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tests.support.attach_cluster import ATTACHMENTS, AttachCluster
from tests.support.csi_driver import DirectoryDriver
from tests.support.fleet import Scene
from tests.support.kube_api import JsonObject
from tests.support.waiting import wait_until

CONTROLLERS = (
    "provisioner,attacher,resizer,snapshotter,snapshot-controller,data-source-validator,health"
)
CAPABILITIES = (
    "CONTROLLER_SERVICE,CREATE_DELETE_VOLUME,PUBLISH_UNPUBLISH_VOLUME,EXPAND_VOLUME,MODIFY_VOLUME,"
    "CREATE_DELETE_SNAPSHOT,LIST_SNAPSHOTS,LIST_VOLUME_HEALTH,GET_VOLUME_HEALTH"
)
# The volume that recovers is found by a poll.
FLAGS = ("--list-volumes-interval=1s",)
_SLOW = {"status": "DEGRADED", "reason": "SlowDisk", "message": "disk 3 is slow"}
_SNAPSHOT = "snapshot.storage.k8s.io/v1"
_SNAPSHOTS = f"/apis/{_SNAPSHOT}"
_CLASS_SECRETS = ("provisioner", "controller-publish", "controller-expand", "controller-modify")
_SNAPSHOT_SECRETS = ("snapshotter", "snapshotter-list")
_ATTRIBUTES = "/apis/storage.k8s.io/v1/volumeattributesclasses"


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation of a driver.

    Attributes:
        method: the name of the call.
        begin: creates the object, or makes the change, that causes the call.
        is_done: returns True if the API server shows the result.
        explained: the kind and the name to pass to `explain` while the operation waits; None if
            nobody waits for it.
    """

    method: str
    begin: Callable[[], object]
    is_done: Callable[[], object]
    explained: tuple[str, str] | None


class Life:
    """The objects of one driver; with `secret`, its classes name that Secret for every call.

    With `recovers=False`, no volume becomes unhealthy and recovers. Other programs than those that
    were running during `prepare` could not find that out: without the feature gate for
    healthStatus, only the Redis of the first ones has the volume's condition.
    """

    def __init__(
        self, scene: Scene, driver: DirectoryDriver, secret: str = "", *, recovers: bool = True
    ) -> None:
        self.recovers = recovers
        self.scene, self.driver, self.api = scene, driver, scene.api
        self.cluster = AttachCluster(scene.api, [driver])
        self.name = self.cluster.name
        self.storage_class = scene.storage_class(
            driver.name,
            self.name,
            allowVolumeExpansion=True,
            parameters=self._secrets(secret, *_CLASS_SECRETS),
        )
        body = {
            "driver": driver.name,
            "deletionPolicy": "Delete",
            "parameters": self._secrets(secret, *_SNAPSHOT_SECRETS),
        }
        self._snapshot_object("VolumeSnapshotClass", {"name": self.name}, **body)
        (self.node,) = self.cluster.add_nodes(1)
        self.before: dict[str, int] = {}

    def prepare(self) -> None:
        """Create the volumes to work on, one attachment and one snapshot; wait until they are
        ready."""
        names = ("grows", "changes", "is-cut", "goes", "free", "used", "ill")
        self.scene.wait_bound(*[self._claim(one) for one in names])
        self.going, self.free, self.used = (
            self._claimed(one)["spec"]["volumeName"] for one in ("goes", "free", "used")
        )
        self._attach(self.used)
        self._cut("old")
        if self.recovers:
            self._report(_SLOW)
            wait_until(lambda: self._is_ill() or self._told("Abnormal"), 60, "the volume is ill")
        wait_until(lambda: self._is_ready("old"), 60, "the first snapshot is ready")
        wait_until(lambda: self._is_attached(self.used), 60, "the first volume is attached")
        self.content = self._status("old")["boundVolumeSnapshotContentName"]
        self.before = {one: self._count(one) for one in self.operations()}

    def operations(self) -> dict[str, Operation]:
        """Return all operations, by the word that the drivers file uses."""
        space = self.scene.namespace
        found = {
            "create": Operation(
                "CreateVolume",
                lambda: self._claim("comes"),
                lambda: self._claimed("comes")["status"]["phase"] == "Bound",
                ("pvc", f"{space}/{self.name}-comes"),
            ),
            "delete": Operation(
                "DeleteVolume",
                lambda: self.scene.delete(f"{self.name}-goes"),
                lambda: self.scene.volume(self.going) is None,
                ("pv", self.going),
            ),
            "attach": Operation(
                "ControllerPublishVolume",
                lambda: self._attach(self.free),
                lambda: self._is_attached(self.free),
                ("va", f"{self.free}-va"),
            ),
            "detach": Operation(
                "ControllerUnpublishVolume",
                lambda: self.api.delete(f"{ATTACHMENTS}/{self.used}-va"),
                lambda: self.api.find(f"{ATTACHMENTS}/{self.used}-va") is None,
                ("va", f"{self.used}-va"),
            ),
            "expand": Operation(
                "ControllerExpandVolume",
                lambda: self._edit("grows", resources={"requests": {"storage": "3Gi"}}),
                lambda: self._claimed("grows")["status"]["capacity"]["storage"] == "3Gi",
                ("pvc", f"{space}/{self.name}-grows"),
            ),
            "modify": Operation(
                "ControllerModifyVolume",
                self._change_class,
                lambda: self._claimed("changes")["status"].get("currentVolumeAttributesClassName"),
                ("pvc", f"{space}/{self.name}-changes"),
            ),
            "snapshot": Operation(
                "CreateSnapshot",
                lambda: self._cut("new"),
                lambda: self._is_ready("new"),
                ("snapshot", f"{space}/{self.name}-new"),
            ),
            "delete-snapshot": Operation(
                "DeleteSnapshot",
                lambda: self.api.delete(self._snapshot_path("old")),
                lambda: (
                    self.api.find(f"{_SNAPSHOTS}/volumesnapshotcontents/{self.content}") is None
                ),
                ("content", self.content),
            ),
            "get-volume-health": Operation(
                "ControllerGetVolumeHealth",
                self._report,
                # Without the feature gate, only events show the health.
                lambda: self._told("Normal") or not (self._told("Abnormal") or self._is_ill()),
                None,
            ),
        }
        if not self.recovers:
            del found["get-volume-health"]
        return found

    def answer_all(self, *rules: Mapping[str, Any]) -> None:
        """Set rules of the driver for each of these calls; they replace earlier rules."""
        methods = sorted({one.method for one in self.operations().values()})
        self.driver.set_rules(*({"method": name, **rule} for name in methods for rule in rules))

    def begin(self) -> None:
        """Start each of the operations."""
        for one in self.operations().values():
            one.begin()

    def called(self) -> dict[str, int]:
        """Return how often each method was called since `prepare`."""
        return {one: self._count(one) - before for one, before in self.before.items()}

    def undone(self) -> list[str]:
        """Return the operations whose result is not visible yet."""
        return [name for name, one in self.operations().items() if not one.is_done()]

    def clean_up(self) -> None:
        """Remove the objects while the system works; the scene removes those of the namespace."""
        self.driver.set_rules()
        (self.driver.root / "health.json").unlink(missing_ok=True)
        for one in self.cluster.attachments():
            self.api.delete(f"{ATTACHMENTS}/{one['metadata']['name']}")
        for name in ("old", "new"):
            self.api.delete(self._snapshot_path(name))
        self.cluster.clean_up()
        self.api.delete(f"{_SNAPSHOTS}/volumesnapshotclasses/{self.name}")
        self.api.delete(f"{_ATTRIBUTES}/{self.name}")

    def _secrets(self, secret: str, *uses: str) -> dict[str, str]:
        found = {}
        for use in uses if secret else ():
            found[f"csi.storage.k8s.io/{use}-secret-name"] = secret
            found[f"csi.storage.k8s.io/{use}-secret-namespace"] = self.scene.namespace
        return found

    def _count(self, operation: str) -> int:
        return len(self.driver.calls(self.operations()[operation].method))

    def _report(self, *conditions: Mapping[str, str]) -> None:
        """Set the health that the driver reports for the unhealthy volume from now on."""
        volume = self.scene.volume(self._claimed("ill")["spec"]["volumeName"])
        assert volume is not None
        draft = self.driver.root / "health.draft"
        draft.write_text(json.dumps({volume["spec"]["csi"]["volumeHandle"]: list(conditions)}))
        draft.replace(self.driver.root / "health.json")

    def _is_ill(self) -> bool:
        return "healthStatus" in self._claimed("ill")["status"]

    def _told(self, condition: str) -> bool:
        return f"VolumeCondition{condition}" in self.scene.reasons(f"{self.name}-ill")

    def _claim(self, name: str) -> str:
        self.scene.claim(f"{self.name}-{name}", self.storage_class)
        return f"{self.name}-{name}"

    def _claimed(self, name: str) -> JsonObject:
        found = self.scene.get(f"{self.name}-{name}")
        assert found is not None, name
        return found

    def _edit(self, name: str, **spec: object) -> None:
        self.api.patch(f"{self.scene.claims_path}/{self.name}-{name}", {"spec": spec})

    def _change_class(self) -> None:
        kind = {"apiVersion": "storage.k8s.io/v1", "kind": "VolumeAttributesClass"}
        body = {"driverName": self.driver.name, "parameters": {"speed": "fast"}}
        self.api.create({**kind, "metadata": {"name": self.name}, **body})
        self._edit("changes", volumeAttributesClassName=self.name)

    def _attach(self, volume: str) -> None:
        self.cluster.attach(f"{volume}-va", self.driver.name, volume, self.node)

    def _is_attached(self, volume: str) -> bool:
        return (volume, self.node) in self.cluster.attached()

    def _cut(self, name: str) -> None:
        metadata = {"name": f"{self.name}-{name}", "namespace": self.scene.namespace}
        source = {"persistentVolumeClaimName": f"{self.name}-is-cut"}
        spec = {"source": source, "volumeSnapshotClassName": self.name}
        self._snapshot_object("VolumeSnapshot", metadata, spec=spec)

    def _snapshot_object(self, kind: str, metadata: JsonObject, **body: object) -> None:
        self.api.create({"apiVersion": _SNAPSHOT, "kind": kind, "metadata": metadata, **body})

    def _snapshot_path(self, name: str) -> str:
        space = self.scene.namespace
        return f"{_SNAPSHOTS}/namespaces/{space}/volumesnapshots/{self.name}-{name}"

    def _status(self, name: str) -> JsonObject:
        return (self.api.find(self._snapshot_path(name)) or {}).get("status") or {}

    def _is_ready(self, name: str) -> bool:
        return bool(self._status(name).get("readyToUse"))

"""The fixture of the snapshot cases (spec section 11), for one reconcile at a time.

Driver `snap.test`, class `c1` (policy Delete), claim `ns/p` bound to the CSI volume `pv1` (handle
`h1`), snapshot `ns/s` with uid `u1` and class `c1`, content `snapcontent-u1`.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from tests.support.fake_context import FakeWorld
from workers import constants as k
from workers.config.settings import NodeSettings
from workers.controllers.snapshot_controller.controller import CONTROLLER as SNAPSHOT_CONTROLLER
from workers.controllers.snapshot_controller.keys import binding_key, snapshot_key
from workers.controllers.snapshot_controller.settings import SnapshotControllerSettings
from workers.controllers.snapshotter.controller import CONTROLLER as SNAPSHOTTER
from workers.controllers.snapshotter.rules import KIND_CONTENTS
from workers.controllers.snapshotter.settings import SnapshotterSettings
from workers.kube import paths
from workers.observability.metrics import Metrics
from workers.queue.keys import Key

DRIVER = "snap.test"
CONTENT = "snapcontent-u1"
CONTENT_KEY = Key(KIND_CONTENTS, DRIVER, CONTENT)
SNAPSHOT_KEY = snapshot_key("ns", "s")
BINDING_KEY = binding_key(CONTENT)
CUT = {"snapshot": {"snapshot_id": "sh", "size_bytes": 1024, "ready_to_use": True}}
UPLOADING = {"snapshot": {"snapshot_id": "sh", "size_bytes": 1024, "ready_to_use": False}}
ANN_CREATED, ANN_DELETED = k.ANN_BEING_CREATED, k.ANN_BEING_DELETED

JsonObject = dict[str, Any]


def content_body(**changes: Any) -> JsonObject:
    """Return a dynamic content as the controller creates it; `spec` and `metadata` members may
    be given."""
    spec = {
        "driver": DRIVER,
        "deletionPolicy": "Delete",
        "source": {"volumeHandle": "h1"},
        "volumeSnapshotRef": {
            "kind": "VolumeSnapshot",
            "namespace": "ns",
            "name": "s",
            "uid": "u1",
        },
        "volumeSnapshotClassName": "c1",
    }
    spec |= changes.pop("spec", {})
    metadata = {"name": CONTENT, "uid": "c-uid", "finalizers": [k.FINALIZER_CONTENT]}
    metadata |= changes.pop("metadata", {})
    gone = [name for name, value in spec.items() if value is None]
    for name in gone:
        del spec[name]
    return {"metadata": metadata, "spec": spec, **changes}


def given_body(**changes: Any) -> JsonObject:
    """Return a pre-provisioned content."""
    spec = {"source": {"snapshotHandle": "sx"}, **changes.pop("spec", {})}
    return content_body(spec=spec, **changes)


class SnapshotWorld(FakeWorld):
    """Both controllers with one API server and one driver."""

    def __init__(self, *capabilities: str, groups: bool = True, **settings: Any) -> None:
        names = {"CREATE_DELETE_SNAPSHOT", *capabilities}
        own = {
            "snapshotter": SnapshotterSettings(
                groups=groups,
                **{k: v for k, v in settings.items() if k in SnapshotterSettings.__slots__},
            ),
            "snapshot-controller": SnapshotControllerSettings(
                groups=groups,
                **{k: v for k, v in settings.items() if k in SnapshotControllerSettings.__slots__},
            ),
        }
        super().__init__(driver_name=DRIVER, capabilities=names, settings=own)
        self.driver.settings.kube = SimpleNamespace(namespace="fleet")
        self.driver.settings.node = NodeSettings()
        self.context.metrics = Metrics()
        self.add_class()

    # The objects.

    def add_class(self, name: str = "c1", **changes: Any) -> None:
        body = {"metadata": {"name": name}, "driver": DRIVER, "deletionPolicy": "Delete"}
        self.api.add(paths.SNAPSHOT_CLASSES, body | changes)

    def add_content(self, **changes: Any) -> JsonObject:
        return self.api.add(paths.SNAPSHOT_CONTENTS, content_body(**changes))

    def add_given(self, **changes: Any) -> JsonObject:
        return self.api.add(paths.SNAPSHOT_CONTENTS, given_body(**changes))

    def add_claim(self, name: str = "p", *, phase: str = "Bound", **metadata: Any) -> None:
        self.api.add(
            paths.CLAIMS,
            {
                "metadata": {"name": name, "namespace": "ns", "uid": f"{name}-uid", **metadata},
                "spec": {"volumeName": "pv1"},
                "status": {"phase": phase},
            },
        )

    def add_volume(self, **spec: Any) -> None:
        known = {
            "csi": {"driver": DRIVER, "volumeHandle": "h1"},
            "claimRef": {"namespace": "ns", "name": "p", "uid": "p-uid"},
            "volumeMode": "Filesystem",
        }
        self.api.add(paths.VOLUMES, {"metadata": {"name": "pv1"}, "spec": known | spec})

    def add_snapshot(self, **changes: Any) -> JsonObject:
        spec = {
            "source": {"persistentVolumeClaimName": "p"},
            "volumeSnapshotClassName": "c1",
            **changes.pop("spec", {}),
        }
        spec = {name: value for name, value in spec.items() if value is not None}
        metadata = {"name": "s", "namespace": "ns", "uid": "u1", **changes.pop("metadata", {})}
        return self.api.add(paths.SNAPSHOTS, {"metadata": metadata, "spec": spec, **changes})

    def add_source(self) -> None:
        self.add_claim()
        self.add_volume()

    def tools(self, *served: str) -> Any:
        """Return a command's connections; the drivers in `served` have a worker that creates
        their snapshots."""
        records = {name: {"name": name, "controllers": ["snapshotter"]} for name in served}
        registry = SimpleNamespace(alive=lambda: records)
        presence = SimpleNamespace(workers=lambda: ["w"])
        return SimpleNamespace(kube=self.api.kube, registry=registry, presence=presence)

    # One reconcile.

    def run_content(self, key: Key = CONTENT_KEY) -> Any:
        return self.sync(SNAPSHOTTER, key)

    def run_snapshot(self, key: Key = SNAPSHOT_KEY) -> Any:
        return self.sync(SNAPSHOT_CONTROLLER, key)

    def run_binding(self, name: str = CONTENT) -> Any:
        return self.sync(SNAPSHOT_CONTROLLER, binding_key(name))

    # The result.

    def content(self, name: str = CONTENT) -> JsonObject | None:
        return self.api.of(paths.SNAPSHOT_CONTENTS, name)

    def snapshot(self, name: str = "s") -> JsonObject | None:
        return self.api.of(paths.SNAPSHOTS, name, "ns")

    def claim(self, name: str = "p") -> JsonObject | None:
        return self.api.of(paths.CLAIMS, name, "ns")

    @property
    def reasons(self) -> list[str]:
        """Return the reasons of the events so far."""
        return [event[1] for event in self.events.seen]

    @property
    def messages(self) -> list[str]:
        """Return the messages of the events so far."""
        return [event[2] for event in self.events.seen]


def notes(item: JsonObject | None) -> JsonObject:
    """Return the annotations of an existing object."""
    assert item is not None
    found: JsonObject = item["metadata"].get("annotations") or {}
    return found


def finalizers(item: JsonObject | None) -> list[str]:
    """Return the last parts of an object's finalizers."""
    assert item is not None
    return [one.rpartition("/")[2] for one in item["metadata"].get("finalizers") or ()]


def error_of(item: JsonObject | None) -> str:
    """Return the error in an object's status."""
    assert item is not None
    message: str = ((item.get("status") or {}).get("error") or {}).get("message", "")
    return message

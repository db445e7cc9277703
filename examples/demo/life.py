"""Steps of the demo in a volume's life: expand, snapshot, restore, attach.

The demo creates the objects that a user would create, and the attachment, which the cluster's own
controller would create. No kubelet runs here: the node is only an object, and no volume is mounted.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from examples.demo import story

if TYPE_CHECKING:
    from collections.abc import Callable

    from examples.demo.stack import Driver
    from examples.demo.story import Scene
    from tests.support.kube_api import JsonObject

CRDS = Path(__file__).resolve().parents[2] / "tests" / "support" / "crds" / "snapshots.yaml"
SNAPSHOT_API = "snapshot.storage.k8s.io/v1"
ATTACHMENTS = "/apis/storage.k8s.io/v1/volumeattachments"
TIMEOUT_SECONDS = 60.0


def prepare(scene: Scene) -> None:
    """Install the snapshot API and create, per driver, a node and a VolumeSnapshotClass."""
    scene.api.apply_file(CRDS)
    scene.wait(
        lambda: scene.api.find(f"/apis/{SNAPSHOT_API}") is not None, 60, "the snapshot API serves"
    )
    drivers = [
        {"name": driver.name, "nodeID": "demo-node", "topologyKeys": None}
        for driver in scene.stack.drivers
    ]
    scene.api.apply({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "demo-node"}})
    node = {"kind": "CSINode", "metadata": {"name": "demo-node"}, "spec": {"drivers": drivers}}
    scene.api.apply({"apiVersion": "storage.k8s.io/v1", **node})
    for driver in scene.stack.drivers:
        scene.api.apply(
            {
                "apiVersion": SNAPSHOT_API,
                "kind": "VolumeSnapshotClass",
                "metadata": {"name": story.class_name(driver)},
                "driver": driver.name,
                "deletionPolicy": "Delete",
            }
        )


def show_growth(scene: Scene) -> None:
    """Expand a claim.

    Raises:
        DemoFailedError: the claim did not grow in time.
    """
    claim = scene.api.items(scene.claims_path)[-1]
    name = claim["metadata"]["name"]
    before = claim["status"]["capacity"]["storage"]
    scene.screen.say(f"growing claim {name}: {before} to 10Gi")
    path = f"{scene.claims_path}/{name}"
    scene.api.patch(path, {"spec": {"resources": {"requests": {"storage": "10Gi"}}}})

    def is_larger() -> bool:
        return bool(scene.api.get(path)["status"]["capacity"]["storage"] == "10Gi")

    scene.wait(is_larger, TIMEOUT_SECONDS, f"claim {name} has 10Gi")
    scene.screen.say(f"claim {name} has 10Gi")


def show_snapshot(scene: Scene) -> None:
    """Take a snapshot of a claim and restore a new claim from it.

    Raises:
        DemoFailedError: a step was not finished in time.
    """
    driver = scene.stack.drivers[0]
    source = _claim_of(scene, driver)
    name = source["metadata"]["name"]
    snapshots = f"/apis/{SNAPSHOT_API}/namespaces/{scene.stack.namespace}/volumesnapshots"
    scene.screen.say(f"taking a snapshot of claim {name}")
    scene.api.create(
        {
            "apiVersion": SNAPSHOT_API,
            "kind": "VolumeSnapshot",
            "metadata": {"name": "snapshot", "namespace": scene.stack.namespace},
            "spec": {
                "volumeSnapshotClassName": story.class_name(driver),
                "source": {"persistentVolumeClaimName": name},
            },
        }
    )
    _wait_for(
        scene,
        f"{snapshots}/snapshot",
        lambda found: found.get("status", {}).get("readyToUse") is True,
        "the snapshot is ready",
    )
    scene.screen.say("snapshot is ready; restoring it as claim restored")
    restored = story.claim(scene, driver, "restored", source["spec"]["resources"])
    restored["spec"]["dataSource"] = {
        "apiGroup": SNAPSHOT_API.partition("/")[0],
        "kind": "VolumeSnapshot",
        "name": "snapshot",
    }
    scene.api.create(restored)
    _wait_for(
        scene,
        f"{scene.claims_path}/restored",
        lambda found: found["status"].get("phase") == "Bound",
        "claim restored is Bound",
    )
    scene.screen.say("claim restored is Bound")


def show_attachment(scene: Scene) -> None:
    """Attach a volume to a node and detach it again.

    Raises:
        DemoFailedError: a step was not finished in time.
    """
    driver = scene.stack.drivers[0]
    volume = _claim_of(scene, driver)["spec"]["volumeName"]
    name = f"demo-{volume}"
    scene.screen.say(f"attaching {volume} to node demo-node")
    scene.api.create(
        {
            "apiVersion": "storage.k8s.io/v1",
            "kind": "VolumeAttachment",
            "metadata": {"name": name},
            "spec": {
                "attacher": driver.name,
                "nodeName": "demo-node",
                "source": {"persistentVolumeName": volume},
            },
        }
    )
    path = f"{ATTACHMENTS}/{name}"
    _wait_for(
        scene, path, lambda found: found.get("status", {}).get("attached") is True, "attached"
    )
    scene.screen.say(f"{volume} is attached; detaching it")
    scene.api.delete(path)
    scene.wait(lambda: scene.api.find(path) is None, TIMEOUT_SECONDS, f"{volume} is detached")
    scene.screen.say(f"{volume} is detached")


def _claim_of(scene: Scene, driver: Driver) -> JsonObject:
    return next(
        claim
        for claim in scene.api.items(scene.claims_path)
        if claim["spec"]["storageClassName"] == story.class_name(driver)
    )


def _wait_for(scene: Scene, path: str, condition: Callable[[JsonObject], bool], what: str) -> None:
    scene.wait(lambda: condition(scene.api.get(path)), TIMEOUT_SECONDS, what)

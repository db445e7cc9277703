"""What happens in the demo? Claims of both drivers become Bound, one is deleted with its volume.

Speaks to the cluster by the raw API, as any user would; csi-fleet does the rest.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from examples.demo.screen import Row, Screen

if TYPE_CHECKING:
    from collections.abc import Callable

    from examples.demo.stack import Driver, Stack
    from tests.support.kube_api import JsonObject, KubeApi

CLAIMS_PER_DRIVER = 4
# The controller that binds looks again at a claim after at most 15 s.
BOUND_TIMEOUT_SECONDS = 90.0
GONE_TIMEOUT_SECONDS = 60.0
POLL_SECONDS = 0.2


class DemoFailedError(RuntimeError):
    """The demo did not show what it promises; the text says what was missing."""


@dataclass(frozen=True, slots=True)
class Scene:
    """The demo's place in the cluster."""

    api: KubeApi
    stack: Stack
    screen: Screen
    bound_after: dict[str, float] = field(default_factory=dict)  # claim -> seconds

    @property
    def claims_path(self) -> str:
        """The collection of the demo's claims."""
        return f"/api/v1/namespaces/{self.stack.namespace}/persistentvolumeclaims"

    def wait(self, condition: Callable[[], bool], timeout_seconds: float, what: str) -> None:
        """Show the claims until it is so.

        Raises:
            DemoFailedError: not in time, or a part of the stack has ended.
        """
        deadline = time.monotonic() + timeout_seconds
        while not condition():
            self.screen.show(rows_of(self, self.api.items(self.claims_path)))
            if ended := self.stack.ended_parts():
                raise DemoFailedError(f"{ended[0].name} ended:\n{ended[0].log_tail()}")
            if time.monotonic() > deadline:
                raise DemoFailedError(f"not within {timeout_seconds:.0f} s: {what}")
            time.sleep(POLL_SECONDS)


def prepare(scene: Scene) -> None:
    """Create the namespace and one storage class per driver."""
    scene.api.apply(
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": scene.stack.namespace}}
    )
    for driver in scene.stack.drivers:
        scene.api.apply(
            {
                "apiVersion": "storage.k8s.io/v1",
                "kind": "StorageClass",
                "metadata": {"name": class_name(driver)},
                "provisioner": driver.name,
                "reclaimPolicy": "Delete",
                "volumeBindingMode": "Immediate",
                "allowVolumeExpansion": True,
            }
        )


def create_claims(scene: Scene) -> None:
    """A few claims for each driver, all at once."""
    for driver in scene.stack.drivers:
        for number in range(1, CLAIMS_PER_DRIVER + 1):
            name = f"{driver.name.partition('-')[0]}-{number}"
            resources = {"requests": {"storage": f"{number}Gi"}}
            scene.api.create(claim(scene, driver, name, resources))


def claim(scene: Scene, driver: Driver, name: str, resources: JsonObject) -> JsonObject:
    """A claim in the class of a driver."""
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": name, "namespace": scene.stack.namespace},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": class_name(driver),
            "resources": resources,
        },
    }


def show_binding(scene: Scene) -> None:
    """Show the claims until all are Bound.

    Raises:
        DemoFailedError: some are not in time, or a part of the stack has ended.
    """
    started = time.monotonic()

    def all_bound() -> bool:
        claims = scene.api.items(scene.claims_path)
        for claim in claims:
            if claim["status"].get("phase") == "Bound":
                scene.bound_after.setdefault(claim["metadata"]["name"], time.monotonic() - started)
        scene.screen.show(rows_of(scene, claims))
        return len(scene.bound_after) == CLAIMS_PER_DRIVER * len(scene.stack.drivers)

    scene.wait(all_bound, BOUND_TIMEOUT_SECONDS, "all claims are Bound")


def show_deletion(scene: Scene) -> None:
    """Delete one claim and wait until its PV and the driver's volume are gone.

    Raises:
        DemoFailedError: the volume stayed, or there was none to begin with.
    """
    driver = scene.stack.drivers[0]
    claim = scene.api.items(scene.claims_path)[0]
    name, volume = claim["metadata"]["name"], claim["spec"]["volumeName"]
    handle = scene.api.get(f"/api/v1/persistentvolumes/{volume}")["spec"]["csi"]["volumeHandle"]
    before = driver.volume_names()
    if handle not in before:
        raise DemoFailedError(f"{volume} is Bound, but {driver.name} has no volume {handle}")
    scene.screen.say(f"deleting claim {name}: {len(before)} volumes at {driver.name}")
    scene.api.delete(f"{scene.claims_path}/{name}")

    def is_gone() -> bool:
        scene.screen.show(rows_of(scene, scene.api.items(scene.claims_path)))
        volume_object = scene.api.find(f"/api/v1/persistentvolumes/{volume}")
        return volume_object is None and handle not in driver.volume_names()

    scene.wait(is_gone, GONE_TIMEOUT_SECONDS, f"volume {volume} is gone at the driver")
    left = len(driver.volume_names())
    scene.screen.say(f"PV {volume} is gone, {left} volumes left at {driver.name}")


def keep_showing(scene: Scene) -> None:
    """Show the namespace's claims until Ctrl-C: the user may create and delete some."""
    while True:
        scene.screen.show(rows_of(scene, scene.api.items(scene.claims_path)))
        if ended := scene.stack.ended_parts():
            raise DemoFailedError(f"{ended[0].name} ended:\n{ended[0].log_tail()}")
        time.sleep(1.0)


def clean_up(scene: Scene) -> None:
    """Remove what the demo made in the cluster, volumes first. For clusters that live on."""
    for claim in scene.api.items(scene.claims_path):
        scene.api.delete(f"{scene.claims_path}/{claim['metadata']['name']}")
    names = {driver.name for driver in scene.stack.drivers}

    def all_gone() -> bool:
        volumes = scene.api.items("/api/v1/persistentvolumes")
        return not any(one["spec"].get("csi", {}).get("driver") in names for one in volumes)

    scene.wait(all_gone, GONE_TIMEOUT_SECONDS, "the demo's volumes are gone")
    for driver in scene.stack.drivers:
        scene.api.delete(f"/apis/storage.k8s.io/v1/storageclasses/{class_name(driver)}")
    scene.api.delete(f"/api/v1/namespaces/{scene.stack.namespace}")


def rows_of(scene: Scene, claims: list[JsonObject]) -> list[Row]:
    """Table rows of claims, with the newest event of each."""
    drivers = {class_name(driver): driver.name for driver in scene.stack.drivers}
    found = scene.api.items(f"/api/v1/namespaces/{scene.stack.namespace}/events")
    events: dict[str, str] = {}
    for event in sorted(found, key=lambda one: int(one["metadata"]["resourceVersion"])):
        events[event["involvedObject"]["name"]] = event["reason"]
    rows = []
    for claim in claims:
        metadata, spec = claim["metadata"], claim["spec"]
        is_deleting = "deletionTimestamp" in metadata
        rows.append(
            Row(
                claim=metadata["name"],
                driver=drivers.get(spec.get("storageClassName", ""), ""),
                phase="Terminating" if is_deleting else claim["status"].get("phase", "Pending"),
                volume=spec.get("volumeName", ""),
                last_event=events.get(metadata["name"], ""),
                seconds=scene.bound_after.get(metadata["name"]),
            )
        )
    return rows


def class_name(driver: Driver) -> str:
    """The storage class of a driver, and its class of snapshots."""
    return driver.name.partition(".")[0]

"""The steps of the demo: claims of both drivers become Bound, one is deleted with its volume.

The demo only creates and deletes objects by the API, as a user would; csi-fleet does the rest.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from examples.demo.screen import Row, Screen

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from examples.demo.stack import Driver, Stack
    from tests.support.kube_api import JsonObject, KubeApi

CLAIMS_PER_DRIVER = 4
# Kubernetes' binding controller checks a claim again after at most 15 s.
BOUND_TIMEOUT_SECONDS = 90.0
GONE_TIMEOUT_SECONDS = 60.0
POLL_SECONDS = 0.2
# Duration of a driver's call: long enough to kill its worker during it, even on a busy machine.
SLOW_SECONDS = 8.0
# The claim that fails on purpose, and the missing Secret that it needs.
BROKEN, SECRET = "broken", "storage-login"
_MEANWHILE = {
    "worker": "the other worker takes its claims over once its lease runs out, within 4 s",
    "watcher": "what changes meanwhile is found by the list with which a watcher begins",
    "redis": "all it held is lost, and comes back from the API server",
    "alpha": "its claims wait, no attempt is counted as failed",
    "beta": "its claims wait, no attempt is counted as failed",
    "beat": "it is a fall-back clock, nothing waits for it",
    "flower": "it only shows what happens",
}


class DemoFailedError(RuntimeError):
    """A step of the demo failed; the text says what was missing."""


@dataclass(frozen=True, slots=True)
class Scene:
    """The demo's place in the cluster."""

    api: KubeApi
    stack: Stack
    screen: Screen
    bound_after: dict[str, float] = field(default_factory=dict)  # claim -> seconds

    @property
    def claims_path(self) -> str:
        """API path of the demo's claims."""
        return f"/api/v1/namespaces/{self.stack.namespace}/persistentvolumeclaims"

    def wait(self, condition: Callable[[], bool], timeout_seconds: float, what: str) -> None:
        """Show the claims until the condition is True.

        Raises:
            DemoFailedError: the condition was not met in time, or a part of the stack has ended.
        """
        deadline = time.monotonic() + timeout_seconds
        while not condition():
            self.screen.show(rows_of(self, self.api.items(self.claims_path)))
            self.mend()
            if time.monotonic() > deadline:
                raise DemoFailedError(f"not within {timeout_seconds:.0f} s: {what}")
            time.sleep(POLL_SECONDS)

    def wait_bound(self, names: Collection[str], started: float, what: str) -> None:
        """Show the claims until these are Bound; note how long after `started` each was.

        Raises:
            DemoFailedError: a claim was not Bound in time, or a part of the stack has ended.
        """

        def all_bound() -> bool:
            claims = self.api.items(self.claims_path)
            for one in claims:
                name = one["metadata"]["name"]
                if name in names and one["status"].get("phase") == "Bound":
                    self.bound_after.setdefault(name, time.monotonic() - started)
            self.screen.show(rows_of(self, claims))
            return self.bound_after.keys() >= set(names)

        self.wait(all_bound, BOUND_TIMEOUT_SECONDS, what)

    def mend(self) -> None:
        """Restart killed parts, and print which part does their work until then.

        Raises:
            PartEndedError: a part ends again and again.
        """
        for name in self.stack.revive():
            self.screen.say(f"{name} was killed: {_MEANWHILE[name.partition('-')[0]]}")
            self.screen.say(f"{name} is started again")


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
    """Create a few claims for each driver, all at once."""
    for driver in scene.stack.drivers:
        for number in range(1, CLAIMS_PER_DRIVER + 1):
            name = f"{driver.name.partition('-')[0]}-{number}"
            resources = {"requests": {"storage": f"{number}Gi"}}
            scene.api.create(claim(scene, driver, name, resources))


def claim(scene: Scene, driver: Driver, name: str, resources: JsonObject) -> JsonObject:
    """Return a claim in the class of a driver."""
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
        DemoFailedError: a claim was not Bound in time, or a part of the stack has ended.
    """
    names = [one["metadata"]["name"] for one in scene.api.items(scene.claims_path)]
    scene.wait_bound(names, time.monotonic(), "all claims are Bound")


def show_what_was_left(scene: Scene) -> None:
    """Wait until the claims of a demo that was killed are Bound, or gone if they were deleted.

    Raises:
        DemoFailedError: a claim was not Bound or gone in time.
    """

    def is_settled() -> bool:
        claims = scene.api.items(scene.claims_path)
        return all(
            one["status"].get("phase") == "Bound" and "deletionTimestamp" not in one["metadata"]
            for one in claims
            if one["metadata"]["name"] != BROKEN
        )

    scene.wait(is_settled, BOUND_TIMEOUT_SECONDS, "the claims of the killed demo are Bound")
    count = len(scene.api.items(scene.claims_path))
    scene.screen.say(f"all {count} claims are still there, and their volumes")


def show_deletion(scene: Scene) -> None:
    """Delete one claim and wait until its PV and the driver's volume are gone.

    Raises:
        DemoFailedError: the volume was not deleted, or never existed.
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


def show_takeover(scene: Scene) -> None:
    """Kill a worker while it provisions claims: another worker finishes them, without duplicates.

    Raises:
        DemoFailedError: a claim was not Bound in time, or has two volumes.
    """
    driver = scene.stack.drivers[1]
    before = driver.volume_names()
    driver.delay(SLOW_SECONDS)
    names = [f"takeover-{number}" for number in range(1, CLAIMS_PER_DRIVER + 1)]
    for name in names:
        scene.api.create(claim(scene, driver, name, {"requests": {"storage": "1Gi"}}))
    first, pid = f"{scene.stack.namespace}/{names[0]}", 0

    def is_called() -> bool:
        nonlocal pid
        # There is no output while Redis, which the user may kill, is down.
        known = json.loads(scene.stack.tool("explain", "pvc", first, "-o", "json") or "{}")
        worker = (known.get("queue") or {}).get("worker") or ""
        pid = int(worker.split(":")[1]) if worker else 0
        return bool(pid)

    scene.wait(is_called, BOUND_TIMEOUT_SECONDS, f"a worker makes the volume of {names[0]}")
    killed, started = scene.stack.kill_process(pid), time.monotonic()
    driver.delay(0)
    scene.screen.say(f"kill -9 {pid}: {killed or 'the worker'} dies while it waits for the driver")

    scene.wait_bound(names, started, "the claims of the killed worker are Bound")
    made = len(driver.volume_names() - before)
    if made != len(names):
        raise DemoFailedError(f"{len(names)} claims have {made} volumes at {driver.name}")
    scene.screen.say(
        f"all {len(names)} are Bound {max(scene.bound_after[name] for name in names):.1f} s after "
        "the kill, each with one volume. csi-fleet explain has the moment:"
    )
    for line in scene.stack.tool("explain", "pvc", first).splitlines():
        if "taken by" in line or "takes over" in line:
            scene.screen.say(f"  {line}")


def show_failure(scene: Scene) -> None:
    """Create a claim that fails on purpose, and print what `explain` says about it.

    Raises:
        DemoFailedError: `explain` did not find the cause in time.
    """
    driver = scene.stack.drivers[0]
    scene.api.apply(
        {
            "apiVersion": "storage.k8s.io/v1",
            "kind": "StorageClass",
            "metadata": {"name": broken_class(driver)},
            "provisioner": driver.name,
            "parameters": {
                "csi.storage.k8s.io/provisioner-secret-name": SECRET,
                "csi.storage.k8s.io/provisioner-secret-namespace": "${pvc.namespace}",
            },
        }
    )
    body = claim(scene, driver, BROKEN, {"requests": {"storage": "1Gi"}})
    body["spec"]["storageClassName"] = broken_class(driver)
    scene.api.create(body)
    name = f"{scene.stack.namespace}/{BROKEN}"
    scene.screen.say(f"claim {BROKEN} fails on purpose; csi-fleet explain pvc {name} says:")
    said = ""

    def is_explained() -> bool:
        nonlocal said
        said = scene.stack.tool("explain", "pvc", name)
        return "secret-missing" in said and "failure 1" in said

    scene.wait(is_explained, BOUND_TIMEOUT_SECONDS, f"explain says why claim {BROKEN} waits")
    for line in said.rstrip().splitlines():
        scene.screen.say(f"    {line}".rstrip())


def keep_showing(scene: Scene) -> None:
    """Show the namespace's claims until Ctrl-C: the user can create and delete claims."""
    while True:
        scene.screen.show(rows_of(scene, scene.api.items(scene.claims_path)))
        scene.mend()
        time.sleep(POLL_SECONDS)


def clean_up(scene: Scene) -> None:
    """Remove the demo's objects from a cluster that is kept, volumes first."""
    for claim in scene.api.items(scene.claims_path):
        scene.api.delete(f"{scene.claims_path}/{claim['metadata']['name']}")
    names = {driver.name for driver in scene.stack.drivers}

    def all_gone() -> bool:
        volumes = scene.api.items("/api/v1/persistentvolumes")
        return not any(one["spec"].get("csi", {}).get("driver") in names for one in volumes)

    scene.wait(all_gone, GONE_TIMEOUT_SECONDS, "the demo's volumes are gone")
    for driver in scene.stack.drivers:
        for name in (class_name(driver), broken_class(driver)):
            if scene.api.find(f"/apis/storage.k8s.io/v1/storageclasses/{name}"):
                scene.api.delete(f"/apis/storage.k8s.io/v1/storageclasses/{name}")
    scene.api.delete(f"/api/v1/namespaces/{scene.stack.namespace}")


def rows_of(scene: Scene, claims: list[JsonObject]) -> list[Row]:
    """Return the table rows of claims, with the newest event of each."""
    drivers = {
        name: driver.name
        for driver in scene.stack.drivers
        for name in (class_name(driver), broken_class(driver))
    }
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


def broken_class(driver: Driver) -> str:
    """Return the class of the claim that fails on purpose."""
    return f"{class_name(driver)}-login"


def class_name(driver: Driver) -> str:
    """Return the name of a driver's StorageClass and VolumeSnapshotClass."""
    return driver.name.partition(".")[0]

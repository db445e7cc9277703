"""Snapshots, restores and the deletion of their sources, as the users of one namespace request
them.

`Cuts` draws from the random numbers of a chaos run and remembers what the users want. `is_at_rest`
compares that with the API server and the storage. `half_way` finds sources that were deleted while
something was being created from them.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

from tests.support.chaos import System
from tests.support.csi_driver import DriverCall
from tests.support.fleet import Scene
from tests.support.kube_api import JsonObject

GROUP = "snapshot.storage.k8s.io"
VERSION = f"{GROUP}/v1"
ROOT = f"/apis/{VERSION}"
CONTROLLERS = "provisioner,snapshotter,snapshot-controller"
# The driver's behaviour at first; each rule applies a few times per run, after that the driver is
# only slow. INTERNAL occurs once: if a driver answers INTERNAL for a snapshot that it has, and
# again at the last call, it keeps the snapshot (docs/guarantees.md).
RULES: tuple[JsonObject, ...] = (
    {"method": "CreateSnapshot", "code": "UNAVAILABLE", "after_work": True, "times": 3},
    {"method": "CreateSnapshot", "code": "INTERNAL", "times": 1},
    {"method": "DeleteSnapshot", "code": "UNAVAILABLE", "after_work": True, "times": 2},
    {"method": "CreateVolume", "code": "UNAVAILABLE", "after_work": True, "times": 3},
    {"method": "*Snapshot", "delay_seconds": [0, 1.5]},
    {"method": "*Volume", "delay_seconds": [0, 1.5]},
)

Insist = Callable[[Callable[[], Any]], Any]


class Cuts:
    """The requests of users: snapshots of claims, claims from snapshots, and their deletion."""

    def __init__(self, system: System, scene: Scene, seed: random.Random, insist: Insist) -> None:
        self.system, self.scene, self.api, self.random = system, scene, scene.api, seed
        self.insist = insist
        self.storage_class = scene.storage_class(system.driver.name)
        self.path = f"{ROOT}/namespaces/{scene.namespace}/volumesnapshots"
        self.snapshot_class = f"{scene.name}-snap"
        self.made = 0
        # Wanted claims, each with the snapshot that it is created from.
        self.claims: dict[str, str] = {}
        self.snapshots: dict[str, str] = {}  # wanted snapshots, each with its claim
        self.class_of: dict[str, str] = {}  # claims whose class is not the usual one
        self.add_class()

    def add_class(self, **parameters: str) -> None:
        """Create the snapshot class, also again after its deletion."""
        body = {"driver": self.system.driver.name, "deletionPolicy": "Delete"}
        metadata = {"name": self.snapshot_class}
        whole = {**body, "parameters": parameters}
        self.insist(lambda: self._create("VolumeSnapshotClass", metadata, whole))

    def _create(self, kind: str, metadata: JsonObject, body: JsonObject) -> None:
        self.api.create({"apiVersion": VERSION, "kind": kind, "metadata": metadata, **body})

    def _name(self, letter: str) -> str:
        self.made += 1
        return f"{letter}{self.made:03}"

    # Requests.

    def claim(self, snapshot: str = "") -> str:
        """Create a claim, empty or from a snapshot in any state; return its name."""
        name = self._name("c")
        self.claims[name] = snapshot
        self.ask_claim(name)
        return name

    def claim_of(self, storage_class: str) -> str:
        """Create an empty claim whose class is not the usual one; return its name."""
        name = self._name("c")
        self.claims[name], self.class_of[name] = "", storage_class
        self.ask_claim(name)
        return name

    def ask_claim(self, name: str) -> None:
        """Create a wanted claim, or create it again."""
        more = JsonObject()
        if snapshot := self.claims[name]:
            source = {"apiGroup": GROUP, "kind": "VolumeSnapshot", "name": snapshot}
            more["dataSource"] = source
        storage_class = self.class_of.get(name, self.storage_class)
        self.insist(lambda: self.scene.claim(name, storage_class, **more))

    def cut(self, claim: str) -> None:
        """Create a snapshot of a claim in any state."""
        name = self._name("s")
        self.snapshots[name] = claim
        self.ask_snapshot(name)

    def ask_snapshot(self, name: str) -> None:
        """Create a wanted snapshot, or create it again."""
        source = {"persistentVolumeClaimName": self.snapshots[name]}
        spec = {"source": source, "volumeSnapshotClassName": self.snapshot_class}
        metadata = {"name": name, "namespace": self.scene.namespace}
        self.insist(lambda: self._create("VolumeSnapshot", metadata, {"spec": spec}))

    def drop_claim(self, name: str) -> None:
        """Delete a claim that is no longer wanted."""
        self.insist(lambda: self.scene.delete(name))
        del self.claims[name]

    def drop_snapshot(self, name: str) -> None:
        """Delete a snapshot that is no longer wanted."""
        self.insist(lambda: self.api.delete(f"{self.path}/{name}"))
        del self.snapshots[name]

    def one(self, names: Iterable[str]) -> str:
        """Choose one of the names; recent ones are twice as likely, because their work is in
        progress."""
        found = sorted(names)
        pick = self.random.randrange(len(found))
        return found[max(pick, self.random.randrange(len(found)))]

    # Reading the state.

    def found(self) -> dict[str, JsonObject]:
        """Return the existing snapshots."""
        return {one["metadata"]["name"]: one for one in self.api.items(self.path)}

    def contents(self) -> list[JsonObject]:
        """Return the snapshot contents of the driver."""
        items = self.api.items(f"{ROOT}/volumesnapshotcontents")
        return [one for one in items if one["spec"]["driver"] == self.system.driver.name]

    def stored(self) -> set[str]:
        """Return the snapshots in the storage."""
        found = set()
        for path in (self.system.driver.root / "snapshots").glob("[!.]*/metadata.json"):
            with suppress(FileNotFoundError):
                json.loads(path.read_text())
                found.add(path.parent.name)
        return found

    def hopeless(self) -> list[str]:
        """Return the pending claims that cannot be provisioned: their snapshot is gone, or is
        never created."""
        there = self.found()
        return [
            name
            for name, claim in self.scene.claims().items()
            if claim["status"]["phase"] == "Pending"
            and self.claims.get(name, "") not in {"", *self._coming(there)}
        ]

    def _coming(self, there: dict[str, JsonObject]) -> set[str]:
        """Return the wanted snapshots that are ready, or whose claim can still be snapshotted."""
        claims = self.scene.claims()
        return {
            name
            for name, one in there.items()
            if name in self.snapshots
            and (_is_ready(one) or _phase(claims.get(self.snapshots[name])) == "Bound")
        }

    def is_at_rest(self) -> bool:
        """Return True if exactly the wanted objects exist and are ready, storage and objects
        agree, and no finalizer is left."""
        there, claims = self.found(), self.scene.claims()
        odd = [there.get(name, name) for name in there.keys() ^ self.snapshots.keys()]
        leaving = [one for one in claims.values() if "deletionTimestamp" in one["metadata"]]
        assert not odd, f"not wanted, or not there: {odd}; claims that go: {leaving}"
        other = [claims.get(name, name) for name in claims.keys() ^ self.claims.keys()]
        assert not other, f"not wanted, or not there: {other}"
        waiting = [name for name, one in there.items() if not _is_ready(one)]
        assert not waiting, f"not ready: {waiting[:4]}"
        unbound = [name for name, one in claims.items() if _phase(one) != "Bound"]
        assert not unbound, f"not bound: {unbound[:4]}"
        handles = {one["status"]["snapshotHandle"] for one in self.contents()}
        assert len(handles) == len(there), f"{len(handles)} contents of {len(there)} snapshots"
        assert handles == self.stored(), f"{handles ^ self.stored()}"
        held = [n for n, one in (there | claims).items() if "as-source" in _restorers(one)]
        assert not held, f"held by nobody: {held}"
        return True

    def clean_up(self) -> None:
        """Remove the class."""
        self.api.delete(f"{ROOT}/volumesnapshotclasses/{self.snapshot_class}")


def half_way(calls: list[DriverCall]) -> list[str]:
    """Return the deletions of a snapshot during a restore from it, and of a volume during its
    snapshot."""
    found = []
    for made in calls:
        if made.method == "CreateVolume":
            source = made.request.get("volume_content_source") or {}
            ends, subject = "DeleteSnapshot", (source.get("snapshot") or {}).get("snapshot_id")
        else:
            ends, subject = "DeleteVolume", made.request.get("source_volume_id")
        if subject is None or made.method not in {"CreateVolume", "CreateSnapshot"}:
            continue
        found += [
            f"{made.method} {made.started_at} / {call.method} {call.started_at} of {subject}"
            for call in calls
            if call.method == ends
            and subject in {call.request.get("snapshot_id"), call.request.get("volume_id")}
            and made.ended_at is not None
            and made.started_at < call.started_at < made.ended_at
        ]
    return found


def _is_ready(snapshot: JsonObject) -> bool:
    return bool((snapshot.get("status") or {}).get("readyToUse"))


def _phase(claim: JsonObject | None) -> str:
    is_living = claim is not None and "deletionTimestamp" not in claim["metadata"]
    return str(claim["status"].get("phase")) if claim is not None and is_living else ""


def _restorers(item: JsonObject) -> str:
    """Return the finalizers that exist only while something is created from the object."""
    lasting = "snapshot.storage.kubernetes.io/volumesnapshot-as-source-protection"
    names: list[Any] = item["metadata"].get("finalizers") or []
    return " ".join(name for name in names if name != lasting)

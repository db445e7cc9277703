"""Claims that grow, shrink after a failure and change their class, with a simulated kubelet.

`Changes` draws from the random numbers of a chaos run. `assert_at_rest` compares driver, volume and
claim. `second_targets` finds calls for a size or class that were sent while an earlier call for
another one could still be running.
"""

from __future__ import annotations

import itertools
import random
from collections import defaultdict
from contextlib import suppress
from typing import Any

import requests

from tests.support.chaos import System
from tests.support.csi_driver import DriverCall
from tests.support.fleet import Scene
from tests.support.kube_api import JsonObject, KubeApiError
from tests.support.kube_objects import own_conditions

GIB = 2**30
EXPAND, MODIFY = "ControllerExpandVolume", "ControllerModifyVolume"
CLASSES = ("bronze", "silver", "gold")
CAPABILITIES = "CONTROLLER_SERVICE,CREATE_DELETE_VOLUME,CLONE_VOLUME,EXPAND_VOLUME,MODIFY_VOLUME"
DRIVER_ARGUMENTS = ("--capabilities", CAPABILITIES, "--node-expansion-required")
AWAY = (requests.RequestException, KubeApiError)
# The result of some volumes' calls, by the last characters of their id; each occurs a few times per
# run.
RULES: tuple[JsonObject, ...] = (
    {"method": EXPAND, "match": "*[01]", "code": "OUT_OF_RANGE", "times": 10},
    {"method": EXPAND, "match": "*[23]", "code": "INTERNAL", "times": 10},
    {"method": EXPAND, "match": "*[45]", "code": "UNAVAILABLE", "after_work": True, "times": 10},
    {"method": MODIFY, "match": "*[67]", "code": "INVALID_ARGUMENT", "times": 10},
    {"method": MODIFY, "match": "*[89]", "code": "UNAVAILABLE", "after_work": True, "times": 10},
)
# Results of a call that do not show what happened in the storage system.
_UNCERTAIN = {None, "UNAVAILABLE", "DEADLINE_EXCEEDED", "CANCELLED", "ABORTED"}


class Changes:
    """The changes that users and kubelet make to the claims of a scene."""

    def __init__(self, system: System, scene: Scene, seed: random.Random) -> None:
        self.system, self.scene, self.random = system, scene, seed
        for name in CLASSES:
            scene.api.create(
                {
                    "apiVersion": "storage.k8s.io/v1",
                    "kind": "VolumeAttributesClass",
                    "metadata": {"name": self.full(name)},
                    "driverName": system.driver.name,
                    "parameters": {"tier": name},
                }
            )

    def full(self, name: str) -> str:
        """Return a class's name on the shared cluster."""
        return f"{self.scene.name}-{name}"

    def step(self, count: int) -> None:
        """Let some users change their claims; if the API server is unavailable, try again later."""
        with suppress(*AWAY):
            bound = [one for one in self.scene.claims().values() if _phase(one) == "Bound"]
            for claim in self.random.sample(bound, min(count, len(bound))):
                with suppress(*AWAY):
                    self._change(claim)
            self.finish_nodes()

    def _change(self, claim: JsonObject) -> None:
        spec: JsonObject = {}
        actual = _gib(claim["status"]["capacity"]["storage"])
        wanted = _gib(claim["spec"]["resources"]["requests"]["storage"])
        allocated = claim["status"].get("allocatedResourceStatuses", {}).get("storage", "")
        if wanted > actual + 1 and allocated.startswith("Controller"):
            size = self.random.randint(actual + 1, wanted)  # back to the old value, or unchanged
        else:
            size = wanted + self.random.randint(0, 3)
        if size != wanted:
            spec["resources"] = {"requests": {"storage": f"{size}Gi"}}
        if self.random.random() < 0.5:
            spec["volumeAttributesClassName"] = self.full(self.random.choice(CLASSES))
        if spec:
            path = f"{self.scene.claims_path}/{claim['metadata']['name']}"
            self.scene.api.patch(path, {"spec": spec})

    def finish_nodes(self) -> None:
        """Finish the pending expansions, as kubelet would."""
        volumes = self.system.volumes()
        for name, claim in self.scene.claims().items():
            parts = claim["status"].get("allocatedResourceStatuses") or {}
            volume = volumes.get(claim["spec"].get("volumeName", ""))
            if parts.get("storage") == "NodeResizePending" and volume is not None:
                status = {
                    "capacity": {"storage": volume["spec"]["capacity"]["storage"]},
                    "allocatedResourceStatuses": None,
                    "conditions": None,
                }
                body = {
                    "metadata": {"resourceVersion": claim["metadata"]["resourceVersion"]},
                    "status": status,
                }
                with suppress(KubeApiError):
                    self.scene.api.patch(f"{self.scene.claims_path}/{name}/status", body)

    def are_at_rest(self) -> bool:
        """Return True if driver, volume and claim agree on size and class, and no condition is
        left."""
        self.finish_nodes()
        stored, volumes = self.system.driver.volumes(), self.system.volumes()
        wrong = []
        for name, claim in self.scene.claims().items():
            if _phase(claim) != "Bound":
                continue
            volume = volumes[claim["spec"]["volumeName"]]
            problem = _problem(claim, volume, stored[volume["spec"]["csi"]["volumeHandle"]])
            wrong += [f"{name}: {problem}"] if problem else []
        assert not wrong, wrong[:5]
        return True

    def second_targets(self) -> list[str]:
        """Return the calls for another size or class that began while an earlier call could be
        running (I-2)."""
        found = []
        by_volume: defaultdict[tuple[str, str], list[DriverCall]] = defaultdict(list)
        for call in self.system.driver.calls():
            if call.method in {EXPAND, MODIFY}:
                by_volume[call.method, call.request["volume_id"]].append(call)
        for (method, volume), calls in by_volume.items():
            for before, call in itertools.pairwise(calls):
                if before.code in _UNCERTAIN and _target(before) != _target(call):
                    targets = f"{_target(before)} ({before.code}), then {_target(call)}"
                    found.append(f"{method} {volume}: {targets}")
        return found

    def clean_up(self) -> None:
        """Remove the classes."""
        for name in CLASSES:
            self.scene.api.delete(
                f"/apis/storage.k8s.io/v1/volumeattributesclasses/{self.full(name)}"
            )


def _problem(claim: JsonObject, volume: JsonObject, stored: JsonObject) -> str:
    status, spec = claim["status"], claim["spec"]
    sizes = (
        _gib(status["capacity"]["storage"]),
        _gib(volume["spec"]["capacity"]["storage"]),
        stored["capacity_bytes"] // GIB,
    )
    wanted = _gib(spec["resources"]["requests"]["storage"])
    if len(set(sizes)) != 1 or sizes[0] < wanted:
        return f"wants {wanted}, has {sizes}, {status}"
    current = status.get("currentVolumeAttributesClassName")
    if spec.get("volumeAttributesClassName") != current or "modifyVolumeStatus" in status:
        return f"wants class {spec.get('volumeAttributesClassName')}, {status}"
    if volume["spec"].get("volumeAttributesClassName") != current:
        return f"the PV's class is {volume['spec'].get('volumeAttributesClassName')}, {status}"
    tier = (stored.get("parameters") or {}).get("tier", "")
    if current is not None and not current.endswith(f"-{tier}"):
        return f"class {current}, but the driver has {tier}"
    left = own_conditions(status)
    return f"conditions are left: {left}" if left else ""


def _target(call: DriverCall) -> Any:
    if call.method == EXPAND:
        return call.request["capacity_range"]["required_bytes"]
    return call.request["mutable_parameters"]["tier"]


def _gib(text: str) -> int:
    return int(text.removesuffix("Gi"))


def _phase(claim: JsonObject) -> str:
    return str(claim.get("status", {}).get("phase", ""))

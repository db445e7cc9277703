"""One claim, its volume and its driver for the resizer: (spec, cap, alloc, part, pvcap) in GiB.

```
world = ResizerWorld()
world.claim(2, 1); world.run()
assert world.sizes() == [2]
assert world.state() == State(cap=1, alloc=2, part="NodeResizePending", pvcap=2)
```
A driver answers with the requested size and asks for the node part, as section 11 of the
specification has it, unless a test says otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from tests.support.fake_context import DRIVER, FakeWorld
from workers.controllers.resizer.controller import CONTROLLER
from workers.controllers.resizer.settings import ResizerSettings
from workers.kube import paths
from workers.queue.keys import Key

NAMESPACE, NAME, UID = "shop", "data", "claim-uid"
VOLUME, HANDLE = "pv-data", "vol-data"
GIB = 2**30
CONTROLLER_IN_PROGRESS = "ControllerResizeInProgress"
INFEASIBLE = "ControllerResizeInfeasible"
NODE_PENDING, NODE_IN_PROGRESS = "NodeResizePending", "NodeResizeInProgress"
NODE_INFEASIBLE = "NodeResizeInfeasible"
SHORT = {
    "C-IP": CONTROLLER_IN_PROGRESS,
    "C-INF": INFEASIBLE,
    "N-P": NODE_PENDING,
    "N-IP": NODE_IN_PROGRESS,
    "N-INF": NODE_INFEASIBLE,
}

JsonObject = dict[str, Any]


@dataclass(frozen=True, slots=True)
class State:
    """The sizes in GiB, None if absent, and the state of the node's part in its long or short
    form."""

    cap: int
    alloc: int | None
    part: str
    pvcap: int

    def written(self) -> State:
        """Return the state with the short form of the node's part."""
        return replace(self, part=SHORT.get(self.part, self.part))


def gib(size: float) -> str:
    """Return a quantity: `2` -> `2Gi`."""
    return f"{size}Gi"


class ResizerWorld(FakeWorld):
    """The world that the module's docstring describes."""

    def __init__(
        self,
        *,
        capabilities: tuple[str, ...] = ("EXPAND_VOLUME", "MODIFY_VOLUME"),
        node: tuple[str, ...] = ("EXPAND_VOLUME",),
        driver_name: str = DRIVER,
        modes: tuple[str, ...] = (),
        **settings: Any,
    ) -> None:
        super().__init__(
            driver_name=driver_name,
            capabilities=capabilities,
            node=node,
            expansion_modes=modes,
            settings={"resizer": ResizerSettings(**settings)},
        )
        self.answers({"node_expansion_required": True})
        self.key = Key("changes", driver_name, f"{NAMESPACE}/{NAME}", UID)

    # The cluster.

    def claim(
        self,
        spec: float,
        cap: float,
        alloc: float | None = None,
        part: str = "",
        pvcap: float | None = None,
        *,
        conditions: Mapping[str, str] | None = None,
        annotations: Mapping[str, str] | None = None,
        phase: str = "Bound",
        **fields: Any,
    ) -> None:
        """Add a claim and its volume."""
        status: JsonObject = {"phase": phase, "capacity": {"storage": gib(cap)}}
        if alloc is not None:
            status["allocatedResources"] = {"storage": gib(alloc)}
        if part:
            status["allocatedResourceStatuses"] = {"storage": SHORT.get(part, part)}
        if conditions:
            status["conditions"] = [
                {"type": kind, "status": "True", "message": text, "lastTransitionTime": "then"}
                for kind, text in conditions.items()
            ]
        status |= fields.pop("status", {})
        metadata = {"namespace": NAMESPACE, "name": NAME, "uid": UID}
        if annotations:
            metadata["annotations"] = dict(annotations)  # type: ignore[assignment]
        self.api.add(
            paths.CLAIMS,
            {
                "metadata": metadata,
                "spec": {
                    "volumeName": VOLUME,
                    "accessModes": ["ReadWriteOnce"],
                    "resources": {"requests": {"storage": gib(spec)}},
                    **fields,
                },
                "status": status,
            },
        )
        if self.api.of(paths.VOLUMES, VOLUME) is None:
            self.volume(cap if pvcap is None else pvcap)

    def volume(self, size: float, *, annotations: Any = None, **fields: Any) -> None:
        """Add the volume."""
        spec = {
            "capacity": {"storage": gib(size)},
            "accessModes": ["ReadWriteOnce"],
            "claimRef": {"namespace": NAMESPACE, "name": NAME, "uid": UID},
            "csi": {"driver": self.driver_name, "volumeHandle": HANDLE},
            **fields,
        }
        spec = {name: value for name, value in spec.items() if value is not None}
        metadata: JsonObject = {"name": VOLUME, "uid": "volume-uid"}
        if annotations:
            metadata["annotations"] = annotations
        item = {"metadata": metadata, "spec": spec, "status": {"phase": "Bound"}}
        self.api.add(paths.VOLUMES, item)

    def attributes_class(self, name: str, driver: str = "", **parameters: str) -> None:
        """Add a VolumeAttributesClass."""
        self.api.add(
            paths.ATTRIBUTES_CLASSES,
            {
                "metadata": {"name": name},
                "driverName": driver or self.driver_name,
                "parameters": parameters,
            },
        )

    def pod(self, name: str = "user", phase: str = "Running", **volume: Any) -> None:
        """Add a pod that uses the claim, or the given volume."""
        volume = volume or {"persistentVolumeClaim": {"claimName": NAME}}
        self.api.add(
            paths.PODS,
            {
                "metadata": {"name": name, "namespace": NAMESPACE},
                "spec": {"volumes": [{"name": "v", **volume}]},
                "status": {"phase": phase},
            },
        )

    def resize(self, size: float) -> None:
        """Change the requested size of the claim, as the user would."""
        self.edit({"spec": {"resources": {"requests": {"storage": gib(size)}}}})

    def choose(self, name: str | None) -> None:
        """Select another class, as the user would."""
        self.edit({"spec": {"volumeAttributesClassName": name}})

    def edit(self, patch: JsonObject) -> None:
        """Change the claim, as another program would."""
        self.api.change(paths.CLAIMS, NAME, patch, NAMESPACE)

    # The driver.

    def answers(self, *steps: Any) -> None:
        """Set the answers of ControllerExpandVolume from now on; sizes are the requested ones."""
        self.client.respond({"ControllerExpandVolume": [_echoing(step) for step in steps]})

    def modifies(self, *steps: Any) -> None:
        """Set the answers of ControllerModifyVolume from now on."""
        self.client.respond({"ControllerModifyVolume": list(steps)})

    def let_pass(self, seconds: float) -> None:
        """Advance the time that is remembered for calls."""
        self.passed += seconds

    # Reading the result.

    def run(self) -> Any:
        """Reconcile once."""
        return self.sync(CONTROLLER, self.key)

    def settle(self, most: int = 10) -> Any:
        """Reconcile as long as the outcome asks for an immediate retry."""
        for _ in range(most):
            outcome = self.run()
            if outcome.action.value != "wait" or outcome.delay_seconds:
                return outcome
        raise AssertionError("it does not come to rest")

    @property
    def seen(self) -> JsonObject:
        """Return the claim as it is now."""
        found = self.api.of(paths.CLAIMS, NAME, NAMESPACE)
        assert found is not None
        return found

    @property
    def stored(self) -> JsonObject:
        """Return the volume as it is now."""
        found = self.api.of(paths.VOLUMES, VOLUME)
        assert found is not None
        return found

    def sizes(self) -> list[float]:
        """Return the sizes that were requested from the driver, in GiB."""
        found = self.client.requests("ControllerExpandVolume")
        sizes = [request.capacity_range.required_bytes / GIB for request in found]
        return [int(size) if size == int(size) else size for size in sizes]

    def parameters(self) -> list[dict[str, str]]:
        """Return the parameters of each modification."""
        found = self.client.requests("ControllerModifyVolume")
        return [dict(request.mutable_parameters) for request in found]

    def state(self) -> State:
        """Return the current sizes and the state of the node's part."""
        status = self.seen["status"]
        allocated = status.get("allocatedResources", {}).get("storage")
        return State(
            cap=_size(status["capacity"]["storage"]),
            alloc=None if allocated is None else _size(allocated),
            part=status.get("allocatedResourceStatuses", {}).get("storage", ""),
            pvcap=_size(self.stored["spec"]["capacity"]["storage"]),
        )

    def conditions(self) -> dict[str, str]:
        """Return the messages of the claim's conditions by type."""
        found = self.seen["status"].get("conditions") or []
        return {one["type"]: one.get("message", "") for one in found}

    def annotation(self, name: str, of: JsonObject | None = None) -> str | None:
        """Return an annotation of the claim, or of another object."""
        found: Mapping[str, str] = (of or self.seen)["metadata"].get("annotations") or {}
        return found.get(name)

    def reasons(self) -> list[str]:
        """Return the reasons of the events, in order."""
        return self.events.reasons()

    def messages(self) -> list[str]:
        """Return the texts of the events, in order."""
        return [message for _, _, message in self.events.seen]

    def status_writes(self) -> int:
        """Return how often the claim's status was written."""
        return sum(one.path.endswith("/status") for one in self.api.writes)


def _size(text: str) -> int:
    return int(text.removesuffix("Gi"))


def _echoing(step: Any) -> Any:
    """Return a step that answers the requested size, unless it names a size or is an error."""
    if not isinstance(step, Mapping) or step.get("code") or "capacity_bytes" in step:
        return step
    times = {"times": step["times"]} if "times" in step else {}
    rest = {key: value for key, value in step.items() if key != "times"}
    if times:
        raise AssertionError("name a size where an answer counts its times")
    return lambda request: {**rest, "capacity_bytes": request.capacity_range.required_bytes}

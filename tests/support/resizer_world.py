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
    """Sizes in GiB, None for absent, and the part in its long or short form."""

    cap: int
    alloc: int | None
    part: str
    pvcap: int

    def written(self) -> State:
        """With the part as it is written."""
        return replace(self, part=SHORT.get(self.part, self.part))


def gib(size: float) -> str:
    """`2` -> `2Gi`."""
    return f"{size}Gi"


class ResizerWorld(FakeWorld):
    """See the module."""

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
        """A claim and its volume."""
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
        """The volume."""
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
        """A VolumeAttributesClass."""
        self.api.add(
            paths.ATTRIBUTES_CLASSES,
            {
                "metadata": {"name": name},
                "driverName": driver or self.driver_name,
                "parameters": parameters,
            },
        )

    def pod(self, name: str = "user", phase: str = "Running", **volume: Any) -> None:
        """A pod that uses the claim, or the given volume."""
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
        """The user edits the claim."""
        self.edit({"spec": {"resources": {"requests": {"storage": gib(size)}}}})

    def choose(self, name: str | None) -> None:
        """The user picks another class."""
        self.edit({"spec": {"volumeAttributesClassName": name}})

    def edit(self, patch: JsonObject) -> None:
        """Somebody changes the claim."""
        self.api.change(paths.CLAIMS, NAME, patch, NAMESPACE)

    # The driver.

    def answers(self, *steps: Any) -> None:
        """What ControllerExpandVolume answers from now on; sizes are the requested ones."""
        self.client.respond({"ControllerExpandVolume": [_echoing(step) for step in steps]})

    def modifies(self, *steps: Any) -> None:
        """What ControllerModifyVolume answers from now on."""
        self.client.respond({"ControllerModifyVolume": list(steps)})

    def let_pass(self, seconds: float) -> None:
        """Time passes for whatever is remembered of calls."""
        self.passed += seconds

    # What happened.

    def run(self) -> Any:
        """One reconcile."""
        return self.sync(CONTROLLER, self.key)

    def settle(self, most: int = 10) -> Any:
        """Reconcile as long as the outcome asks for it at once."""
        for _ in range(most):
            outcome = self.run()
            if outcome.action.value != "wait" or outcome.delay_seconds:
                return outcome
        raise AssertionError("it does not come to rest")

    @property
    def seen(self) -> JsonObject:
        """The claim now."""
        found = self.api.of(paths.CLAIMS, NAME, NAMESPACE)
        assert found is not None
        return found

    @property
    def stored(self) -> JsonObject:
        """The volume now."""
        found = self.api.of(paths.VOLUMES, VOLUME)
        assert found is not None
        return found

    def sizes(self) -> list[float]:
        """The sizes asked of the driver, in GiB."""
        found = self.client.requests("ControllerExpandVolume")
        sizes = [request.capacity_range.required_bytes / GIB for request in found]
        return [int(size) if size == int(size) else size for size in sizes]

    def parameters(self) -> list[dict[str, str]]:
        """The parameters of each modification."""
        found = self.client.requests("ControllerModifyVolume")
        return [dict(request.mutable_parameters) for request in found]

    def state(self) -> State:
        """Sizes and part now."""
        status = self.seen["status"]
        allocated = status.get("allocatedResources", {}).get("storage")
        return State(
            cap=_size(status["capacity"]["storage"]),
            alloc=None if allocated is None else _size(allocated),
            part=status.get("allocatedResourceStatuses", {}).get("storage", ""),
            pvcap=_size(self.stored["spec"]["capacity"]["storage"]),
        )

    def conditions(self) -> dict[str, str]:
        """Messages of the claim's conditions by type."""
        found = self.seen["status"].get("conditions") or []
        return {one["type"]: one.get("message", "") for one in found}

    def annotation(self, name: str, of: JsonObject | None = None) -> str | None:
        """An annotation of the claim, or of another object."""
        found: Mapping[str, str] = (of or self.seen)["metadata"].get("annotations") or {}
        return found.get(name)

    def reasons(self) -> list[str]:
        """Reasons of the events, in order."""
        return self.events.reasons()

    def messages(self) -> list[str]:
        """Texts of the events, in order."""
        return [message for _, _, message in self.events.seen]

    def status_writes(self) -> int:
        """How often the claim's status was written."""
        return sum(one.path.endswith("/status") for one in self.api.writes)


def _size(text: str) -> int:
    return int(text.removesuffix("Gi"))


def _echoing(step: Any) -> Any:
    """A step that answers the requested size where it names none and is no error."""
    if not isinstance(step, Mapping) or step.get("code") or "capacity_bytes" in step:
        return step
    times = {"times": step["times"]} if "times" in step else {}
    rest = {key: value for key, value in step.items() if key != "times"}
    if times:
        raise AssertionError("name a size where an answer counts its times")
    return lambda request: {**rest, "capacity_bytes": request.capacity_range.required_bytes}

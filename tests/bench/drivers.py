"""Drivers for measurements: hundreds in one process, fast, with topology if needed.

`BenchDrivers(folder, names, delay_seconds=0.2, has_topology=True)` is a `DriverHost` whose drivers
cost almost nothing, so that a run measures the provisioners.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, Self

import grpc
import grpc.aio

from csi_client import messages as csi
from tests.support.driver_host import ROOT, DriverHost, LightDriver
from tests.support.processes import start_process
from tests.support.waiting import wait_until

POLL_SECONDS = 0.1
RPC = csi.ControllerServiceCapability.RPC.Type
TOPOLOGY_KEY = "topology.bench.example.org/zone"


def able_to(*kinds: Any) -> csi.ControllerGetCapabilitiesResponse:
    """Return a driver's reply with these capabilities."""
    made = [csi.ControllerServiceCapability.RPC(type=one) for one in kinds]
    return csi.ControllerGetCapabilitiesResponse(
        capabilities=[csi.ControllerServiceCapability(rpc=one) for one in made]
    )


class BenchDrivers(DriverHost):
    """Runs the drivers in a process of their own, whose CPU is read by `pid`."""

    def __init__(
        self,
        folder: Path,
        names: Sequence[str],
        *,
        delay_seconds: float = 0.0,
        has_topology: bool = False,
        expands: bool = False,
        attaches: bool = False,
        snapshots: bool = False,
        whole: bool = False,
        work_seconds: float = 0.0,
    ) -> None:
        super().__init__(folder, names)
        kind = "topology" if has_topology else "light"
        kind = "expanding" if expands else "attaching" if attaches else kind
        kind = "snapshots" if snapshots else kind
        kind = "whole" if whole else kind
        mode = {"delay": delay_seconds, "work": work_seconds}
        self._plan = {"names": self.names, "mode": mode, "kind": kind}

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> Self:
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "plan.json").write_text(json.dumps(self._plan))
        self._process = start_process(
            "bench-drivers",
            [sys.executable, "-m", "tests.bench.drivers", str(self.folder)],
            log=self.folder / "host.log",
            cwd=ROOT,
        )
        wait_until((self.folder / "ready").exists, 30, "all drivers listen")
        return self


class TopologyDriver(LightDriver):
    """Reports that volumes have a topology, and puts each in the most preferred segment."""

    async def plugin(self, _: Any, __: Any) -> csi.GetPluginCapabilitiesResponse:
        types = csi.PluginCapability.Service.Type
        return csi.GetPluginCapabilitiesResponse(
            capabilities=[
                csi.PluginCapability(service=csi.PluginCapability.Service(type=one))
                for one in (types.CONTROLLER_SERVICE, types.VOLUME_ACCESSIBILITY_CONSTRAINTS)
            ]
        )

    async def create(self, request: Any, context: Any) -> csi.CreateVolumeResponse:
        answer = await super().create(request, context)
        answer.volume.accessible_topology.extend(request.accessibility_requirements.preferred[:1])
        return answer


class ExpandingDriver(LightDriver):
    """Expands volumes that the test made by hand; it has no node service."""

    def _methods(self) -> dict[str, dict[str, Any]]:
        found = super()._methods()
        found["csi.v1.Controller"]["ControllerExpandVolume"] = grpc.unary_unary_rpc_method_handler(
            self.expand,
            csi.ControllerExpandVolumeRequest.FromString,
            lambda answer: answer.SerializeToString(),
        )
        return found

    async def controller(self, _: Any, __: Any) -> csi.ControllerGetCapabilitiesResponse:
        return able_to(RPC.EXPAND_VOLUME)

    async def expand(self, request: Any, context: Any) -> csi.ControllerExpandVolumeResponse:
        await self._misbehave(context)
        return csi.ControllerExpandVolumeResponse(
            capacity_bytes=request.capacity_range.required_bytes
        )


class AttachingDriver(LightDriver):
    """Publishes any volume to any node."""

    def _methods(self) -> dict[str, dict[str, Any]]:
        methods = super()._methods()
        for name in ("ControllerPublishVolume", "ControllerUnpublishVolume"):
            request = getattr(csi, f"{name}Request")
            methods["csi.v1.Controller"][name] = grpc.unary_unary_rpc_method_handler(
                partial(self.agree, getattr(csi, f"{name}Response")),
                request.FromString,
                lambda answer: answer.SerializeToString(),
            )
        return methods

    async def agree(self, answer: Any, _: Any, context: Any) -> Any:
        """Answer after the planned delay."""
        await self._misbehave(context)
        return answer()

    async def controller(self, _: Any, __: Any) -> csi.ControllerGetCapabilitiesResponse:
        return able_to(RPC.CREATE_DELETE_VOLUME, RPC.PUBLISH_UNPUBLISH_VOLUME)


class SnapshotDriver(LightDriver):
    """Takes snapshots of any volume. A snapshot is ready at once and has its name as its id."""

    def _methods(self) -> dict[str, dict[str, Any]]:
        methods = super()._methods()
        for name, work in (("CreateSnapshot", self.cut), ("DeleteSnapshot", self.drop)):
            methods["csi.v1.Controller"][name] = grpc.unary_unary_rpc_method_handler(
                work,
                getattr(csi, f"{name}Request").FromString,
                lambda answer: answer.SerializeToString(),
            )
        return methods

    async def cut(self, request: Any, context: Any) -> csi.CreateSnapshotResponse:
        await self._misbehave(context)
        answer = csi.CreateSnapshotResponse()
        answer.snapshot.snapshot_id = f"s-{request.name}"
        answer.snapshot.source_volume_id = request.source_volume_id
        answer.snapshot.creation_time.GetCurrentTime()
        answer.snapshot.ready_to_use = True
        return answer

    async def drop(self, _: Any, context: Any) -> csi.DeleteSnapshotResponse:
        await self._misbehave(context)
        return csi.DeleteSnapshotResponse()

    async def controller(self, _: Any, __: Any) -> csi.ControllerGetCapabilitiesResponse:
        return able_to(RPC.CREATE_DELETE_SNAPSHOT)


class WholeDriver(SnapshotDriver, AttachingDriver, ExpandingDriver):
    """Has all capabilities; each call costs `work` seconds of CPU, as if it ran programs."""

    async def _misbehave(self, context: Any) -> None:
        until = time.thread_time() + self.mode.get("work", 0)
        while time.thread_time() < until:
            pass
        await super()._misbehave(context)

    async def create(self, request: Any, context: Any) -> csi.CreateVolumeResponse:
        answer = await super().create(request, context)
        if request.HasField("volume_content_source"):
            answer.volume.content_source.CopyFrom(request.volume_content_source)
        return answer

    async def controller(self, _: Any, __: Any) -> csi.ControllerGetCapabilitiesResponse:
        return able_to(
            RPC.CREATE_DELETE_VOLUME,
            RPC.PUBLISH_UNPUBLISH_VOLUME,
            RPC.EXPAND_VOLUME,
            RPC.CREATE_DELETE_SNAPSHOT,
        )


KINDS = {
    "whole": WholeDriver,
    "snapshots": SnapshotDriver,
    "light": LightDriver,
    "topology": TopologyDriver,
    "expanding": ExpandingDriver,
    "attaching": AttachingDriver,
}


async def serve(folder: Path) -> None:
    """Run the planned drivers until the process is killed."""
    plan = json.loads((folder / "plan.json").read_text())
    make = KINDS[plan["kind"]]
    drivers = {name: make(name, folder / f"{i}.s") for i, name in enumerate(plan["names"])}
    for driver in drivers.values():
        await driver.follow({name: value for name, value in plan["mode"].items() if value})
    (folder / "ready").touch()
    figures = folder / "figures.json"
    figures.touch()
    while True:
        await asyncio.sleep(POLL_SECONDS)
        if not figures.exists():
            draft = folder / "figures.draft"
            found = {name: driver.figures() for name, driver in drivers.items()}
            draft.write_text(json.dumps(found | {"at": {"time": time.time()}}))
            draft.replace(figures)


if __name__ == "__main__":
    asyncio.run(serve(Path(sys.argv[1])))

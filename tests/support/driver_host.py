"""Runs many simple CSI drivers in one process, each with its own socket and its own faults.

```
with DriverHost(folder, ["a.csi.example.org", ...]) as host:
    host.set_mode("a.csi.example.org", mode="hang")     # or exhausted, unavailable, slow, gone, ok
    host.address("a.csi.example.org")
    host.figures()["a.csi.example.org"]["most_creates"]
```
The drivers keep their volumes in memory, which outlives a closed socket (mode `gone`) but not the
process. Unlike the directory driver they write nothing per call, so hundreds fit on one machine.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import grpc
from google.protobuf.message import Message

from csi_client import messages as csi
from tests.support.processes import Process, start_process
from tests.support.running import Running
from tests.support.waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]
POLL_SECONDS = 0.05


class DriverHost(Running):
    """Starts and controls the process from a test."""

    def __init__(
        self, folder: Path, names: Sequence[str], *, publishing: Sequence[str] = ()
    ) -> None:
        self.folder = folder
        self.names = list(names)
        self.publishing = list(publishing)
        self._modes: dict[str, dict[str, Any]] = {}
        self._process: Process | None = None

    def address(self, name: str) -> str:
        """Return the path of the driver's socket."""
        return str(self.folder / f"{self.names.index(name)}.s")

    def set_mode(self, name: str, **mode: Any) -> None:
        """Set a driver's mode and the delay of its calls.

        The modes are ok, hang, dead, exhausted, unavailable, refuses, gone and stubborn. A driver
        that hangs or refuses still answers Probe; the other calls of one that refuses end with
        Unavailable. A dead driver is connected but answers nothing. A delay is in seconds; a pair
        stands for any delay between its values. A stubborn driver takes `seconds` for each
        creation, even if the caller is gone.
        """
        self._modes[name] = mode
        draft = self.folder / "modes.draft"
        draft.write_text(json.dumps(self._modes))
        draft.replace(self.folder / "modes.json")

    def figures(self) -> dict[str, dict[str, Any]]:
        """Return the figures of each driver.

        They are: creates, most_creates, most_calls (at once), volumes, and the times of creations.
        `now` is the number of running creations; `ended` counts calls by method and code.
        """
        request = self.folder / "figures.json"
        request.unlink(missing_ok=True)
        wait_until(request.exists, 10, "the host writes its figures")
        found: dict[str, dict[str, Any]] = json.loads(request.read_text())
        return found

    def start(self) -> Self:
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "names.json").write_text(json.dumps(self.names))
        (self.folder / "publishing.json").write_text(json.dumps(self.publishing))
        self._process = start_process(
            "driver-host",
            [sys.executable, "-m", "tests.support.driver_host", str(self.folder)],
            log=self.folder / "host.log",
            cwd=ROOT,
        )
        wait_until((self.folder / "ready").exists, 30, "all drivers listen")
        return self

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()


class LightDriver:
    """One driver in the host's process; all calls run in the event loop."""

    def __init__(self, name: str, path: Path, *, publishes: bool = False) -> None:
        self.name = name
        self.publishes = publishes
        self.path = path
        self.mode: dict[str, Any] = {}
        self.server: grpc.aio.Server | None = None
        self.volumes: dict[str, int] = {}
        self.now = {"create": 0, "delete": 0}
        self.most = {"create": 0, "delete": 0, "any": 0}
        self.ended: Counter[str] = Counter()
        self.starts: list[float] = []
        self.asked: list[str] = []

    async def follow(self, mode: dict[str, Any]) -> None:
        """Switch to a mode; a driver that is gone has no socket."""
        self.mode = mode
        if mode.get("mode") == "gone":
            if self.server is not None:
                server, self.server = self.server, None
                await server.stop(0)
        elif self.server is None:
            self.path.unlink(missing_ok=True)
            self.server = grpc.aio.server()
            for service, methods in self._methods().items():
                self.server.add_generic_rpc_handlers(
                    (grpc.method_handlers_generic_handler(service, methods),)
                )
            self.server.add_insecure_port(f"unix:{self.path}")
            await self.server.start()

    def _methods(self) -> dict[str, dict[str, Any]]:
        def unary(work: Any, request: type[Message]) -> Any:
            name = request.__name__.removesuffix("Request")

            async def counted(asked: Any, context: Any) -> Any:
                try:
                    return await work(asked, context)
                finally:
                    code = context.code() or grpc.StatusCode.OK
                    self.ended[f"{name} {getattr(code, 'name', 'OK')}"] += 1

            return grpc.unary_unary_rpc_method_handler(
                counted, request.FromString, lambda answer: answer.SerializeToString()
            )

        return {
            "csi.v1.Identity": {
                "Probe": unary(self.probe, csi.ProbeRequest),
                "GetPluginInfo": unary(self.plugin_info, csi.GetPluginInfoRequest),
                "GetPluginCapabilities": unary(self.plugin, csi.GetPluginCapabilitiesRequest),
            },
            "csi.v1.Controller": {
                "ControllerGetCapabilities": unary(
                    self.controller, csi.ControllerGetCapabilitiesRequest
                ),
                "CreateVolume": unary(self.create, csi.CreateVolumeRequest),
                "DeleteVolume": unary(self.delete, csi.DeleteVolumeRequest),
                "ControllerPublishVolume": unary(self.publish, csi.ControllerPublishVolumeRequest),
                "ControllerUnpublishVolume": unary(
                    self.unpublish, csi.ControllerUnpublishVolumeRequest
                ),
            },
        }

    async def probe(self, _: Any, context: Any) -> csi.ProbeResponse:
        if self.mode.get("mode") == "unavailable":
            await context.abort(grpc.StatusCode.UNAVAILABLE, "told to be unavailable")
        if self.mode.get("mode") == "dead":
            await asyncio.sleep(3600)
        return csi.ProbeResponse()

    async def plugin_info(self, _: Any, __: Any) -> csi.GetPluginInfoResponse:
        return csi.GetPluginInfoResponse(name=self.name, vendor_version="1")

    async def plugin(self, _: Any, __: Any) -> csi.GetPluginCapabilitiesResponse:
        service = csi.PluginCapability.Service(
            type=csi.PluginCapability.Service.Type.CONTROLLER_SERVICE
        )
        return csi.GetPluginCapabilitiesResponse(
            capabilities=[csi.PluginCapability(service=service)]
        )

    async def controller(self, _: Any, __: Any) -> csi.ControllerGetCapabilitiesResponse:
        known = csi.ControllerServiceCapability.RPC.Type
        types = [known.CREATE_DELETE_VOLUME]
        if self.publishes:
            types.append(known.PUBLISH_UNPUBLISH_VOLUME)
        return csi.ControllerGetCapabilitiesResponse(
            capabilities=[
                csi.ControllerServiceCapability(rpc=csi.ControllerServiceCapability.RPC(type=one))
                for one in types
            ]
        )

    async def create(self, request: Any, context: Any) -> csi.CreateVolumeResponse:
        self.starts.append(time.time())
        self.asked.append(request.name)
        if self.mode.get("mode") == "stubborn":
            await asyncio.shield(asyncio.ensure_future(self._go_on()))
        async with _Counted(self, "create"):
            await self._misbehave(context)
            size = request.capacity_range.required_bytes or 1
            self.volumes.setdefault(request.name, size)
            return csi.CreateVolumeResponse(
                volume=csi.Volume(volume_id=request.name, capacity_bytes=size)
            )

    async def delete(self, request: Any, context: Any) -> csi.DeleteVolumeResponse:
        async with _Counted(self, "delete"):
            await self._misbehave(context)
            self.volumes.pop(request.volume_id, None)
            return csi.DeleteVolumeResponse()

    async def publish(self, _: Any, context: Any) -> csi.ControllerPublishVolumeResponse:
        await self._misbehave(context)
        return csi.ControllerPublishVolumeResponse()

    async def unpublish(self, _: Any, context: Any) -> csi.ControllerUnpublishVolumeResponse:
        await self._misbehave(context)
        return csi.ControllerUnpublishVolumeResponse()

    async def _go_on(self) -> None:
        """Run a call that continues when its client dies, as in most drivers."""
        async with _Counted(self, "create"):
            await asyncio.sleep(self.mode.get("seconds", 0))

    async def _misbehave(self, context: Any) -> None:
        delay = self.mode.get("delay", 0)
        least, most = delay if isinstance(delay, list) else (delay, delay)
        await asyncio.sleep(random.uniform(least, most))
        mode = self.mode.get("mode", "ok")
        while self.mode.get("mode") in {"hang", "dead"}:  # noqa: ASYNC110 - modes come from a file
            await asyncio.sleep(POLL_SECONDS)
        if mode == "exhausted":
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "told to be full")
        if mode in {"unavailable", "refuses"}:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "told to be unavailable")

    def figures(self) -> dict[str, Any]:
        return {
            "creates": len(self.starts),
            "most_creates": self.most["create"],
            "most_calls": self.most["any"],
            "volumes": len(self.volumes),
            "now": self.now["create"],
            "ended": self.ended,
            "starts": self.starts[-20000:],
            "names": self.asked[-20000:],
        }


class _Counted:
    """Counts the calls that are running at the same time; a cancelled call ends at once."""

    def __init__(self, driver: LightDriver, kind: str) -> None:
        self._driver = driver
        self._kind = kind

    async def __aenter__(self) -> None:
        driver = self._driver
        driver.now[self._kind] += 1
        driver.most[self._kind] = max(driver.most[self._kind], driver.now[self._kind])
        driver.most["any"] = max(driver.most["any"], sum(driver.now.values()))

    async def __aexit__(self, *_: object) -> None:
        self._driver.now[self._kind] -= 1


async def serve(folder: Path) -> None:
    """Run all drivers until the process is killed."""
    names = json.loads((folder / "names.json").read_text())
    publishing = json.loads((folder / "publishing.json").read_text())
    drivers = {
        name: LightDriver(name, folder / f"{index}.s", publishes=name in publishing)
        for index, name in enumerate(names)
    }
    ready, figures, modes_file = folder / "ready", folder / "figures.json", folder / "modes.json"
    seen = ""
    for driver in drivers.values():
        await driver.follow({})
    ready.touch()
    while True:
        if modes_file.exists() and (text := modes_file.read_text()) != seen:
            seen = text
            for name, mode in json.loads(text).items():
                if drivers[name].mode != mode:
                    await drivers[name].follow(mode)
        if not figures.exists():
            draft = folder / "figures.draft"
            draft.write_text(json.dumps({n: driver.figures() for n, driver in drivers.items()}))
            draft.replace(figures)
        await asyncio.sleep(POLL_SECONDS)


if __name__ == "__main__":
    asyncio.run(serve(Path(sys.argv[1])))

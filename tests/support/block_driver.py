"""Runs CSI drivers that only list blocks of snapshots; the snapshot's handle says how.

```
with BlockDrivers(folder, ["a.csi.example.org"]) as drivers:
    drivers.address("a.csi.example.org")
    drivers.running("a.csi.example.org")      # streams that are running now
```
A handle is `MODE:MESSAGES:BLOCKS`, such as `honest:100:64`, for 100 messages with 64 blocks of
4 KiB each; every second block of the volume is listed. The modes:

| Mode | What the driver does |
|---|---|
| honest | sends the messages, from the starting offset on |
| disorder | swaps two blocks in the middle of the last message |
| repeats | sends the last message twice |
| slow | waits a tenth of a second before each message |
| endless | sends messages without an end |
| refuses | ends with FAILED_PRECONDITION and a text that repeats the secret |
| hangs | sends one message, then nothing |
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any, Self

import grpc

from csi_client import messages as csi
from csi_client.client import CsiClient
from tests.support.processes import Process, start_process
from tests.support.running import Running
from tests.support.waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]
BLOCK = 4096
TIB = 2**40


def messages(handle: str, starting_offset: int = 0) -> Iterator[csi.GetMetadataAllocatedResponse]:
    """Return the messages of an honest driver for this handle."""
    count, size = (int(one) for one in handle.split(":")[1:])
    first = (starting_offset // BLOCK + 1) // 2
    for at in range(first, count * size, size):
        yield csi.GetMetadataAllocatedResponse(
            block_metadata_type=csi.BlockMetadataType.FIXED_LENGTH,
            volume_capacity_bytes=64 * TIB,
            block_metadata=[
                csi.BlockMetadata(byte_offset=2 * BLOCK * one, size_bytes=BLOCK)
                for one in range(at, min(at + size, count * size))
            ],
        )


class BlockDrivers(Running):
    """Starts and stops the process from a test."""

    def __init__(self, folder: Path, names: Sequence[str]) -> None:
        self.folder = folder
        self.names = list(names)
        self._process: Process | None = None

    def address(self, name: str) -> str:
        """Return the path of the driver's socket."""
        return str(self.folder / f"{self.names.index(name)}.s")

    def running(self, name: str) -> int:
        """Return how many streams of the driver are running."""
        client = CsiClient(self.address(name))
        try:
            return int(client.plugin_info()[1])
        finally:
            client.close()

    def start(self) -> Self:
        self.folder.mkdir(parents=True, exist_ok=True)
        places = [f"{name}={self.address(name)}" for name in self.names]
        self._process = start_process(
            "block-driver",
            [sys.executable, "-m", "tests.support.block_driver", *places],
            log=self.folder / "driver.log",
            cwd=ROOT,
        )
        wait_until(
            lambda: all(Path(self.address(name)).exists() for name in self.names),
            30,
            "all drivers listen",
        )
        return self

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()


class BlockDriver:
    """One driver in the process."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.running = 0
        self._known: dict[str, list[bytes]] = {}

    def handlers(self) -> Sequence[grpc.GenericRpcHandler[Any, Any]]:
        unary, stream = grpc.unary_unary_rpc_method_handler, grpc.unary_stream_rpc_method_handler
        return [
            grpc.method_handlers_generic_handler(
                "csi.v1.Identity",
                {
                    "Probe": unary(self.probe),
                    "GetPluginInfo": unary(self.info),
                    "GetPluginCapabilities": unary(self.capabilities),
                },
            ),
            grpc.method_handlers_generic_handler(
                "csi.v1.SnapshotMetadata",
                {
                    "GetMetadataAllocated": stream(
                        self.allocated, csi.GetMetadataAllocatedRequest.FromString
                    ),
                    "GetMetadataDelta": stream(self.delta, csi.GetMetadataDeltaRequest.FromString),
                },
            ),
        ]

    async def probe(self, _: bytes, __: Any) -> bytes:
        return b""

    async def info(self, _: bytes, __: Any) -> bytes:
        answer = csi.GetPluginInfoResponse(name=self.name, vendor_version=str(self.running))
        return answer.SerializeToString()

    async def capabilities(self, _: bytes, __: Any) -> bytes:
        kinds = csi.PluginCapability.Service.Type
        names = [kinds.CONTROLLER_SERVICE]
        if "mute" not in self.name:
            names.append(kinds.SNAPSHOT_METADATA_SERVICE)
        services = [csi.PluginCapability.Service(type=one) for one in names]
        return csi.GetPluginCapabilitiesResponse(
            capabilities=[csi.PluginCapability(service=one) for one in services]
        ).SerializeToString()

    async def allocated(self, request: Any, context: Any) -> AsyncIterator[bytes]:
        async for one in self._send(request.snapshot_id, request, context):
            yield one

    async def delta(self, request: Any, context: Any) -> AsyncIterator[bytes]:
        if request.base_snapshot_id == request.target_snapshot_id:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "the same snapshot twice")
        async for one in self._send(request.target_snapshot_id, request, context):
            yield one

    async def _send(self, handle: str, request: Any, context: Any) -> AsyncIterator[bytes]:
        self.running += 1
        try:
            async for one in self._misbehave(handle, request, context):
                yield one
        finally:
            self.running -= 1

    async def _misbehave(self, handle: str, request: Any, context: Any) -> AsyncIterator[bytes]:
        mode = handle.partition(":")[0]
        if mode == "refuses":
            text = f"the array refused {dict(request.secrets)}"
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, text)
        if mode == "endless":
            handle = f"honest:1000000000:{handle.rpartition(':')[2]}"
        for number, one in enumerate(self._encoded(handle, request.starting_offset)):
            if mode == "slow":
                await asyncio.sleep(0.1)
            yield one
            if mode == "hangs" and not number:
                await asyncio.sleep(3600)
        if mode == "repeats":
            yield one
        if mode == "disorder":
            wrong = csi.GetMetadataAllocatedResponse.FromString(one)
            blocks = list(wrong.block_metadata)
            del wrong.block_metadata[:]
            middle = len(blocks) // 2
            blocks[middle - 1 : middle + 1] = reversed(blocks[middle - 1 : middle + 1])
            end = blocks[-1].byte_offset + 2 * BLOCK
            for block in blocks:
                block.byte_offset += end
            wrong.block_metadata.extend(blocks)
            yield wrong.SerializeToString()

    def _encoded(self, handle: str, starting_offset: int) -> Iterator[bytes] | list[bytes]:
        """Return the encoded messages; those of a whole list are kept for the next stream."""
        found = (one.SerializeToString() for one in messages(handle, starting_offset))
        if starting_offset or handle.startswith("honest:1000000000:"):
            return found
        if handle not in self._known:
            self._known[handle] = list(found)
        return self._known[handle]


async def serve(places: Sequence[str]) -> None:
    """Run all drivers until the process is killed."""
    servers = []
    for one in places:
        name, _, path = one.partition("=")
        server = grpc.aio.server()
        server.add_generic_rpc_handlers(tuple(BlockDriver(name).handlers()))
        server.add_insecure_port(f"unix:{path}")
        await server.start()
        servers.append(server)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1:]))

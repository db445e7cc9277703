"""Measure the calls of one process with eight claims whose 900 KiB Secret the driver refuses.

    python -m tests.bench.refused_secrets [seconds]

Each of the eight claims calls again every second, as a claim does after its first failures. Another
caller asks for the capacity every 20 ms. The output is its milliseconds alone and with the eight
claims.
"""

from __future__ import annotations

import os
import random
import signal
import string
import sys
import tempfile
import threading
import time
from concurrent import futures
from contextlib import suppress

import grpc

from csi_client import messages as csi
from csi_client.client import CsiClient
from csi_client.errors import CsiError

TENANTS = 8
SECRET_BYTES = 900 * 1024
SECONDS = 20.0


def word(chance: random.Random, length: int) -> str:
    return "".join(chance.choices(string.ascii_letters, k=length))


def serve(address: str, text: str) -> None:
    """Run a driver that refuses every volume with a long text."""

    def create(_: object, context: grpc.ServicerContext) -> None:
        context.abort(grpc.StatusCode.UNAUTHENTICATED, text)

    handler = grpc.unary_unary_rpc_method_handler
    methods = {"CreateVolume": handler(create), "GetCapacity": handler(lambda *_: b"")}
    server = grpc.server(futures.ThreadPoolExecutor(8))
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler("csi.v1.Controller", methods),)
    )
    server.add_insecure_port(f"unix:{address}")
    server.start()
    server.wait_for_termination()


def measured(client: CsiClient, seconds: float) -> list[float]:
    """Return the milliseconds of each call of an unaffected caller, sorted."""
    found, end = [], time.monotonic() + seconds
    while time.monotonic() < end:
        began = time.monotonic()
        client.call("Controller/GetCapacity", csi.GetCapacityRequest(), csi.GetCapacityResponse)
        found.append((time.monotonic() - began) * 1000)
        time.sleep(0.02)
    return sorted(found)


def refused(client: CsiClient, secrets: dict[str, str], stopped: threading.Event) -> None:
    """Act as one claim: call, be refused, and wait a second."""
    request = csi.CreateVolumeRequest(name="x", secrets=secrets)
    while not stopped.is_set():
        with suppress(CsiError):
            client.call("Controller/CreateVolume", request, csi.CreateVolumeResponse)
        stopped.wait(1)


def main(seconds: float) -> None:
    chance = random.Random(1)
    text = "login refused by array " + " ".join(word(chance, 12) for _ in range(160))
    secrets = {"a": "\n".join(word(chance, 5) for _ in range(SECRET_BYTES // 6))}
    address = f"{tempfile.mkdtemp()}/s"
    child = os.fork()
    if child == 0:
        serve(address, text)
    try:
        time.sleep(1)
        client, stopped = CsiClient(address, timeout_seconds=5), threading.Event()
        show("alone", measured(client, seconds))
        for _ in range(TENANTS):
            threading.Thread(target=refused, args=(client, secrets, stopped), daemon=True).start()
        show(f"beside {TENANTS} refused claims", measured(client, seconds))
        stopped.set()
    finally:
        os.kill(child, signal.SIGKILL)


def show(name: str, found: list[float]) -> None:
    half, most = found[len(found) // 2], found[int(len(found) * 0.99)]
    print(f"{name}: p50 {half:.1f} ms, p99 {most:.1f} ms, {len(found)} calls", flush=True)


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else SECONDS)
    os._exit(0)

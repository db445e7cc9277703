"""A driver with only the Identity service, scripted by a test; and the calls of a kubelet."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc

from csi_client import messages as csi
from csi_client._generated import csi_pb2_grpc
from csi_client._generated.pluginregistration_pb2 import (
    RegistrationStatus,
    RegistrationStatusResponse,
)


class IdentityDriver(csi_pb2_grpc.IdentityServicer):
    """Answers GetPluginInfo and Probe.

    Attributes:
        name: the name that GetPluginInfo returns.
        ready: the value that Probe returns; None leaves the field out.
        name_errors: the number of first GetPluginInfo calls that fail with UNAVAILABLE.
        code: the error status of every Probe; None for an answer.
        delay_seconds: how long each Probe takes, unless the caller cancels it.
        probes, cancelled: the numbers of all and of cancelled Probe calls.
    """

    def __init__(self, socket: Path, name: str = "d.test") -> None:
        self.socket = socket
        self.name = name
        self.ready: bool | None = True
        self.name_errors = 0
        self.code: grpc.StatusCode | None = None
        self.delay_seconds = 0.0
        self.probes = 0
        self.cancelled = 0
        self._lock = threading.Lock()
        self._server: grpc.Server | None = None

    def start(self) -> IdentityDriver:
        """Serve at the socket."""
        self._server = grpc.server(ThreadPoolExecutor(60), options=(("grpc.so_reuseport", 0),))
        csi_pb2_grpc.add_IdentityServicer_to_server(self, self._server)
        self._server.add_insecure_port(f"unix:{self.socket}")
        self._server.start()
        return self

    def stop(self) -> None:
        """Stop the driver and remove the socket."""
        if self._server is not None:
            self._server.stop(None).wait()
            self.socket.unlink(missing_ok=True)
            self._server = None

    def GetPluginInfo(self, request: Any, context: Any) -> csi.GetPluginInfoResponse:  # noqa: N802
        """Return the driver's name, or a scripted error."""
        with self._lock:
            self.name_errors -= 1
            if self.name_errors >= 0:
                context.abort(grpc.StatusCode.UNAVAILABLE, "still starting")
        return csi.GetPluginInfoResponse(name=self.name)

    def Probe(self, request: Any, context: Any) -> csi.ProbeResponse:  # noqa: N802
        """Answer as scripted."""
        with self._lock:
            self.probes += 1
        gone = threading.Event()
        context.add_callback(gone.set)
        if gone.wait(self.delay_seconds):
            with self._lock:
                self.cancelled += 1
        if self.code is not None:
            context.abort(self.code, "as scripted")
        answer = csi.ProbeResponse()
        if self.ready is not None:
            answer.ready.value = self.ready
        return answer


def notify(socket: Path, *, registered: bool, error: str = "") -> None:
    """Call NotifyRegistrationStatus as kubelet does, and wait for the answer."""
    with grpc.insecure_channel(
        f"unix:{socket}", options=(("grpc.use_local_subchannel_pool", 1),)
    ) as channel:
        channel.unary_unary(
            "/pluginregistration.Registration/NotifyRegistrationStatus",
            RegistrationStatus.SerializeToString,
            RegistrationStatusResponse.FromString,
        )(RegistrationStatus(plugin_registered=registered, error=error), timeout=5)


def memory_mib(pid: int) -> float:
    """Return a process's private memory plus its share of common memory (PSS)."""
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    kib = next(int(line.split()[1]) for line in text.splitlines() if line.startswith("Pss:"))
    return kib / 1024


def cpu_share(pid: int, seconds: float) -> float:
    """Return the fraction of one core that a process used during `seconds`."""

    def on_cpu_ns() -> int:
        threads = Path(f"/proc/{pid}/task").iterdir()
        return sum(int((thread / "schedstat").read_text().split()[0]) for thread in threads)

    before = on_cpu_ns()
    time.sleep(seconds)
    return (on_cpu_ns() - before) / 1e9 / seconds

"""The graceful end of a driver reaches no user: its claims wait for the next process."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc

from csi_client import messages as csi
from csi_client.errors import CsiError
from tests.support.waiting import wait_until
from workers.drivers.pace import Pace, WatchedClient
from workers.errors import DriverAway

# Few calls, 1 or 2 in a hundred, arrive at the moment at which the server stops.
STOPS, CALLERS = 12, 12
GRACE_SECONDS = 3


class Server:
    """Serves CreateVolume with gRPC's C core, as drivers written in Python and C++ do."""

    def __init__(self, folder: Path) -> None:
        answers = grpc.unary_unary_rpc_method_handler(
            lambda *_: csi.CreateVolumeResponse(volume=csi.Volume(volume_id="v")),
            request_deserializer=csi.CreateVolumeRequest.FromString,
            response_serializer=csi.CreateVolumeResponse.SerializeToString,
        )
        handlers = {"CreateVolume": answers}
        self.server = grpc.server(ThreadPoolExecutor(CALLERS))
        self.server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler("csi.v1.Controller", handlers),)
        )
        self.server.add_insecure_port(f"unix://{folder}/s")
        self.server.start()

    def stop(self) -> None:
        self.server.stop(GRACE_SECONDS).wait(GRACE_SECONDS)


def test_calls_at_the_moment_of_a_graceful_stop_fail_for_nobody(tmp_path):
    """Calls during a graceful stop are no failures for users.

    The C core answers them with CANCELLED, not with UNAVAILABLE.
    """
    failures: list[CsiError] = []
    served, ended = threading.Semaphore(0), threading.Event()
    client = WatchedClient(str(tmp_path / "s"), Pace())

    def call() -> None:
        while not ended.is_set():
            try:
                client.create_volume(csi.CreateVolumeRequest(name="a"))
            except DriverAway:
                ended.wait(0.01)
            except CsiError as error:
                failures.append(error)
            else:
                served.release()

    callers = [threading.Thread(target=call) for _ in range(CALLERS)]
    for one in callers:
        one.start()
    try:
        for _ in range(STOPS):
            server = Server(tmp_path)
            while served.acquire(blocking=False):
                pass
            for _ in range(10 * CALLERS):
                assert served.acquire(timeout=30), "it serves"
            server.stop()
            wait_until(lambda: not (tmp_path / "s").exists(), 10, "its socket is gone")
    finally:
        ended.set()
        for one in callers:
            one.join()
        client.close()
    assert failures == []

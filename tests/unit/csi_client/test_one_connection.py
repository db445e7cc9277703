"""Simultaneous calls over one connection to the driver."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent import futures
from pathlib import Path

import grpc
import pytest

from csi_client import messages as csi
from csi_client.client import CsiClient
from csi_client.connection import TlsFiles
from csi_client.errors import CsiError, NoStatusError
from tests.support.certificates import make_ca, make_certificate
from tests.support.waiting import wait_until

AT_ONCE = 8


class Driver:
    """A gRPC server whose Probe waits for `so_many` callers, and which records their peers."""

    def __init__(self, path: Path, credentials: grpc.ServerCredentials | None = None) -> None:
        self.path = path
        self.credentials = credentials
        self.port = 0
        self.peers: list[str] = []
        self.so_many = 1
        self._inside = 0
        self._here = threading.Condition()
        self._server: grpc.Server | None = None

    def start(self) -> None:
        self._server = grpc.server(futures.ThreadPoolExecutor(2 * AT_ONCE))
        method = grpc.unary_unary_rpc_method_handler(
            self.probe, csi.ProbeRequest.FromString, csi.ProbeResponse.SerializeToString
        )
        handler = grpc.method_handlers_generic_handler("csi.v1.Identity", {"Probe": method})
        self._server.add_generic_rpc_handlers((handler,))
        if self.credentials is None:
            self._server.add_insecure_port(f"unix:{self.path}")
        else:
            self.port = self._server.add_secure_port("127.0.0.1:0", self.credentials)
        self._server.start()

    def stop(self) -> None:
        if self._server is not None:
            self._server.stop(None).wait()

    def probe(self, _request, context):
        with self._here:
            self.peers.append(context.peer())
            self._inside += 1
            self._here.notify_all()
            self._here.wait_for(lambda: self._inside >= self.so_many, 60)
        return csi.ProbeResponse()


@pytest.fixture
def driver(tmp_path) -> Iterator[Driver]:
    one = Driver(tmp_path / "csi.sock")
    one.start()
    yield one
    one.stop()


@pytest.fixture
def client(driver) -> Iterator[CsiClient]:
    one = CsiClient(str(driver.path))
    assert one.wait_connected()
    yield one
    one.close()


def at_once(client: CsiClient, count: int) -> list[bool]:
    with futures.ThreadPoolExecutor(count) as pool:
        return list(pool.map(lambda _: client.probe(timeout_seconds=60), range(count)))


def connections(driver: Driver) -> int:
    """Return the number of connections to the driver's socket in the kernel's table."""
    lines = Path("/proc/net/unix").read_text(encoding="utf-8").splitlines()
    found = [line.split() for line in lines if line.endswith(f" {driver.path}")]
    return sum(1 for fields in found if fields[5] == "03")  # SS_CONNECTED


def test_calls_at_the_same_time_share_one_connection(driver, client):
    driver.so_many = AT_ONCE
    assert at_once(client, AT_ONCE) == [True] * AT_ONCE
    assert connections(driver) == 1


def test_two_clients_of_one_driver_share_none(driver, client):
    """P-009: they do not share the backoff of one that fails either."""
    other = CsiClient(str(driver.path))
    assert other.wait_connected()
    assert connections(driver) == 2
    other.close()
    assert client.probe()


def test_after_a_loss_calls_at_the_same_time_are_answered_again(driver, client):
    driver.so_many = AT_ONCE
    at_once(client, AT_ONCE)
    driver.stop()
    wait_until(lambda: not client.is_connected, 30, "the loss is seen")
    with pytest.raises(CsiError):
        client.probe()
    driver.path.unlink(missing_ok=True)
    driver.start()
    wait_until(lambda: client.is_connected, 30, "the driver is there again")
    assert client.connection_losses == 1
    driver.so_many = 2 * AT_ONCE  # all of them at the same time again
    assert at_once(client, AT_ONCE) == [True] * AT_ONCE
    assert connections(driver) == 1


def test_a_closed_client_says_so(driver, client):
    client.close()
    with pytest.raises(NoStatusError, match="is closed"):
        client.probe()


def test_with_tls_too(tmp_path):
    """The loss of a second connection would not be counted (P-003)."""
    make_ca(tmp_path, "ca")
    make_certificate(tmp_path, "ca", "driver", "localhost")
    pair = ((tmp_path / "driver.key").read_bytes(), (tmp_path / "driver.pem").read_bytes())
    driver = Driver(tmp_path, grpc.ssl_server_credentials([pair]))
    driver.start()
    tls = TlsFiles(tmp_path / "ca.pem", server_name="localhost")
    client = CsiClient(f"127.0.0.1:{driver.port}", allow_tcp=True, tls=tls)
    try:
        assert client.wait_connected()
        driver.so_many = AT_ONCE
        assert at_once(client, AT_ONCE) == [True] * AT_ONCE
        assert len(set(driver.peers)) == 1
    finally:
        client.close()
        driver.stop()

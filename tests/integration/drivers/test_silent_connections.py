"""TCP connections that drop all data without an error, as after a power failure or in a NAT."""

from __future__ import annotations

import os
import signal
import threading
import time
from dataclasses import replace

import pytest

from csi_client.client import CsiClient
from csi_client.errors import CANCELLED, CsiError
from tests.support.csi_driver import DirectoryDriver, create_request
from tests.support.processes import free_port
from tests.support.tcp_proxy import TcpProxy
from tests.support.waiting import let_pass, wait_until
from workers.config.settings import Settings
from workers.drivers.driversfile import DriverSpec
from workers.drivers.fleet import TICK_SECONDS, Fleet

pytestmark = pytest.mark.integration
LONGEST_SECONDS = 25
CREATE = create_request("pvc-u1")


class NoQueue:
    """Accepts limits and registrations, and keeps nothing."""

    def set_limits(self, *_, **__):
        pass

    def register(self, *_, **__):
        return True


@pytest.fixture
def driver():
    with DirectoryDriver(endpoint=f"tcp://127.0.0.1:{free_port()}") as made:
        yield made


@pytest.fixture
def proxy(driver):
    with TcpProxy(int(driver.address.rpartition(":")[2])) as made:
        yield made


@pytest.fixture
def client(proxy):
    made = CsiClient(f"127.0.0.1:{proxy.port}", timeout_seconds=60, allow_tcp=True)
    assert made.wait_connected(10)
    yield made
    made.close()


def create_aside(client):
    """Run CreateVolume in a thread. Return the thread and a list for the error it raises."""
    raised = []

    def call():
        try:
            client.create_volume(CREATE)
        except CsiError as error:
            raised.append(error)

    thread = threading.Thread(target=call)
    thread.start()
    return thread, raised


def test_a_connection_that_swallows_is_replaced_and_its_calls_end(client, proxy):
    assert client.probe()
    assert proxy.fall_silent() == 1
    thread, raised = create_aside(client)
    started = time.monotonic()
    assert client.mend(2)
    thread.join(10)
    assert time.monotonic() - started < 5
    assert [(one.code, one.from_transport) for one in raised] == [(CANCELLED, True)]
    assert client.connection_losses == 1, "name and capabilities are read again"
    assert client.probe(timeout_seconds=2)
    assert client.create_volume(CREATE).volume.volume_id


def test_a_good_connection_is_left_alone(client):
    assert not client.mend(2)
    assert client.connection_losses == 0


def test_a_driver_that_stands_still_loses_no_call(client, driver):
    """A frozen driver does not end the connection.

    It answers on no connection, so this connection is not proven dead.
    """
    driver.set_rules({"method": "CreateVolume", "delay_seconds": 4})
    thread, raised = create_aside(client)
    wait_until(lambda: driver.calls("CreateVolume"), 10, "the call is at the driver")
    os_kill(driver, signal.SIGSTOP)
    try:
        assert not client.mend(1)
    finally:
        os_kill(driver, signal.SIGCONT)
    thread.join(20)
    assert raised == []
    assert client.connection_losses == 0


def os_kill(driver, number):
    os.kill(driver.pid, number)


def test_each_worker_finds_out_within_25_seconds(driver, proxy):
    """A worker on a dead connection serves the driver again within 25 s.

    The other worker loses nothing.
    """
    spec = replace(DriverSpec(driver.name, f"127.0.0.1:{proxy.port}"))
    fleets, queue = [Fleet(Settings()), Fleet(Settings())], NoQueue()

    def go_on():
        for fleet in fleets:
            fleet.tick(queue, queue)
        let_pass(TICK_SECONDS / 5)
        return all(fleet.connections() == {driver.name: True} for fleet in fleets)

    try:
        fleets[0].apply({driver.name: spec})
        wait_until(lambda: go_on() or fleets[0].connections()[driver.name], 20, "one is served")
        first = proxy.fall_silent()
        assert first == 1
        fleets[1].apply({driver.name: spec})
        began = time.monotonic()
        clients = [fleet._links[spec.endpoint].client for fleet in fleets]
        wait_until(
            lambda: go_on() and clients[0].connection_losses, LONGEST_SECONDS, "it serves again"
        )
        assert time.monotonic() - began < LONGEST_SECONDS
        assert clients[0].probe(timeout_seconds=2)
        assert clients[1].connection_losses == 0
    finally:
        for fleet in fleets:
            fleet.stop()

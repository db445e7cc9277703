"""Two installations in one cluster: two Redis servers, each with its watcher and workers."""

from __future__ import annotations

import os
from contextlib import ExitStack

import pytest
import redis

from tests.support.csi_driver import DirectoryDriver
from tests.support.fleet import Fleet, leader_flags
from tests.support.redis_server import RedisServer
from tests.support.tool import Tool
from tests.support.waiting import wait_until
from workers.queue.registry import DriverRegistry

EPOCH = "csifleet:epoch"


@pytest.fixture
def servers(redis_binary, tmp_path):
    """One Redis for each installation."""
    with ExitStack() as stack:
        found = []
        for name in ("r0", "r1"):
            server = RedisServer(redis_binary, tmp_path / name)
            server.directory.mkdir()
            stack.callback(server.kill)
            found.append(server.start())
        yield found


@pytest.fixture
def two_drivers():
    """One driver for each installation."""
    names = [f"system-{os.getpid()}-{number}.csi.example.org" for number in (0, 1)]
    with DirectoryDriver(names[0]) as zero, DirectoryDriver(names[1]) as one:
        yield [zero, one]


@pytest.fixture
def drivers_file(two_drivers, tmp_path):
    """One drivers file for the workers of both installations; each serves one pool of it."""
    path = tmp_path / "drivers.yaml"
    lines = [
        f"- {{name: {one.name}, endpoint: {one.address}, pool: p{index}}}\n"
        for index, one in enumerate(two_drivers)
    ]
    path.write_text("drivers:\n" + "".join(lines))
    return path


def test_two_drivers_in_two_systems_and_a_wipe_of_one(
    kubeconfig, scene, servers, two_drivers, drivers_file, tmp_path
):
    """One Redis loses its data between two rounds of claims; each claim gets one volume."""
    clients = [redis.Redis.from_url(one.url) for one in servers]
    classes = [scene.storage_class(one.name) for one in two_drivers]
    with ExitStack() as stack:
        for index, server in enumerate(servers):
            flags = (f"--drivers-file={drivers_file}", f"--drivers-pool=p{index}", "--workers=1")
            directory = tmp_path / f"f{index}"
            fleet = Fleet(directory, kubeconfig, [], *flags, redis_url=server.url)
            stack.enter_context(fleet)
        for index, name in enumerate(classes):
            scene.claim(f"before-{index}", name)
        scene.wait_bound()
        for client, driver in zip(clients, two_drivers, strict=True):
            assert list(DriverRegistry(client).alive()) == [driver.name], "each its own"
        epoch = clients[0].get(EPOCH)
        clients[0].flushall()
        for index, name in enumerate(classes):
            scene.claim(f"after-{index}", name)
        scene.wait_bound()
        assert clients[0].get(EPOCH) != epoch
        for server, driver in zip(servers, two_drivers, strict=True):
            assert [call.code for call in driver.calls("CreateVolume")] == ["OK", "OK"]
            assert Tool(kubeconfig, server.url).json("status")["drivers"].keys() == {driver.name}
        scene.clean_up()  # while a worker runs that can delete the volumes
    for driver in two_drivers:
        assert [call.code for call in driver.calls("DeleteVolume")] == ["OK", "OK"]


def test_a_driver_that_two_systems_serve_is_worked_on_by_one(
    kubeconfig, scene, servers, two_drivers, tmp_path
):
    """With Leases the second installation waits; log and `status` name the holder."""
    driver, flags = two_drivers[0], ("--workers=1", *leader_flags(scene.namespace))
    name = scene.storage_class(driver.name)
    with ExitStack() as stack:
        for index, server in enumerate(servers):
            directory = tmp_path / f"f{index}"
            fleet = Fleet(directory, kubeconfig, [driver], *flags, redis_url=server.url)
            stack.enter_context(fleet)
        scene.claim("one", name)
        scene.wait_bound()
        assert [call.code for call in driver.calls("CreateVolume")] == ["OK"]

        def waits() -> str:
            state = Tool(kubeconfig, servers[1].url).json("status")["drivers"][driver.name]
            return str(state["state"])

        wait_until(lambda: "Lease held by" in waits(), 30, "the second system says that it waits")
        assert "another program holds the Lease" in fleet.log.read_text()
        scene.clean_up()

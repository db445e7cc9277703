"""All workers call the same one of a driver's two replicas, and never both at a time."""

from __future__ import annotations

import os
import signal
import threading
import time

import pytest

from csi_client.errors import CsiError
from tests.support.csi_driver import DirectoryDriver, create_request
from tests.support.processes import free_port
from tests.support.waiting import let_pass, wait_until
from workers.config.settings import Settings
from workers.drivers import replica
from workers.drivers.driversfile import DriverSpec
from workers.drivers.fleet import TICK_SECONDS, Fleet
from workers.errors import DriverAway
from workers.queue.links import Links
from workers.queue.registry import DriverRegistry
from workers.queue.workqueue import WorkQueue

pytestmark = pytest.mark.integration
DEADLINE = 4.0
CREATE = create_request("pvc-u1")


class World:
    """Two replicas of one driver with a common name, and workers that share a Redis."""

    def __init__(self, client, tmp_path, workers):
        port = free_port()
        self.client = client
        self.drivers = {}
        for address in ("127.0.0.2", "127.0.0.3"):
            driver = DirectoryDriver(
                "two.csi.example.org", endpoint=f"tcp://{address}:{port}", root=tmp_path / address
            )
            self.drivers[address] = driver.start()
        self.spec = DriverSpec(
            "two.csi.example.org",
            f"localhost:{port}",
            is_one_replica=True,
            flags={"timeout": DEADLINE},
        )
        self.queue = WorkQueue(client, publish=lambda _: None)
        self.queue.register_process()
        self.registry = DriverRegistry(client)
        self.fleets = []
        for _ in range(workers):
            self.add_worker()

    def add_worker(self):
        fleet = Fleet(Settings(), shared=Links(self.client, publish=lambda _: None))
        fleet.apply({self.spec.name: self.spec})
        self.fleets.append(fleet)

    def clients(self):
        return [fleet._links[self.spec.endpoint].client for fleet in self.fleets]

    def go_on(self):
        for fleet in self.fleets:
            fleet.tick(self.queue, self.registry)
        let_pass(TICK_SECONDS / 5)

    def served(self):
        """Return the replica that all workers may call now, or ""."""
        self.go_on()
        links = [fleet._links[self.spec.endpoint] for fleet in self.fleets]
        found = {link.client.replica.address for link in links if link.is_served}
        return found.pop() if len(found) == 1 and all(one.is_served for one in links) else ""

    def grown_up(self):
        """Set the age of Redis' epoch to one hour."""
        random, birth, run = self.client.get("csifleet:epoch").decode().split(":")
        self.client.set("csifleet:epoch", f"{random}:{int(birth) - 3_600_000}:{run}")

    def stop(self):
        for fleet in self.fleets:
            fleet.stop()
        for driver in self.drivers.values():
            os.kill(driver.pid, signal.SIGCONT) if driver.is_running else None
            driver.stop()


@pytest.fixture
def world(redis_client, tmp_path, monkeypatch, request):
    def resolved(host, port):
        return sorted(made.drivers)

    monkeypatch.setattr(replica, "addresses_of", resolved)
    made = World(redis_client, tmp_path, request.param)
    made.grown_up()
    yield made
    made.stop()


def kill(driver):
    driver.kill()


def freeze(driver):
    os.kill(driver.pid, signal.SIGSTOP)


@pytest.mark.parametrize("world", [3], indirect=True)
@pytest.mark.parametrize("end", [kill, freeze])
def test_all_workers_move_together_and_wait_for_the_calls_that_are_open(world, end):
    wait_until(world.served, 30, "one replica is called by all")
    first = world.served()
    old = world.drivers.pop(first)
    (second,) = world.drivers
    world.drivers[first] = old
    old.set_rules({"method": "CreateVolume", "hang": True})
    ends = []

    def create():
        with pytest.raises((CsiError, DriverAway)):
            world.clients()[0].create_volume(CREATE)
        ends.append(time.time())

    thread = threading.Thread(target=create)
    thread.start()
    wait_until(lambda: old.calls("CreateVolume"), 10, "the call is at the first replica")
    began = old.calls("CreateVolume")[0].started_at
    end(old)

    def is_moved():
        if world.served() != second:
            return False
        try:
            return bool(world.clients()[1].create_volume(CREATE))
        except DriverAway:
            return False

    wait_until(is_moved, 60, "the other replica is called")
    thread.join(10)
    (call,) = world.drivers[second].calls("CreateVolume")
    assert call.started_at >= began + DEADLINE, "the first call may have run until then"
    world.add_worker()
    wait_until(lambda: world.served() == second, 30, "a new worker calls the same")
    assert [one for one in old.calls("CreateVolume") if one.started_at > call.started_at] == []


@pytest.mark.parametrize("world", [2], indirect=True)
def test_a_worker_alone_that_loses_it_does_not_call_another(world):
    """A worker that alone loses its connection waits,
    because the other workers still call that replica.
    """
    wait_until(world.served, 30, "one replica is called by all")
    first = world.served()
    (second,) = set(world.drivers) - {first}
    lonely = world.clients()[0]
    lonely.replica.resolve = lambda *_: [second]
    lonely.move(second)
    lonely.replica.address = second
    lonely.replica.revoke()
    for _ in range(50):
        world.go_on()
        with pytest.raises(DriverAway):
            lonely.create_volume(CREATE)
    assert world.drivers[second].calls("CreateVolume") == []
    assert world.clients()[1].create_volume(CREATE).volume.volume_id
    lonely.replica.resolve = lambda *_: [first, second]
    wait_until(lambda: world.served() == first, 30, "it is back at the one that all call")

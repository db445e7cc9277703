"""A wait that lasts is reported once per claim, whichever worker reports it."""

from __future__ import annotations

import pytest

from workers.explain.lasting import KEYS_PER_LOOK, Lasting
from workers.queue.keys import claim_key, lane_name
from workers.queue.periods import Periods
from workers.queue.registry import DriverRegistry
from workers.queue.workqueue import WorkQueue

LANE = lane_name("claims", "d")


class FakeEvents:
    """Keeps events in place of writing them."""

    def __init__(self):
        self.told = []

    def event(self, involved, event_type, reason, message, *, component):
        self.told.append((involved["metadata"]["name"], event_type, reason, message))


class Now:
    """Periods that are due at every tick."""

    def __init__(self, periods):
        self._periods = periods

    def is_due(self, name, seconds):
        return name == "lasting" or self._periods.is_due(name, seconds)


@pytest.fixture
def queue(redis_client):
    queue = WorkQueue(redis_client, publish=lambda keys: None)
    queue.register_process()
    queue.set_limits(LANE, 1)
    yield queue
    queue.close()


@pytest.fixture
def serve(redis_client):
    registry = DriverRegistry(redis_client)
    registry.register("d", {"name": "d", "controllers": ["provisioner"]}, ttl_seconds=60)


@pytest.fixture
def looks(redis_client, queue):
    """Return a function that makes a worker; by default the worker reports every wait."""

    def make(lasting_seconds=0.0):
        return Lasting(
            redis_client,
            queue=queue,
            registry=DriverRegistry(redis_client),
            periods=Now(Periods(redis_client)),
            events=FakeEvents(),
            lasting_seconds=lasting_seconds,
        )

    return make


def add(queue, *names):
    queue.add([claim_key("d", "shop", name, f"uid-{name}") for name in names])


def test_a_pause_is_told_once_over_all_workers(queue, looks, serve):
    end = 4 * 10**12
    queue.mirror_pauses("1", {"driver d": f"{end} array upgrade"})
    add(queue, "one", "two")
    first, second = looks(), looks()
    for worker in (first, second, first):
        worker.tick()
    told = first._events.told + second._events.told
    assert sorted(name for name, *_ in told) == ["one", "two"]
    assert {(kind, reason) for _, kind, reason, _ in told} == {("Warning", "ProvisioningWaiting")}
    text = told[0][3]
    assert text.startswith('An operator paused driver "d" until ')
    assert text.endswith(": array upgrade. csi-fleet resume --driver=d")


def test_a_new_cause_is_told_again(queue, looks, serve):
    queue.mirror_pauses("1", {"driver d": "0 array upgrade"})
    add(queue, "one")
    worker = looks()
    worker.tick()
    queue.mirror_pauses("2", {})
    queue.pause(LANE, "socket lost", kind="driver")
    add(queue, "two")
    worker.tick()
    assert worker._events.told[0][3].startswith("An operator paused")
    assert any("No worker is connected" in text for *_, text in worker._events.told)


def test_what_runs_soon_is_not_told(queue, looks, serve):
    queue.mirror_pauses("1", {"driver d": "0 array upgrade"})
    add(queue, "one")
    worker = looks(lasting_seconds=60.0)
    worker.tick()
    assert worker._events.told == []


def test_a_driver_that_nobody_serves_is_told(queue, looks):
    queue.pause(LANE, "", kind="driver")
    add(queue, "one")
    worker = looks()
    worker.tick()
    assert "no worker is connected to it" in worker._events.told[0][3]


def test_a_driver_whose_workers_do_not_provision_is_told(queue, looks, redis_client):
    """If a driver's workers do not provision, the
    event names the driver and not the queue of a node.
    """
    record = {"name": "d", "node": "n1", "controllers": ["resizer"]}
    DriverRegistry(redis_client).register("d@n1", record, ttl_seconds=60)
    queue.pause("claims|d@n1", "", kind="driver")
    queue.add([claim_key("d@n1", "shop", "one", "uid-one")])
    worker = looks()
    worker.tick()
    assert worker._events.told[0][3].startswith('Driver "d" has workers, but none of them runs')


def test_work_per_look_is_bounded(queue, looks, serve):
    queue.mirror_pauses("1", {"driver d": "0 array upgrade"})
    add(queue, *(f"c{number}" for number in range(3 * KEYS_PER_LOOK)))
    worker = looks()
    worker.tick()
    assert len(worker._events.told) == KEYS_PER_LOOK

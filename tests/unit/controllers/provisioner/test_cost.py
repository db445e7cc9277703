"""Reconciles, requests and round trips to Redis per claim and per deletion: counted, not timed."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.support.crash_world import CrashWorld
from tests.support.taking import due_keys
from workers.queue import scripts
from workers.queue.keys import volume_key


@pytest.fixture
def trips(monkeypatch):
    """Count the scripts that run; each is a round trip to Redis."""
    found: Counter[str] = Counter()
    real = scripts.Scripts.run

    def counted(self, name, *args):
        found[name] += 1
        return real(self, name, *args)

    monkeypatch.setattr(scripts.Scripts, "run", counted)
    return found


@pytest.fixture
def world(redis_client):
    return CrashWorld(redis_client)


def settled(world: CrashWorld, trips: Counter[str]):
    """Return a worker whose claim has its volume, with an empty queue and all counters at zero."""
    world.add_claim()
    owner = world.owner()
    world.live(owner)
    world.messages.clear()
    world.kube.writes.clear()
    trips.clear()
    return owner


def test_a_claim_takes_five_round_trips_and_one_write(world, trips):
    world.add_claim()
    owner = world.owner()
    world.watcher()
    trips.clear()
    world._work(owner, world.messages.pop(0))
    del trips["catalog_read"]  # once per process and change of a class
    assert trips == {"take": 1, "enter": 1, "begin": 1, "created": 1, "done": 1}
    assert [call for call, _ in world.kube.writes] == ["create_volume"]


def test_a_deletion_is_one_pass_whatever_its_own_writes_send_back(world, trips):
    """COR-15: The DELETE and the removed finalizer cause events during and after the reconcile."""
    owner = settled(world, trips)
    name = next(iter(world.kube.kind("persistentvolumes")))
    key = volume_key(world.driver.name, name)
    versions: list[str] = []
    add = world.kube.add

    def watched(kind, item):
        stored = add(kind, item)
        if kind == "persistentvolumes":
            versions.append(stored["metadata"]["resourceVersion"])
            world.watcher_queue().add_events({key: versions[-1]})
        return stored

    world.kube.add = watched
    volume = world.kube.get_volume(name)
    volume["status"] = {"phase": "Released"}
    watched("persistentvolumes", volume)
    assert due_keys(world.client) == [key]
    trips.clear()
    world._work(owner, world.messages.pop(0))
    world.watcher_queue().add_events({key: versions[-1]})
    assert due_keys(world.client) == []
    assert world.kube.kind("persistentvolumes") == {}
    assert [call for call, _ in world.kube.writes] == ["delete_volume", "remove_volume_finalizer"]
    del trips["add_events"]
    # The driver of this world supports snapshots, so the snapshot lock is taken too.
    assert trips == {"take": 1, "enter": 1, "acquire": 1, "done": 1}

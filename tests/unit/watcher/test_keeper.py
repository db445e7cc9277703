"""The keeper: registered drivers, data lost by Redis, and queue maintenance."""

from __future__ import annotations

import pytest

from watcher import keeper
from watcher.keeper import Keeper
from workers.errors import QueueUnavailable


class FakeRedis:
    def __init__(self):
        self.value = "e1"
        self.records = {}
        self.pumps = 0
        self.is_down = False

    def pump(self):
        self.pumps += 1
        return 0.2

    def epoch(self):
        if self.is_down:
            raise QueueUnavailable("away")
        return self.value

    def alive(self):
        return self.records


class Scene:
    def __init__(self):
        self.redis = FakeRedis()
        self.now = 0.0
        self.epochs = []
        self.drivers = []
        self.keeper = Keeper(
            self.redis,
            self.redis,
            self.redis,
            on_epoch=self.epochs.append,
            on_drivers=lambda drivers: self.drivers.append(list(drivers)),
            clock=lambda: self.now,
        )

    def step(self):
        self.now += 1
        self.keeper.step()


@pytest.fixture
def scene():
    return Scene()


def test_the_record_of_what_belongs_to_no_driver_is_not_told_as_one(scene, monkeypatch):
    """A worker that runs only the snapshot-controller registers without a driver name."""
    said = []
    monkeypatch.setattr(keeper._log, "info", lambda _, **fields: said.append(fields["drivers"]))
    scene.redis.records = {"": {"name": ""}, "alpha": {"name": "alpha"}}
    scene.step()
    assert said == [["alpha"]]


def test_first_sight_and_lost_data_are_told_apart(scene):
    """C-148: only a changed epoch means that everything must be written again."""
    scene.step()
    scene.step()
    scene.redis.value = "e2"
    scene.step()
    assert scene.epochs == [True, False]
    assert scene.keeper.epoch == "e2"


def test_drivers_are_told_only_when_they_change_and_stay_known(scene):
    scene.redis.records = {"foo": {"name": "foo"}}
    scene.step()
    scene.step()
    scene.redis.records = {}
    scene.step()
    scene.redis.records = {"bar": {}}
    scene.step()
    assert scene.drivers == [["foo"], ["bar", "foo"]]


def test_pump_runs_each_step_but_looks_are_rarer(scene):
    scene.redis.records = {"foo": {"name": "foo"}}
    scene.step()
    scene.redis.is_down = True
    scene.keeper.step()
    assert scene.redis.pumps == 2
    scene.now += 1
    with pytest.raises(QueueUnavailable):
        scene.keeper.step()


def test_each_step_looks_while_no_driver_is_known(scene):
    """A new worker's driver is found without waiting a whole period."""
    scene.step()
    scene.redis.records = {"foo": {"name": "foo"}}
    scene.keeper.step()
    assert scene.drivers == [["foo"]]

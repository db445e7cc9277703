"""How often the copies of pauses are read, and what is told of it (COR-14)."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

from workers.engine.pausecopies import CLASS, DRIVER, Copy, PauseCopies, PauseRestorer
from workers.kube.errors import ForbiddenError, NotFoundError
from workers.queue.pauses import Said

SAID = Said("firmware", 0, 1)


class World:
    """A ConfigMap with `data`, or an error, and what is restored of it."""

    def __init__(self, data=None):
        self.data, self.error, self.reads, self.now = data, None, 0, 100.0
        self.restored, self.is_news, self.applied = [], True, []
        kube = SimpleNamespace(get=self.get, apply_config_map=self.applied.append)
        self.copies = PauseCopies(kube, "system")
        pauses = SimpleNamespace(restore_driver=self.restore, restore_class=self.restore)
        self.restorer = PauseRestorer(self.copies, pauses, clock=lambda: self.now)

    def get(self, *_where, **_more):
        self.reads += 1
        if self.error is not None:
            raise self.error
        return {} if self.data is None else {"data": self.data}

    def restore(self, name, said):
        self.restored.append((name, said))
        return self.is_news


def entry(kind, name):
    record = {"kind": kind, "name": name, "reason": "firmware", "until_ms": 0, "said_ms": 1}
    return json.dumps(record)


def test_copies_are_read_once_a_second():
    """One reading serves all drivers that are announced together; a second later it is old."""
    world = World()
    for seconds, reads in ((0, 1), (0.5, 1), (0.5, 2), (0.75, 2)):
        world.now += seconds
        world.restorer.restore("claims|d")
        assert world.reads == reads


def test_a_missing_right_is_told_once(caplog):
    """Roles of before: work goes on, and the log is not filled by it."""
    world = World()
    world.error = ForbiddenError(403, "Forbidden", "no")
    for _ in range(3):
        world.now += 10
        world.restorer.restore("claims|d")
    assert caplog.messages.count("pauses are not restored after a loss of Redis") == 1


@pytest.mark.parametrize("is_news", [True, False])
def test_a_restored_pause_is_told(caplog, is_news):
    """One that Redis still had is no news."""
    world = World({"driver.d": entry(DRIVER, "d")})
    world.is_news = is_news
    world.restorer.restore("claims|d")
    assert caplog.messages.count("pause is restored") == is_news


def test_a_lane_gets_its_own_driver_s_pause_and_every_class_s():
    """A driver on a node has its driver's; another driver's is none of it."""
    data = {"1": entry(DRIVER, "d"), "2": entry(DRIVER, "other"), "3": entry(CLASS, "gold")}
    world = World(data)
    world.restorer.restore("claims|d@node-1")
    assert world.restored == [("d@node-1", SAID), ("gold", SAID)]


def test_a_pause_is_written_and_removed_by_its_own_entry():
    """Others' entries stay as they are; what is not there is not removed."""
    world = World()
    world.copies.keep(Copy(DRIVER, "d", SAID))
    (body,) = world.applied
    assert body["metadata"] == {"name": "csi-fleet-pauses", "namespace": "system"}
    assert {name: json.loads(text) for name, text in body["data"].items()} == {
        "driver.d": json.loads(entry(DRIVER, "d"))
    }
    world.copies.drop(DRIVER, "d")
    assert len(world.applied) == 1
    world.data = {"driver.d": "{}", "driver.e": "{}"}
    world.copies.drop(DRIVER, "d")
    assert world.applied[1]["data"] == {"driver.d": None}


def test_no_pause_at_all_is_no_trouble():
    """The ConfigMap without entries, and none."""
    world = World()
    assert world.copies.all() == []
    world.error = NotFoundError(404, "NotFound", "no")
    assert world.copies.all() == []

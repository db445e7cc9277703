"""Limits are declared once permitted, again when Redis may have lost them, and state the reason."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from workers.errors import ApiError, QueueUnavailable
from workers.kube.errors import Unreachable
from workers.queue.declaring import Declared
from workers.queue.limits import LaneLimits

LIMITS = LaneLimits(3, 2.0, 4, 5, 1.5)
ROW = (3, 2.0, 4, 5, 1500)
AWAY = QueueUnavailable("redis: away")


class World:
    """Redis, the API server and the broker; `error` makes one of them unavailable."""

    def __init__(self, *, has_before=True):
        self.error = None
        self.asked, self.declared, self.beaten, self.sent, self.held = [], [], [], [], []
        wakeups = SimpleNamespace(publish=self.sent.append, hold=self.held.append)
        before = self.before if has_before else None
        scripts = SimpleNamespace(run=self.run)
        beats = SimpleNamespace(run_each=self.run_each)
        self.limits = Declared(scripts, beats, wakeups, before)

    def before(self, lane):
        self.asked.append(lane)
        if isinstance(self.error, ApiError):
            raise self.error

    def run(self, name, *row):
        assert name == "limits"
        if isinstance(self.error, QueueUnavailable):
            raise self.error
        self.declared.append(row)
        return f"of {row[0]}"

    def run_each(self, name, rows):
        assert name == "limits"
        self.beaten += rows
        return [f"of {row[0]}" for row in rows]


def test_a_lane_is_declared_at_once_after_what_has_to_be_known_of_it():
    world = World()
    world.limits.set("one", LIMITS)
    assert (world.asked, world.declared) == (["one"], [("one", *ROW, 0)])
    assert (world.sent, world.held) == (["of one"], [])
    world.limits.declare()
    assert len(world.declared) == 1, "declared is declared"


@pytest.mark.parametrize("error", [Unreachable("no route"), AWAY], ids=["API server", "Redis"])
def test_what_could_not_be_declared_is_tried_again(error):
    world = World()
    world.error = error
    if error is AWAY:
        with pytest.raises(QueueUnavailable):
            world.limits.set("one", LIMITS)
    else:
        world.limits.set("one", LIMITS)
    world.limits.again(is_new_life=False)
    assert (world.declared, world.beaten, world.sent) == ([], [], [])
    world.error = None
    world.limits.declare()
    assert (world.declared, world.sent) == ([("one", *ROW, 0)], ["of one"])


def test_the_heartbeat_declares_them_all_and_leaves_wake_ups_to_others():
    world = World()
    for lane in ("one", "two"):
        world.limits.set(lane, LIMITS)
    world.limits.again(is_new_life=False)
    assert world.beaten == [("one", *ROW, 0), ("two", *ROW, 0)]
    assert world.held == ["of one", "of two"]
    assert (len(world.declared), world.sent) == (2, ["of one", "of two"]), "as before"


def test_in_a_new_life_they_wait_for_what_has_to_be_known_first():
    """Calls of dead processes may be forgotten: the next declaration says so, once."""
    world = World()
    world.limits.set("one", LIMITS)
    world.limits.again(is_new_life=True)
    assert world.beaten == [], "an operator's pause comes first"
    assert world.asked == ["one"], "and is not read by the heartbeat"
    world.limits.declare()
    assert world.asked == ["one", "one"]
    assert world.declared[1:] == [("one", *ROW, 1)]
    world.limits.again(is_new_life=False)
    world.limits.set("one", LIMITS)
    assert (world.beaten, world.declared[2:]) == ([("one", *ROW, 0)], [("one", *ROW, 0)])


def test_where_nothing_has_to_be_known_the_heartbeat_declares_a_new_life():
    world = World(has_before=False)
    world.limits.set("one", LIMITS)
    world.limits.again(is_new_life=True)
    assert world.beaten == [("one", *ROW, 1)]
    world.limits.again(is_new_life=False)
    assert world.beaten[1:] == [("one", *ROW, 0)]
    world.limits.declare()
    assert len(world.declared) == 1

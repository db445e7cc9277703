"""Work without a driver, and events about lasting conditions, by the workers' shared clock."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tests.unit.engine.test_periodic import OTHER, SERVED, SharedPeriods
from workers.engine.controller import Due
from workers.engine.outcome import wait
from workers.engine.pausing import AGAIN_SECONDS, class_pause
from workers.engine.periodic import TICK_SECONDS, Periodic
from workers.queue.keys import Key


class Driverless:
    """A controller that works without a driver and also for one of the drivers."""

    spec = SimpleNamespace(needs_driver=False)

    def serves(self, driver):
        assert driver is not None, "there is no driver to ask about"
        return driver is SERVED

    def periodic(self, _context, driver):
        return [Due(Key("sweeps", driver.name if driver else "", "all"), 60.0)]


def make(controllers=(), lasting=None, added=None):
    return Periodic(
        lambda: [SERVED, OTHER],
        queue=SimpleNamespace(add=([] if added is None else added).extend),
        periods=SharedPeriods(),
        controllers=controllers,
        context=SimpleNamespace,
        lasting=lasting,
    )


def test_what_belongs_to_no_driver_is_due_without_one():
    """It is due once for the system, and once for each driver that the controller serves."""
    added = []
    make([Driverless()], added=added).tick()
    assert added == [Key("sweeps", "", "all"), Key("sweeps", "d", "all")]


def test_each_tick_looks_at_what_lasts():
    """Users get events about lasting holds even if no controller has periodic work."""
    ticks = []
    worker = make(lasting=SimpleNamespace(tick=lambda: ticks.append(1)))
    assert [worker.step() for _ in range(2)] == [TICK_SECONDS] * 2
    assert ticks == [1, 1]


@pytest.mark.parametrize(
    ("name", "paused", "outcome"),
    [
        pytest.param("gold", True, wait(AGAIN_SECONDS, "class gold is paused: audit"), id="paused"),
        pytest.param("gold", False, None, id="not paused"),
        pytest.param("", True, None, id="an object without class is nobody's"),
    ],
)
def test_a_paused_class_holds_back_its_objects(name, paused, outcome):
    """OPS-1: the pause becomes the key's reason, and the key is retried after seconds."""
    pause = SimpleNamespace(reason="audit") if paused else None
    asked = []
    pauses = SimpleNamespace(of_class=lambda one: asked.append(one) or pause)
    assert class_pause(SimpleNamespace(pauses=pauses), name) == outcome
    assert asked == ([name] if name else [])
    assert class_pause(SimpleNamespace(pauses=None), name) is None

"""Periodic work: all of it when a worker starts, then by the clock that all workers share."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from workers.engine.controller import Due
from workers.engine.periodic import Periodic
from workers.queue.keys import Key

SERVED, OTHER = (SimpleNamespace(name=name) for name in ("d", "other"))
POLL = Key("echoes", "d", "poll")


class SharedPeriods:
    """The period marks that Redis would hold; the test ends the periods."""

    def __init__(self) -> None:
        self.running: set[str] = set()

    def is_due(self, name: str, _seconds: float) -> bool:
        is_due = name not in self.running
        self.running.add(name)
        return is_due

    def restart(self, name: str, _seconds: float) -> None:
        self.running.add(name)


class Polling:
    """A controller that polls one of the drivers and has a tick of its own."""

    spec = SimpleNamespace(needs_driver=True)

    def __init__(self) -> None:
        self.firsts: list[bool] = []

    def serves(self, driver: Any) -> bool:
        return driver is SERVED

    def periodic(self, _context: Any, driver: Any) -> list[Due]:
        return [Due(Key("echoes", driver.name, "poll"), 60.0)]

    def tick(self, _context: Any, _drivers: Any, *, is_first: bool) -> None:
        self.firsts.append(is_first)


class World:
    """The queue and the period marks that all workers share."""

    def __init__(self) -> None:
        self.periods, self.added = SharedPeriods(), []

    def worker(self, controller: Any) -> Periodic:
        return Periodic(
            lambda: [SERVED, OTHER],
            queue=SimpleNamespace(add=self.added.extend),  # type: ignore[arg-type]
            periods=self.periods,  # type: ignore[arg-type]
            controllers=[controller],
            context=SimpleNamespace,  # type: ignore[arg-type]
        )

    def added_by(self, worker: Periodic) -> list[Key]:
        self.added.clear()
        worker.tick()
        return list(self.added)


@pytest.fixture
def world() -> World:
    return World()


def test_a_start_asks_for_everything_and_each_period_once_more(world):
    """A start asks even during a peer's period, because the old process may have lost a request."""
    first, second = world.worker(Polling()), world.worker(Polling())
    assert world.added_by(first) == [POLL]
    assert world.added_by(second) == [POLL]
    assert world.added_by(first) == world.added_by(second) == []
    world.periods.running.clear()
    assert world.added_by(second) == [POLL]
    assert world.added_by(first) == [], "its fellow did it"


def test_a_controller_hears_once_that_its_process_starts(world):
    controller = Polling()
    worker = world.worker(controller)
    for _ in range(3):
        worker.step()
    assert controller.firsts == [True, False, False]

"""Capacity publishing as the engine runs it: built once, ticked, limited."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.support.fake_cluster import World
from workers.config.settings import CapacitySettings, Settings
from workers.controllers.capacity.controller import CONTROLLER
from workers.controllers.capacity.publishing import Publishing, publishing_of
from workers.engine.controller import Means
from workers.engine.outcome import Action
from workers.errors import ConfigError
from workers.kube import paths
from workers.observability.metrics import Metrics
from workers.queue.keys import capacity_key

ABLE = frozenset({"CREATE_DELETE_VOLUME", "GET_CAPACITY"})
OLD = paths.CAPACITIES.at("v1beta1")


def driver(*, controller=ABLE, **capacity):
    settings = Settings(capacity=CapacitySettings(**{"enabled": True, **capacity}))
    return World(settings, controller=controller).driver


class Told:
    """A fake of the process's part that records the calls of the clock."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def start(self, drivers: Any) -> None:
        self.calls.append(("start", list(drivers)))

    def tick(self, drivers: Any) -> None:
        self.calls.append(("tick", list(drivers)))


@pytest.mark.parametrize(
    ("is_first", "expected"),
    [(True, ["start", "tick"]), (False, ["tick"])],
    ids=["first tick of the process", "later ticks"],
)
def test_only_the_first_tick_polls_at_once(is_first, expected):
    told, drivers = Told(), [driver()]
    context: Any = SimpleNamespace(parts={"capacity": told})
    CONTROLLER.tick(context, drivers, is_first=is_first)
    assert told.calls == [(call, drivers) for call in expected]


def test_without_its_part_nothing_ticks():
    """The process runs only another controller."""
    context: Any = SimpleNamespace(parts={})
    CONTROLLER.tick(context, [driver()], is_first=True)
    assert publishing_of(context) is None


def means(redis_client, served):
    settings = Settings(capacity=CapacitySettings(enabled=True, namespace="ns", ownerref_level=-1))
    kube = SimpleNamespace(is_served=lambda resource: resource in served, get_by_kind=None)
    unused: Any = cast("Any", None)
    return Means(
        settings=settings,
        redis=redis_client,
        seal=unused,
        kube=cast("Any", kube),
        queue=unused,
        catalog=unused,
        periods=unused,
        metrics=Metrics(),
    )


PARTS = {"provisioner": SimpleNamespace(clusters=None)}


def test_it_is_ready_once_it_is_built(redis_client):
    """The served version is known before the first reconcile (CAP-002)."""
    built = CONTROLLER.build(means(redis_client, {OLD}), PARTS)
    assert isinstance(built, Publishing)
    assert built.resource == OLD
    with pytest.raises(ConfigError):
        CONTROLLER.build(means(redis_client, ()), PARTS)


def test_what_it_asks_of_the_engine():
    """It takes no locks, has no period, and makes at most `--capacity-threads` calls at once."""
    one = driver(threads=7)
    key = capacity_key(one.queue_name, "poll")
    context: Any = SimpleNamespace(parts={})
    assert CONTROLLER.locks(key, one) == ()
    assert CONTROLLER.periodic(context, one) == ()
    assert CONTROLLER.limits(one) == {"capacity": 7}
    assert CONTROLLER.sync(context, one, key, cast("Any", None)).action is Action.WAIT


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, True),
        ({"enabled": False}, False),
        ({"controller": frozenset({"CREATE_DELETE_VOLUME"})}, False),
    ],
    ids=["wanted and told", "not wanted", "not told"],
)
def test_cap012_which_drivers_it_serves(fields, expected):
    assert CONTROLLER.serves(driver(**fields)) is expected

"""Capacity publishing: for which drivers, with which owner, at which rate, and its refreshes."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.support.capacity_world import CapacityWorld
from tests.support.fake_cluster import CAPABILITIES, DRIVER
from tests.support.taking import take_all
from workers.config.settings import CapacitySettings, KubeSettings, Settings
from workers.controllers.capacity import publishing as module
from workers.controllers.capacity.publishing import Publishing
from workers.errors import ApiError, ConfigError, State
from workers.kube import paths
from workers.observability.metrics import Metrics
from workers.queue.keys import capacity_key

REFUSED = ApiError(403, "Forbidden", "no right")
POD = {"metadata": {"name": "prov", "uid": "pod-1"}}


class Discovery:
    """An API server that serves some versions of the resource."""

    def __init__(self, *versions: str, error: Exception | None = None) -> None:
        self.versions, self.error = versions, error
        self.asked: list[str] = []

    def is_served(self, resource: Any) -> bool:
        self.asked.append(resource.version)
        if self.error is not None:
            raise self.error
        return resource.version in self.versions

    def get_by_kind(self, _api: str, kind: str, namespace: str, name: str) -> Any:
        self.asked.append(f"{kind} {namespace}/{name}")
        return POD


def publishing_of(kube=None, *, store=None, sleep=None, rate=None, **capacity):
    capacity = {"enabled": True, "namespace": "ns", "pod_name": "prov"} | capacity
    settings = Settings(kube=rate or KubeSettings(), capacity=CapacitySettings(**capacity))
    return Publishing(
        settings,
        kube=cast("Any", kube),
        store=cast("Any", store),
        queue=cast("Any", None),
        catalog=cast("Any", None),
        clusters=cast("Any", None),
        periods=cast("Any", None),
        sleep=sleep or (lambda _seconds: None),
    )


@pytest.mark.parametrize(
    ("versions", "resource", "asked"),
    [
        pytest.param(["v1", "v1beta1"], paths.CAPACITIES, ["v1"], id="v1 is taken first"),
        pytest.param(
            ["v1beta1"], paths.CAPACITIES.at("v1beta1"), ["v1", "v1beta1"], id="an old cluster"
        ),
    ],
)
def test_cap002_the_served_version_is_used(versions, resource, asked):
    kube = Discovery(*versions)
    publishing = publishing_of(kube, ownerref_level=-1)
    publishing.prepare()
    assert (publishing.resource, kube.asked) == (resource, asked)


@pytest.mark.parametrize(
    ("kube", "message"),
    [
        pytest.param(
            Discovery(), "does not serve CSIStorageCapacity objects", id="no version is served"
        ),
        pytest.param(Discovery(error=REFUSED), "discovery failed", id="refused"),
    ],
)
def test_cap070_a_cluster_without_capacity_objects_ends_the_process(kube, message):
    with pytest.raises(ConfigError, match=message) as caught:
        publishing_of(kube).prepare()
    assert caught.value.exit_code == 255


def test_without_the_flag_nothing_is_asked_at_the_start():
    """A process that publishes nothing needs neither the API nor POD_NAME."""
    kube = Discovery(error=REFUSED)
    publishing_of(kube, enabled=False, pod_name="").prepare()
    assert kube.asked == []


def test_cap060_the_owner_is_looked_up_once_and_stands_in_every_object(redis_client):
    kube = Discovery("v1")
    publishing = publishing_of(kube, ownerref_level=0)
    publishing.prepare()
    found = publishing.publisher(CapacityWorld(redis_client).driver)
    assert (found.owner["uid"], found.owner["controller"]) == ("pod-1", True)
    assert (found.namespace, found.api_version) == ("ns", "storage.k8s.io/v1")
    assert kube.asked == ["v1", "Pod ns/prov"]


@pytest.mark.parametrize(
    ("qps", "burst", "expected"),
    [
        pytest.param(-1, 5, None, id="no limit"),
        pytest.param(0, 0, (5.0, 10), id="client-go's defaults"),
        pytest.param(0, 3, (5.0, 3), id="default rate"),
        pytest.param(2.5, 0, (2.5, 10), id="default burst"),
        pytest.param(2.5, 3, (2.5, 3), id="as the flags say"),
    ],
)
def test_cap071_the_rate_of_writes(redis_client, qps, burst, expected):
    """A value below zero means no limit; zero means client-go's default."""
    turns, slept = [], []

    def turn(driver, *, qps, burst):
        turns.append((driver, qps, burst))
        return 0.25

    publishing = publishing_of(
        store=SimpleNamespace(turn=turn),
        sleep=slept.append,
        rate=KubeSettings(capacity_qps=qps, capacity_burst=burst),
    )
    publishing.wait_for_turn(CapacityWorld(redis_client).driver)
    assert turns == ([] if expected is None else [(DRIVER, *expected)])
    assert slept == ([] if expected is None else [0.25])


# What causes a refresh.


@pytest.fixture
def world(redis_client):
    world = CapacityWorld(redis_client)
    world.add_class("fast")
    world.add_class("slow")
    world.set_zones("z1", "z2")
    world.tick()
    world.clear()
    return world


def asked_for(world):
    """Return the keys that the next tick adds, with the delay of a refresh."""
    found, add = [], world.queue.add

    def added(keys, *, delay_seconds=0.0):
        keys = list(keys)
        found.extend((key.object, delay_seconds) for key in keys)
        add(keys, delay_seconds=delay_seconds)

    world.queue.add = added
    world.publishing.tick([world.driver])
    world.queue.add = add
    return sorted(found)


def volume_in(zone):
    terms = [{"matchExpressions": [{"key": "zone", "operator": "In", "values": [zone]}]}]
    return {"spec": {"nodeAffinity": {"required": {"nodeSelectorTerms": terms}}}}


def test_cap030_a_deleted_volume_refreshes_every_class_of_its_segment(world):
    world.publishing.deleted(world.driver, volume_in("z2"))
    assert asked_for(world) == [("fast/zone=z2", 1.0), ("slow/zone=z2", 1.0)]
    assert asked_for(world) == []


def test_cap030_a_failed_attempt_refreshes_its_class(world):
    world.publishing.provisioned(world.driver, "fast", State.FINISHED)
    assert asked_for(world) == [("fast/zone=z1", 1.0), ("fast/zone=z2", 1.0)]


@pytest.mark.parametrize("outcome", [State.FINISHED, State.BACKGROUND])
def test_an_attempt_for_no_class_refreshes_nothing(world, outcome):
    """An attempt without a class must not count as a deletion, which has no class either."""
    world.publishing.provisioned(world.driver, "", outcome)
    assert asked_for(world) == []


def test_cap012_nothing_is_noted_or_asked_for_of_a_driver_that_tells_no_capacity(world):
    world.driver = replace(world.driver, controller_capabilities=CAPABILITIES)
    world.publishing.start([world.driver])
    world.publishing.provisioned(world.driver, "fast", State.FINISHED)
    world.publishing.deleted(world.driver, volume_in("z2"))
    assert asked_for(world) == []
    assert world.due == []


def test_so_many_changes_are_remembered_and_no_more(world, monkeypatch):
    """The next poll covers the rest: a burst must not fill the memory."""
    monkeypatch.setattr(module, "_MAX_CHANGES", 1)
    for zone in ("z1", "z2"):
        world.publishing.deleted(world.driver, volume_in(zone))
    assert [text for text, _ in asked_for(world)] == ["fast/zone=z1", "slow/zone=z1"]


def test_c113_a_tick_without_a_change_asks_nobody(world):
    assert asked_for(world) == []


def test_c102_a_new_segment_asks_for_a_plan(world):
    world.set_zones("z1", "z3")
    assert asked_for(world) == [("plan", 0.0)]


def test_cap030_each_driver_is_polled_at_the_start_and_by_its_period(redis_client):
    """The poll at the start begins the period, so the first tick adds no poll."""
    world = CapacityWorld(redis_client)
    other = replace(world.driver, name="other", queue_name="other")
    world.queue.set_limits("capacity|other", 100)
    world.publishing.start([world.driver, other])
    polls = {capacity_key(name, "poll") for name in (DRIVER, "other")}
    assert set(world.due) == polls
    for name in (DRIVER, "other"):
        for lease in take_all(world.queue, name, "capacity"):
            world.queue.done(lease)
    world.publishing.tick([world.driver, other])
    assert polls.isdisjoint(world.due)


def test_cap080_of_several_drivers_each_has_its_own_gauges(redis_client):
    """A single driver has no name in its labels, as upstream."""
    world = CapacityWorld(redis_client)
    world.add_class("fast")
    world.set_zones("z1")
    metrics = world.publishing._metrics = Metrics()
    silent = replace(world.driver, name="none", controller_capabilities=CAPABILITIES)
    value = metrics.registry.get_sample_value

    def goals():
        labels = ("", DRIVER, "other")
        name = "csistoragecapacities_desired_goal"
        return [value(name, {"driver_name": label}) for label in labels]

    world.publishing.tick([world.driver, silent])
    assert goals() == [1, None, None]
    other = replace(world.driver, name="other", queue_name="other")
    world.publishing.tick([world.driver, other])
    assert goals()[1:] == [1, 0]

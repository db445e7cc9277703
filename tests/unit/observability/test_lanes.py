"""Figures of the driver queues in Redis as metrics."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry

from workers.errors import QueueUnavailable
from workers.observability.lanes import LaneCollector
from workers.queue.limits import LaneLimits, LaneStats


def lane(name, **figures):
    defaults = {"ready": 0, "retry": 0, "running": 0, "head_age_seconds": 0.0, "limits": None}
    return {name: LaneStats(lane=name, **(defaults | figures))}


def registry(read, *sizes):
    found = CollectorRegistry()
    found.register(LaneCollector(read, *sizes))
    return found


def test_figures_of_a_lane():
    figures = registry(lambda: lane(
        "claims|d%7Cx", ready=1, retry=2, running=3, delayed=4, blocked=5,
        head_age_seconds=7.5, paused={"driver": "open"},
        limits=LaneLimits(9, 0, 0),
    ))  # fmt: skip
    labels = {"kind": "claims", "driver_name": "d|x"}
    by_state = {
        state: figures.get_sample_value("csi_fleet_keys", labels | {"state": state})
        for state in ("ready", "retry", "running", "delayed", "blocked")
    }
    assert list(by_state.values()) == [1, 2, 3, 4, 5]
    assert figures.get_sample_value("csi_fleet_keys_head_age_seconds", labels) == 7.5
    assert figures.get_sample_value("csi_fleet_lane_concurrency_limit", labels) == 9
    assert figures.get_sample_value("csi_fleet_lane_paused", labels | {"pause": "driver"}) == 1


def test_depth_is_what_waits_over_all_drivers():
    """L-096: there is one queue per kind, as the dashboards of the Go sidecars expect."""
    lanes = lane("claims|a", ready=1, running=9) | lane("claims|b", retry=2, delayed=9)
    found = registry(lambda: lanes).get_sample_value("workqueue_depth", {"name": "claims"})
    assert found == 3


@pytest.mark.parametrize(
    ("limits", "running", "paused", "seconds"),
    [
        pytest.param(LaneLimits(2), 1, {}, 7.5, id="no thread took it"),
        pytest.param(LaneLimits(2), 2, {}, 0, id="its limit is reached"),
        pytest.param(LaneLimits(2), 0, {"operator": "why"}, 0, id="paused"),
        pytest.param(LaneLimits(2, 1.0), 0, {}, 0, id="perhaps its rate"),
        pytest.param(LaneLimits(2, total=1), 0, {}, 0, id="perhaps another lane's turn"),
        pytest.param(None, 0, {}, 0, id="nobody declared limits"),
    ],
)
def test_a_key_is_untaken_when_nothing_but_a_thread_is_missing(limits, running, paused, seconds):
    """CsiFleetKeysNotTaken alerts on a condition that more workers would fix."""
    found = registry(
        lambda: lane(
            "claims|a", ready=1, running=running, head_age_seconds=7.5, limits=limits, paused=paused
        )
    )
    labels = {"kind": "claims", "driver_name": "a"}
    assert found.get_sample_value("csi_fleet_untaken_age_seconds", labels) == seconds


def test_a_lane_without_limits_shows_none():
    figures = registry(lambda: lane("claims|a"))
    labels = {"kind": "claims", "driver_name": "a"}
    assert figures.get_sample_value("csi_fleet_lane_concurrency_limit", labels) is None


def test_sizes_without_a_lane():
    figures = registry(dict, lambda: {"intents": 2, "unsaved_volumes": 3})
    assert figures.get_sample_value("csi_fleet_intents") == 2
    assert figures.get_sample_value("csi_fleet_unsaved_volumes") == 3


def test_redis_that_does_not_answer_costs_the_figures_not_the_scrape():
    def fail():
        raise QueueUnavailable("no route")

    figures = registry(fail)
    assert [f.name for f in figures.collect()] == ["csi_fleet_queue_up"]
    assert figures.get_sample_value("csi_fleet_queue_up") == 0
    assert registry(dict).get_sample_value("csi_fleet_queue_up") == 1


def test_registering_asks_nothing_of_redis():
    calls = []
    registry(lambda: calls.append("read") or {})
    assert calls == []

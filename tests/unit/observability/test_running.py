"""Work in progress is timed (L-096)."""

from __future__ import annotations

import contextlib

from workers.observability.metrics import Metrics
from workers.observability.running import RunningWork


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


def gauges(metrics, name="claims"):
    prefix = "workqueue_"
    return tuple(
        metrics.registry.get_sample_value(prefix + suffix, {"name": name})
        for suffix in ("unfinished_work_seconds", "longest_running_processor_seconds")
    )


def test_gauges_follow_the_work_in_hand():
    clock, metrics = Clock(), Metrics()
    running = RunningWork(metrics, clock)
    with running.work("claims"):
        clock.now += 3
        with running.work("claims"):
            clock.now += 1
            running.publish()
            assert gauges(metrics) == (5, 4)
        running.publish()
        assert gauges(metrics) == (4, 4)
    running.publish()
    assert gauges(metrics) == (0, 0)


def test_failed_work_is_timed_and_over():
    clock, metrics = Clock(), Metrics()
    running = RunningWork(metrics, clock)
    with contextlib.suppress(KeyError), running.work("csistoragecapacity"):
        clock.now += 2
        raise KeyError
    running.publish()
    assert gauges(metrics, "csistoragecapacity") == (0, 0)
    labels = {"name": "csistoragecapacity"}
    total = metrics.registry.get_sample_value("workqueue_work_duration_seconds_sum", labels)
    assert total == 2

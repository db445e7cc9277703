"""Exports figures of the queues as metrics, read from Redis at each scrape.

Only the watcher exports them, because they are the same for all processes. If Redis does not
answer, the scrape has no queue figures, and `csi_fleet_queue_up` is 0.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Protocol
from urllib.parse import unquote

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from workers.errors import TransientError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

_STATES = ("ready", "retry", "running", "delayed", "blocked")
_LABELS = ("kind", "driver_name")
_HELP = {"redis_memory_ratio": "Share of Redis' maxmemory in use, 0 to 1."}


class LaneLimit(Protocol):
    """The limits of a queue."""

    @property
    def concurrency(self) -> int:
        """Most keys that run at once."""


class LaneFigures(Protocol):
    """Counts and ages of one queue, such as `workers.queue.limits.LaneStats`."""

    @property
    def ready(self) -> int:
        """Waiting keys without a failed attempt."""

    @property
    def retry(self) -> int:
        """Waiting keys to retry."""

    @property
    def running(self) -> int:
        """Keys leased by a worker."""

    @property
    def delayed(self) -> int:
        """Keys that are due later."""

    @property
    def blocked(self) -> int:
        """Keys that wait for a lock, which another key of the same volume holds."""

    @property
    def head_age_seconds(self) -> float:
        """Seconds that the next key has been waiting."""

    @property
    def untaken_seconds(self) -> float:
        """Seconds that the next key has been waiting although the limits allow it."""

    @property
    def paused(self) -> Mapping[str, str]:
        """Reason by kind of pause."""

    @property
    def limits(self) -> LaneLimit | None:
        """The limits, None if no worker declared any."""


class LaneCollector(Collector):
    """Turns figures of the queues into gauges.

    Args:
        read: reads the figures from Redis, by queue (`<kind>|<driver>`).
        read_sizes: reads figures that belong to no queue, by name: `intents`, `unsaved_volumes`.
        work_queues: kind -> name of upstream's work queue; other kinds keep their name (L-096).
    """

    def __init__(
        self,
        read: Callable[[], Mapping[str, LaneFigures]],
        read_sizes: Callable[[], Mapping[str, float]] = dict,
        work_queues: Mapping[str, str] | None = None,
    ) -> None:
        self._read = read
        self._work_queues = work_queues or {}
        self._read_sizes = read_sizes

    def describe(self) -> list[GaugeMetricFamily]:
        """Return nothing, so that the registration needs no Redis."""
        return []

    def collect(self) -> Iterable[GaugeMetricFamily]:
        """Yield all gauges; only `csi_fleet_queue_up` if Redis does not answer."""
        up = GaugeMetricFamily("csi_fleet_queue_up", "Whether Redis answered: 1 yes, 0 no.")
        try:
            lanes, sizes = self._read(), self._read_sizes()
        except (TransientError, OSError):
            up.add_metric([], 0)
            return [up]
        up.add_metric([], 1)
        return [
            up,
            *_lane_families(lanes),
            *_depths(lanes, self._work_queues),
            *_size_families(sizes),
        ]


def _lane_families(lanes: Mapping[str, LaneFigures]) -> list[GaugeMetricFamily]:
    keys = GaugeMetricFamily(
        "csi_fleet_keys", "Keys by lane and state.", labels=(*_LABELS, "state")
    )
    head = GaugeMetricFamily(
        "csi_fleet_keys_head_age_seconds",
        "Seconds the next key of the lane has been waiting.",
        labels=_LABELS,
    )
    untaken = GaugeMetricFamily(
        "csi_fleet_untaken_age_seconds",
        "Seconds the next key of the lane has been waiting though the lane's limits allow it.",
        labels=_LABELS,
    )
    limit = GaugeMetricFamily(
        "csi_fleet_lane_concurrency_limit",
        "Keys of the lane that may run at once, over all workers.",
        labels=_LABELS,
    )
    paused = GaugeMetricFamily(
        "csi_fleet_lane_paused", "Pauses in force, by kind of pause.", labels=(*_LABELS, "pause")
    )
    for lane, figures in lanes.items():
        kind, _, driver = lane.partition("|")
        labels = [unquote(kind), unquote(driver)]
        for state in _STATES:
            keys.add_metric([*labels, state], getattr(figures, state))
        head.add_metric(labels, figures.head_age_seconds)
        untaken.add_metric(labels, figures.untaken_seconds)
        if figures.limits is not None:
            limit.add_metric(labels, figures.limits.concurrency)
        for pause in figures.paused:
            paused.add_metric([*labels, pause], 1)
    return [keys, head, untaken, limit, paused]


def _depths(
    lanes: Mapping[str, LaneFigures], work_queues: Mapping[str, str]
) -> list[GaugeMetricFamily]:
    """Return `workqueue_depth`: keys of all drivers that are due but do not run yet (L-096)."""
    depths: dict[str, int] = defaultdict(int)
    for lane, figures in lanes.items():
        kind = unquote(lane.partition("|")[0])
        depths[work_queues.get(kind, kind)] += figures.ready + figures.retry
    family = GaugeMetricFamily("workqueue_depth", "Current depth of workqueue", labels=("name",))
    for name, depth in depths.items():
        family.add_metric([name], depth)
    return [family]


def _size_families(sizes: Mapping[str, float]) -> list[GaugeMetricFamily]:
    return [
        GaugeMetricFamily(
            f"csi_fleet_{name}",
            _HELP.get(name, f"Number of {name.replace('_', ' ')}."),
            value=size,
        )
        for name, size in sizes.items()
    ]

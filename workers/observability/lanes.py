"""Exports figures about the queues as metrics, read from Redis at each scrape.

Only the watcher exports them, because they would be the same in all processes. If Redis does not
answer, the scrape contains no queue figures, and `csi_fleet_queue_up` is 0.
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
_HELP = {"redis_memory_ratio": "Share of the Redis server's maxmemory that is in use, from 0 to 1."}


class LaneLimit(Protocol):
    """The limits of a queue."""

    @property
    def concurrency(self) -> int:
        """The maximum number of keys that may run at once."""


class LaneFigures(Protocol):
    """The counts and ages of one queue; `workers.queue.limits.LaneStats` has these fields."""

    @property
    def ready(self) -> int:
        """Number of waiting keys that have no failed attempt."""

    @property
    def retry(self) -> int:
        """Number of keys that are waiting for a retry."""

    @property
    def running(self) -> int:
        """Number of keys that are leased by a worker."""

    @property
    def delayed(self) -> int:
        """Number of keys that are due later."""

    @property
    def blocked(self) -> int:
        """Number of keys that are waiting for a lock that another key holds."""

    @property
    def head_age_seconds(self) -> float:
        """How many seconds the next key has been waiting."""

    @property
    def untaken_seconds(self) -> float:
        """How many seconds the next key has been waiting although the limits allow it to run."""

    @property
    def paused(self) -> Mapping[str, str]:
        """The reason for each kind of pause in force."""

    @property
    def limits(self) -> LaneLimit | None:
        """The limits of the queue; None if no worker has declared any."""


class LaneCollector(Collector):
    """Converts figures about the queues into gauges.

    Args:
        read: reads the figures from Redis, and returns a mapping from each queue
            (`<kind>|<driver>`) to its figures.
        read_sizes: reads figures that belong to no queue, such as `intents`, and returns them by
            name.
        work_queues: maps kinds to the names of upstream's work queues; all other kinds keep their
            names (L-096).
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
        """Return nothing, so that the collector can be registered while Redis is unavailable."""
        return []

    def collect(self) -> Iterable[GaugeMetricFamily]:
        """Yield all gauges; only `csi_fleet_queue_up` if Redis does not answer."""
        up = GaugeMetricFamily(
            "csi_fleet_queue_up", "Whether Redis answered: 1 means yes, 0 means no."
        )
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
        "csi_fleet_keys", "Number of keys, by lane and state.", labels=(*_LABELS, "state")
    )
    head = GaugeMetricFamily(
        "csi_fleet_keys_head_age_seconds",
        "Seconds the next key of the lane has been waiting.",
        labels=_LABELS,
    )
    untaken = GaugeMetricFamily(
        "csi_fleet_untaken_age_seconds",
        "Seconds the next key of the lane has been waiting although the lane's limits would allow "
        "it to run.",
        labels=_LABELS,
    )
    limit = GaugeMetricFamily(
        "csi_fleet_lane_concurrency_limit",
        "Number of the lane's keys that may run at the same time, across all workers.",
        labels=_LABELS,
    )
    paused = GaugeMetricFamily(
        "csi_fleet_lane_paused",
        "Pauses that are in effect, by kind of pause.",
        labels=(*_LABELS, "pause"),
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
    """Return `workqueue_depth`: how many keys of all drivers are due but not running (L-096)."""
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

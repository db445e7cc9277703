"""What waits in Redis? Lane figures as metrics, read when somebody scrapes.

The watcher exports them, for they are the same for all processes. A Redis that does not answer
costs the lane figures of that scrape and sets `csi_fleet_queue_up` to 0.
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

_STATES = ("ready", "retry", "ticketed", "running", "delayed", "blocked")
_LABELS = ("kind", "driver_name")


class LaneLimit(Protocol):
    """What a lane may do."""

    @property
    def concurrency(self) -> int:
        """Keys at once."""


class LaneFigures(Protocol):
    """Counts and ages of one lane; `workers.queue.limits.LaneStats` is one."""

    @property
    def ready(self) -> int:
        """First attempts that wait."""

    @property
    def retry(self) -> int:
        """Later attempts that wait."""

    @property
    def ticketed(self) -> int:
        """Admitted, with a message under way."""

    @property
    def running(self) -> int:
        """Held by a worker."""

    @property
    def delayed(self) -> int:
        """Due later."""

    @property
    def blocked(self) -> int:
        """Waiting for another key of the same volume."""

    @property
    def head_age_seconds(self) -> float:
        """How long the next key has been waiting."""

    @property
    def oldest_ticket_seconds(self) -> float:
        """Age of the oldest message nobody took."""

    @property
    def paused(self) -> Mapping[str, str]:
        """Reason by kind of pause."""

    @property
    def limits(self) -> LaneLimit | None:
        """Limits, if a worker declared any."""


class LaneCollector(Collector):
    """Turns lane figures into gauges.

    Args:
        read: figures by lane (`<kind>|<driver>`), from Redis.
        read_sizes: figures without a lane, by name: `intents`, `unsaved_volumes`, ...
        work_queues: upstream's work queue of each kind; other kinds keep their own name (L-096).
    """

    def __init__(
        self,
        read: Callable[[], Mapping[str, LaneFigures]],
        read_sizes: Callable[[], Mapping[str, int]] = dict,
        work_queues: Mapping[str, str] | None = None,
    ) -> None:
        self._read = read
        self._work_queues = work_queues or {}
        self._read_sizes = read_sizes

    def describe(self) -> list[GaugeMetricFamily]:
        """Name nothing, so that registering asks nothing of Redis."""
        return []

    def collect(self) -> Iterable[GaugeMetricFamily]:
        """Read and convert; only the up gauge when Redis does not answer."""
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
    ticket = GaugeMetricFamily(
        "csi_fleet_oldest_ticket_age_seconds",
        "Age of the oldest Celery message of the lane that no worker took.",
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
        ticket.add_metric(labels, figures.oldest_ticket_seconds)
        if figures.limits is not None:
            limit.add_metric(labels, figures.limits.concurrency)
        for pause in figures.paused:
            paused.add_metric([*labels, pause], 1)
    return [keys, head, ticket, limit, paused]


def _depths(
    lanes: Mapping[str, LaneFigures], work_queues: Mapping[str, str]
) -> list[GaugeMetricFamily]:
    """`workqueue_depth`: what could run but does not yet, over all drivers (L-096)."""
    depths: dict[str, int] = defaultdict(int)
    for lane, figures in lanes.items():
        kind = unquote(lane.partition("|")[0])
        depths[work_queues.get(kind, kind)] += figures.ready + figures.retry + figures.ticketed
    family = GaugeMetricFamily("workqueue_depth", "Current depth of workqueue", labels=("name",))
    for name, depth in depths.items():
        family.add_metric([name], depth)
    return [family]


def _size_families(sizes: Mapping[str, int]) -> list[GaugeMetricFamily]:
    return [
        GaugeMetricFamily(f"csi_fleet_{name}", f"Number of {name.replace('_', ' ')}.", value=size)
        for name, size in sizes.items()
    ]

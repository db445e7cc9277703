"""Combines all sources of metrics for a scrape, with upstream's labels.

A single process serves its own `Metrics`. Under `csi-fleet run`, the supervisor serves the metrics
of its children, the processes that it started. Each child writes its values to files in a shared
folder. No counts are lost when a child is restarted, because the counts of dead children are summed
and kept (`SharedMetrics`).
"""

from __future__ import annotations

import shutil
import struct
import threading
from typing import TYPE_CHECKING, Any, Final

from prometheus_client import CollectorRegistry, mmap_dict, multiprocess
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.gc_collector import GCCollector
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from workers.observability.metrics import GONE

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

MULTIPROCESS_VARIABLE: Final = "PROMETHEUS_MULTIPROC_DIR"
"""The environment variable that `run` sets for its child processes before it starts them."""

# These names are public in prometheus_client, but have no type annotations.
_MmapedDict: Any = mmap_dict.MmapedDict
_mark_process_dead: Any = multiprocess.mark_process_dead
_merge: Any = multiprocess.MultiProcessCollector.merge

# Labels that upstream has only in some setups; they are exported only if they have a value.
_OPTIONAL_LABELS: Final = {
    "csi_sidecar_operations_seconds": "migrated",
    "csistoragecapacities_desired_goal": "driver_name",
    "csistoragecapacities_desired_current": "driver_name",
    "csistoragecapacities_obsolete": "driver_name",
}

# No process has this id; the files with this id hold the sums for all dead processes.
_GONE: Final = 0

# Reading is repeated, because a file may still be empty or have just been removed.
_READ_ATTEMPTS: Final = 5


class SharedMetrics(Collector):
    """The folder through which a run's child processes export their metrics.

    Args:
        directory: the folder that the children's variable PROMETHEUS_MULTIPROC_DIR names.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._lock = threading.Lock()

    def prepare(self) -> None:
        """Empty the folder, so that a run starts from zero, as a single process does."""
        shutil.rmtree(self.directory, ignore_errors=True)
        self.directory.mkdir(mode=0o700, parents=True)

    def forget_process(self, pid: int) -> None:
        """Drop a dead child's gauges and keep its counts; call this after the child has exited."""
        with self._lock:
            _mark_process_dead(pid, str(self.directory))
            for kind in ("counter", "histogram"):
                self._add_to_gone(kind, self.directory / f"{kind}_{pid}.db")

    def describe(self) -> list[Metric]:
        """Return nothing, because the child processes determine which metrics there are."""
        return []

    def collect(self) -> Iterable[Metric]:
        """Return the sums over all children, both running and dead."""
        for attempt in range(_READ_ATTEMPTS):
            try:
                with self._lock:
                    files = sorted(str(path) for path in self.directory.glob("*.db"))
                    merged: Iterable[Metric] = _merge(files)
                return merged
            except (FileNotFoundError, RuntimeError, struct.error, ValueError):
                if attempt == _READ_ATTEMPTS - 1:
                    raise
        return []

    def _add_to_gone(self, kind: str, path: Path) -> None:
        if not path.exists():
            return
        gone = _MmapedDict(str(self.directory / f"{kind}_{_GONE}.db"))
        try:
            for key, value, _, _ in _MmapedDict.read_all_values_from_file(str(path)):
                gone.write_value(key, gone.read_value(key)[0] + value, 0.0)
        except (RuntimeError, struct.error, ValueError):
            return  # The child was killed while creating the file: nothing was counted yet.
        finally:
            gone.close()
            path.unlink()


class ScrapeMetrics(Collector):
    """Counts the scrapes themselves, under the metric names of Go's promhttp (F-030)."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._codes = {"200": 0, "500": 0, "503": 0}
        self._in_flight = 0

    def started(self) -> None:
        """Count a scrape that is beginning."""
        with self._lock:
            self._in_flight += 1

    def ended(self, code: int) -> None:
        """Count a scrape that has ended with this HTTP status."""
        with self._lock:
            self._in_flight -= 1
            self._codes[str(code)] = self._codes.get(str(code), 0) + 1

    def collect(self) -> Iterable[Metric]:
        """Return the two metrics about scrapes."""
        total = CounterMetricFamily(
            "promhttp_metric_handler_requests_total",
            "Total number of scrapes by HTTP status code.",
            labels=("code",),
        )
        with self._lock:
            for code, count in sorted(self._codes.items()):
                total.add_metric([code], count)
            in_flight = self._in_flight
        return [
            total,
            GaugeMetricFamily(
                "promhttp_metric_handler_requests_in_flight",
                "Current number of scrapes being served.",
                value=in_flight,
            ),
        ]


class Exposition(Collector):
    """All metrics of one endpoint.

    Args:
        sources: registries and collectors, such as `Metrics.registry` and `LaneCollector`.
    """

    def __init__(self, *sources: Collector) -> None:
        process = CollectorRegistry()
        ProcessCollector(registry=process)
        PlatformCollector(registry=process)
        GCCollector(registry=process)
        self.scrapes = ScrapeMetrics()
        self._sources = (*sources, process, self.scrapes)

    def collect(self) -> Iterator[Metric]:
        """Yield all metric families, without duplicates."""
        for source in self._sources:
            for family in source.collect():
                yield _without_empty_labels(family)


def _without_empty_labels(family: Metric) -> Metric:
    """Remove hidden gauges, the library's `_created` samples, and optional labels with no value."""
    optional = _OPTIONAL_LABELS.get(family.name)
    shown = Metric(family.name, family.documentation, family.type, family.unit)
    for sample in family.samples:
        if sample.name.endswith("_created") or sample.value == GONE:
            continue
        if optional and not sample.labels.get(optional):
            labels = {n: v for n, v in sample.labels.items() if n != optional}
            shown.samples.append(sample._replace(labels=labels))
        else:
            shown.samples.append(sample)
    return shown

"""Metrics and probes of a worker process, and of a whole `csi-fleet run`.

A process alone serves its own figures. Under `run` the supervisor serves those of all its children
and asks Redis for the lanes at each scrape.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from workers.controllers import catalogue
from workers.observability.exposition import Exposition, SharedMetrics
from workers.observability.http import Checks, DiagnosticsServer
from workers.observability.lanes import LaneCollector

if TYPE_CHECKING:
    from collections.abc import Callable

    from workers.config.settings import Settings
    from workers.observability.metrics import Metrics

METRICS_FOLDER: Final = "metrics"


def serve_process(settings: Settings, metrics: Metrics, checks: Checks) -> DiagnosticsServer | None:
    """The endpoint of one process, None unless `--http-endpoint` asks for it.

    Raises:
        ConfigError: nobody can listen there.
    """
    if not settings.http.endpoint:
        return None
    server = DiagnosticsServer(settings.http, Exposition(metrics.registry, lanes(settings)), checks)
    server.start()
    return server


def serve_run(
    settings: Settings,
    shared: SharedMetrics,
    redis_url: str,
    *,
    live: Callable[[], str],
    ready: Callable[[], str],
) -> DiagnosticsServer:
    """The endpoint of `csi-fleet run`: the sum of its children.

    Raises:
        ConfigError: nobody can listen there.
    """
    shown = Exposition(shared, lanes(settings, redis_url))
    server = DiagnosticsServer(settings.http, shown, Checks(live=live, ready=ready))
    server.start()
    return server


def shared_metrics(directory: Path) -> SharedMetrics:
    """The folder through which the children of a run export."""
    shared = SharedMetrics(directory / METRICS_FOLDER)
    shared.prepare()
    return shared


def lanes(settings: Settings, redis_url: str = "") -> LaneCollector:
    """What waits in Redis, read at each scrape."""
    # Only an endpoint needs it: a supervisor without one never loads Redis' client.
    from workers.queue.connection import connect  # noqa: PLC0415
    from workers.queue.inspect import read_sizes  # noqa: PLC0415
    from workers.queue.limits import read_stats  # noqa: PLC0415

    client = connect(redis_url or settings.redis.url_with_credentials(), socket_timeout_seconds=2.0)
    return LaneCollector(
        lambda: read_stats(client), lambda: read_sizes(client), catalogue.work_queues()
    )


def ready_file(directory: str, name: str) -> Callable[[], str]:
    """A readiness check: the part has said that its start is over."""

    def check() -> str:
        return "" if (Path(directory) / name).exists() else f"waiting for {name}"

    return check

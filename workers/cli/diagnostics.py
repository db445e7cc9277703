"""Serves the metrics and probes of a whole `csi-fleet run`; other processes serve their own.

The supervisor serves the metrics of all its child processes, and reads the driver queues from Redis
on every scrape. See `workers.process` for the other processes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from workers.observability.exposition import Exposition, SharedMetrics
from workers.observability.http import Checks, DiagnosticsServer
from workers.process import guarded, lanes

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from workers.config.settings import Settings

METRICS_FOLDER: Final = "metrics"


def serve_run(
    settings: Settings,
    shared: SharedMetrics,
    redis_url: str,
    *,
    live: Callable[[], str],
    ready: Callable[[], str],
) -> DiagnosticsServer:
    """Serve the probes of `csi-fleet run`, and the summed metrics of its child processes.

    Raises:
        ConfigError: the process cannot listen on the address.
    """
    shown = Exposition(shared, lanes(settings, redis_url))
    checks = guarded(settings, Checks(live=live, ready=ready))
    server = DiagnosticsServer(settings.http, shown, checks)
    server.start()
    return server


def shared_metrics(directory: Path) -> SharedMetrics:
    """Prepare the folder through which the child processes of a run export their metrics."""
    shared = SharedMetrics(directory / METRICS_FOLDER)
    shared.prepare()
    return shared

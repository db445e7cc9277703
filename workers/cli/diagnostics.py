"""Metrics and probes of a whole `csi-fleet run`; a process alone serves its own (process.py).

The supervisor serves the figures of all its children and asks Redis for the lanes at each scrape.
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
    """The endpoint of `csi-fleet run`: the sum of its children.

    Raises:
        ConfigError: nobody can listen there.
    """
    shown = Exposition(shared, lanes(settings, redis_url))
    checks = guarded(settings, Checks(live=live, ready=ready))
    server = DiagnosticsServer(settings.http, shown, checks)
    server.start()
    return server


def shared_metrics(directory: Path) -> SharedMetrics:
    """The folder through which the children of a run export."""
    shared = SharedMetrics(directory / METRICS_FOLDER)
    shared.prepare()
    return shared

"""The parts of every long-running process: API client, HTTP endpoint, ready and liveness files."""

from __future__ import annotations

import dataclasses
import os
import signal
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from workers.config.flags import Command
from workers.controllers import catalogue
from workers.loop import Loop
from workers.observability.exposition import Exposition
from workers.observability.http import Checks, DiagnosticsServer
from workers.observability.lanes import LaneCollector

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from workers.config.settings import Settings
    from workers.kube.client import Guard, KubeClient
    from workers.observability.metrics import Metrics

LIVE_FILE: Final = "live"
"""Name of the file in which a part of the program reports, every few seconds, what hangs.

The file is empty if nothing hangs.
"""
TELL_SECONDS: Final = 5.0
_ready: Final[set[Path]] = set()
"""The ready files of this process. They are also kept in memory, because writing a file can fail.
"""


def kube_client(
    settings: Settings,
    *,
    user_agent: str = "csi-fleet",
    metrics: Metrics | None,
    guard: Guard = lambda: None,
) -> KubeClient:
    """Return the API client of one process; it opens no connection yet.

    For `guard` see KubeClient.

    Raises:
        ConfigError: there is no usable client configuration.
    """
    from workers.engine.shadow.api import ShadowApi  # noqa: PLC0415
    from workers.kube.client import KubeClient  # noqa: PLC0415 - a supervisor never loads it
    from workers.observability.requests import api_observer  # noqa: PLC0415

    kube = settings.kube
    return (ShadowApi if settings.process.shadow else KubeClient).from_settings(
        kube.kubeconfig,
        kube.master,
        rate=kube.rate(),
        user_agent=user_agent,
        observer=api_observer(metrics) if metrics is not None else None,
        guard=guard,
    )


def guarded(settings: Settings, checks: Checks) -> Checks:
    """Return the checks; if so configured, the API server decides who may read the metrics."""
    if not settings.http.token_review:
        return checks
    from workers.kube.reviews import PathReaders  # noqa: PLC0415 - rarely needed

    client = kube_client(settings, metrics=None)
    readers = PathReaders(client, settings.http.metrics_path)
    return dataclasses.replace(checks, may_read=readers.allows)


def serve(settings: Settings, metrics: Metrics, checks: Checks) -> DiagnosticsServer | None:
    """Start the HTTP endpoint of one process; return None if `--http-endpoint` is not set.

    Raises:
        ConfigError: the process cannot listen on the address.
    """
    if not settings.http.endpoint:
        return None
    checks = guarded(settings, checks)
    # Only the watcher exports these figures. Otherwise every process would export the same figures,
    # and in node mode the worker of each node would read the figures of all nodes.
    shared = [lanes(settings)] if settings.command is Command.WATCHER else []
    server = DiagnosticsServer(settings.http, Exposition(metrics.registry, *shared), checks)
    server.start()
    return server


def lanes(settings: Settings, redis_url: str = "") -> LaneCollector:
    """Return the collector of the queue's figures; it reads Redis at each scrape."""
    # Imported here, so that a supervisor without an HTTP endpoint never loads the Redis client.
    from workers.queue.connection import connect  # noqa: PLC0415
    from workers.queue.inspect import read_memory, read_sizes  # noqa: PLC0415
    from workers.queue.limits import read_stats  # noqa: PLC0415

    redis = settings.redis
    client = connect(
        redis_url or redis.url_with_credentials(),
        password_file=redis.password_file,
        # A scrape may take 10 s at most, so the read must return in time even if Redis hangs.
        socket_timeout_seconds=2.0,
        retries=1,
    )
    return LaneCollector(
        lambda: read_stats(client),
        lambda: {**read_sizes(client), **read_memory(client)},
        catalogue.work_queues(),
    )


@contextmanager
def ending_at_once() -> Iterator[None]:
    """Make SIGTERM end the process at once inside the block; later, SIGTERM raises SystemExit.

    During startup, there is nothing to clean up. But threads may be waiting for drivers, and if
    SIGTERM raised an exception, the process would wait for these threads.
    """
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    yield
    signal.signal(signal.SIGTERM, _end)


def _end(signum: int, frame: object) -> None:
    del signum, frame
    raise SystemExit(0)


def mark_ready(settings: Settings, name: str) -> None:
    """Report to the supervisor that a part has started.

    The supervisor restarts such a part if it exits. The report is also kept in memory, because a
    sidecar's container often has a read-only root file system and no mount.
    """
    path = Path(settings.process.state_dir) / name
    _ready.add(path)
    with suppress(OSError):
        path.write_text("ready\n")


def tell_liveness(settings: Settings, check: Callable[[], str]) -> None:
    """Every few seconds, report to the supervisor what is hanging in this process.

    If the reports stop, the supervisor concludes that the whole process is hanging. Nothing is
    reported without a state folder, because the kubelet then uses the HTTP endpoint of the process.
    """
    if not os.access(settings.process.state_dir or "/nonexistent", os.W_OK):
        return
    path = Path(settings.process.state_dir) / LIVE_FILE

    def step() -> float:
        try:
            path.write_text(check())
        except OSError:  # a full disk must not cause a restart
            os.utime(path)
        return TELL_SECONDS

    Loop("liveness", step).start()


def ready_file(directory: str, name: str) -> Callable[[], str]:
    """Return a readiness check that passes once the part has called `mark_ready`."""
    path = Path(directory) / name

    def check() -> str:
        return "" if path in _ready or path.exists() else f"waiting for {name}"

    return check

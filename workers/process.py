"""What every process of ours needs that works for long: API client, endpoint, ready file."""

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
"""What hangs in a part, empty for nothing; written anew each few seconds."""
TELL_SECONDS: Final = 5.0
_ready: Final[set[Path]] = set()
"""What this process has said; a file tells other processes."""


def kube_client(
    settings: Settings,
    *,
    user_agent: str = "csi-fleet",
    metrics: Metrics | None,
    guard: Guard = lambda: None,
) -> KubeClient:
    """The API client of one process; opens no connection yet. `guard`: see KubeClient.

    Raises:
        ConfigError: no usable client configuration.
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
    """The checks, with the API server's word on who reads the metrics where that is wanted."""
    if not settings.http.token_review:
        return checks
    from workers.kube.reviews import PathReaders  # noqa: PLC0415 - rarely needed

    client = kube_client(settings, metrics=None)
    readers = PathReaders(client, settings.http.metrics_path)
    return dataclasses.replace(checks, may_read=readers.allows)


def serve(settings: Settings, metrics: Metrics, checks: Checks) -> DiagnosticsServer | None:
    """The endpoint of one process, None unless `--http-endpoint` asks for it.

    Raises:
        ConfigError: nobody can listen there.
    """
    if not settings.http.endpoint:
        return None
    checks = guarded(settings, checks)
    # The same from every process, and in node mode a worker per node would ask for every node's.
    shared = [lanes(settings)] if settings.command is Command.WATCHER else []
    server = DiagnosticsServer(settings.http, Exposition(metrics.registry, *shared), checks)
    server.start()
    return server


def lanes(settings: Settings, redis_url: str = "") -> LaneCollector:
    """What waits in Redis, read at each scrape."""
    # Only an endpoint needs it: a supervisor without one never loads Redis' client.
    from workers.queue.connection import connect  # noqa: PLC0415
    from workers.queue.inspect import read_sizes  # noqa: PLC0415
    from workers.queue.limits import read_stats  # noqa: PLC0415

    redis = settings.redis
    client = connect(
        redis_url or redis.url_with_credentials(),
        password_file=redis.password_file,
        # A scrape waits 10 s at most, and comes again: it must tell of a Redis that hangs.
        socket_timeout_seconds=2.0,
        retries=1,
    )
    return LaneCollector(
        lambda: read_stats(client), lambda: read_sizes(client), catalogue.work_queues()
    )


@contextmanager
def ending_at_once() -> Iterator[None]:
    """SIGTERM ends the process, in here at once; afterwards as an exception.

    In here nothing runs yet that would have to be ended, but threads may wait for drivers, and an
    exception would wait for them.
    """
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    yield
    signal.signal(signal.SIGTERM, _end)


def _end(signum: int, frame: object) -> None:
    del signum, frame
    raise SystemExit(0)


def mark_ready(settings: Settings, name: str) -> None:
    """Tell the supervisor that the start of a part is over: from now on an exit means a restart.

    Nothing need be writable: a sidecar's container often has a read-only root and no mount.
    """
    path = Path(settings.process.state_dir) / name
    _ready.add(path)
    with suppress(OSError):
        path.write_text("ready\n")


def tell_liveness(settings: Settings, check: Callable[[], str]) -> None:
    """Keep telling the supervisor what hangs here; a process that hangs as a whole tells nothing.

    Without a folder of its own nobody looks: the endpoint of the process tells the kubelet.
    """
    if not os.access(settings.process.state_dir or "/nonexistent", os.W_OK):
        return
    path = Path(settings.process.state_dir) / LIVE_FILE

    def step() -> float:
        try:
            path.write_text(check())
        except OSError:  # a full disk is no reason to be started again
            os.utime(path)
        return TELL_SECONDS

    Loop("liveness", step).start()


def ready_file(directory: str, name: str) -> Callable[[], str]:
    """A readiness check: the part has said that its start is over."""
    path = Path(directory) / name

    def check() -> str:
        return "" if path in _ready or path.exists() else f"waiting for {name}"

    return check

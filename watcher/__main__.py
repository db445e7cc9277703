"""`python -m watcher [flags]`: reads the flags, builds the watcher, and runs it until SIGTERM."""

from __future__ import annotations

import os
import signal
import sys
from typing import TYPE_CHECKING, Final

from watcher.run import Watcher, recovery_seconds
from workers.app import SYSTEM_QUEUE, make_app, publisher
from workers.config.load import Command, HelpRequested, parse
from workers.errors import ConfigError
from workers.observability.health import HEARTBEATS
from workers.observability.http import Checks
from workers.observability.logging import configure_logging, get_logger
from workers.observability.metrics import Metrics
from workers.process import kube_client, mark_ready, serve, tell_liveness
from workers.queue.catalog import CatalogWriter
from workers.queue.celerykeys import CeleryKeys
from workers.queue.connection import connect
from workers.queue.intents import IntentStore
from workers.queue.pauses import Pauses
from workers.queue.presence import Presence
from workers.queue.recovery import Recovery
from workers.queue.registry import DriverRegistry
from workers.queue.workqueue import WorkQueue

if TYPE_CHECKING:
    from collections.abc import Sequence

    from workers.config.settings import Settings

_READY_FILE: Final = "watcher.ready"
_STOP_SIGNALS: Final = frozenset({signal.SIGTERM, signal.SIGINT})


def build(settings: Settings, metrics: Metrics | None = None) -> Watcher:
    """Build a watcher from its parts, without connecting to anything.

    Raises:
        ConfigError: there is no usable client configuration.
    """
    client = kube_client(settings, user_agent="csi-fleet-watcher", metrics=metrics)
    redis = settings.redis
    redis_client = connect(redis.url_with_credentials(), password_file=redis.password_file)
    celery = redis.for_celery()
    celery_client = connect(celery.url_with_credentials(), password_file=celery.password_file)
    queue = WorkQueue(redis_client, publish=publisher(make_app(settings)))
    resync_seconds = settings.resync_period_seconds
    return Watcher(
        client,
        queue=queue,
        catalog=CatalogWriter(redis_client),
        registry=DriverRegistry(redis_client),
        intents=IntentStore(redis_client),
        namespace=settings.kube.namespace,
        resync_seconds=resync_seconds,
        # This period is slightly shorter than the watchers' own, so that it is always over when a
        # watcher starts its next round.
        recovery=Recovery(
            redis_client, queue, period_seconds=recovery_seconds(resync_seconds) * 0.9
        ),
        metrics=metrics,
        presence=Presence(redis_client),
        pauses=Pauses(redis_client, queue),
        celery_keys=CeleryKeys(
            redis_client,
            celery_client,
            system=SYSTEM_QUEUE,
            drivers=DriverRegistry(redis_client).alive,
        ),
        chosen=settings.chosen,
    )


def run(settings: Settings) -> int:
    """Run until SIGTERM or SIGINT; return the exit code.

    Raises:
        ConfigError: there is no usable client configuration, or the process cannot listen on
            the address of the HTTP endpoint.
    """
    # The signals are blocked before the first thread starts, so that all threads block them too and
    # only `sigwait` receives them.
    signal.pthread_sigmask(signal.SIG_BLOCK, _STOP_SIGNALS)
    metrics = Metrics()
    watcher = build(settings, metrics)
    server = serve(settings, metrics, Checks(live=HEARTBEATS.check, ready=watcher.check_ready))
    tell_liveness(settings, HEARTBEATS.check)
    watcher.start()
    mark_ready(settings, _READY_FILE)
    get_logger("watcher").info("watcher started", namespace=settings.kube.namespace)
    signal.sigwait(_STOP_SIGNALS)
    watcher.stop()
    if server:
        server.stop()
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Read the flags and the environment, and run the watcher until a signal stops it.

    After a usage error, print one line and return the exit code of F-014.
    """
    try:
        settings = parse(
            Command.WATCHER, sys.argv[1:] if arguments is None else arguments, os.environ
        )
        configure_logging(settings.log.format, settings.log.verbosity)
        return run(settings)
    except HelpRequested as help_requested:
        sys.stdout.write(f"{help_requested}\n")
        return 0
    except ConfigError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main())

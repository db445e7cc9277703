"""`csi-fleet snapshot-metadata`: serves the changed blocks of all drivers' snapshots on one port.

The process needs neither Redis nor the other processes. All its replicas serve. On SIGTERM, new
streams are refused, and running streams have `GRACE_SECONDS` to end.
"""

from __future__ import annotations

import signal
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from csi_client.blockserver import BlockServer, Ended, Limits
from csi_client.errors import CsiError
from workers.changedblocks import Planner
from workers.cli.drivertools import open_client
from workers.drivers.central import Central
from workers.drivers.driversfile import DriverSpec
from workers.drivers.fleet import wait_answering
from workers.errors import ConfigError
from workers.kube.resources import KubeResources
from workers.loop import Loop
from workers.observability.health import HEARTBEATS
from workers.observability.http import Checks
from workers.observability.logging import get_logger
from workers.observability.metrics import Metrics
from workers.process import ending_at_once, kube_client, mark_ready, ready_file, serve

if TYPE_CHECKING:
    from workers.config.settings import Settings

_log = get_logger(__name__)

READY_FILE: Final = "snapshot-metadata.ready"
GRACE_SECONDS: Final = 20.0
_GAUGE_SECONDS: Final = 5.0
_MAX_LOGGED: Final = 320
"""Longer than any namespace and name; the caller may be unknown, and its names are unchecked."""


class _Drivers:
    """The drivers of this process, keyed by name; a stream uses those known when it started."""

    def __init__(self) -> None:
        self.beside: dict[str, DriverSpec] = {}
        self.specs: dict[str, DriverSpec] = {}

    def apply(self, specs: dict[str, DriverSpec]) -> None:
        self.specs = self.beside | specs

    def connect(self, address: str, timeout_seconds: float) -> None:
        """Ask the driver at `--csi-address` for its name.

        Raises:
            ConfigError: the driver does not answer.
        """
        spec = DriverSpec("", address, allow_tcp=False)
        client = open_client(spec, timeout_seconds)
        try:
            wait_answering(client, address)
            name, _ = client.plugin_info()
        except CsiError as error:
            raise ConfigError(f"Error getting CSI driver name: {error}", exit_code=1) from error
        finally:
            client.close()
        self.beside[name] = replace(spec, name=name)


def run(settings: Settings) -> int:
    """Run the command until a signal ends it; return the exit code.

    Raises:
        ConfigError: a driver, the drivers file, the port or a certificate file cannot be used.
    """
    metrics, drivers, blocks = Metrics(), _Drivers(), settings.blocks
    with ending_at_once():
        for address in settings.driver.csi_addresses:
            drivers.connect(address, settings.driver.timeout_seconds)
        drivers.apply({})
        loops: list[Loop] = []
        if path := settings.driver.drivers_file:
            central = Central(drivers, Path(path), pool=None)
            central.start()
            loops.append(Loop("drivers-file", central.step))
    kube = KubeResources(kube_client(settings, metrics=metrics))

    def observe(one: Ended) -> None:
        metrics.csi_observer(one.driver)(one.method, one.code, one.seconds)
        if one.size:
            metrics.block_bytes.labels(one.driver).inc(one.size)
        _log.info(
            "a stream of block metadata ended",
            method=one.method,
            snapshot=f"{one.asked.namespace}/{one.asked.snapshot}"[:_MAX_LOGGED],
            driver=one.driver,
            caller=one.caller,
            size_bytes=one.size,
            seconds=round(one.seconds, 1),
            code=one.code,
            reason=one.text,
        )

    server = BlockServer(
        blocks.port,
        Path(blocks.certificate),
        Path(blocks.key),
        limits=Limits(
            blocks.per_driver,
            blocks.per_caller,
            stream_seconds=60.0 * blocks.stream_minutes,
            driver_seconds=settings.driver.timeout_seconds,
        ),
        plan=Planner(kube, lambda: drivers.specs, blocks.audience).plan,
        observe=observe,
    )

    def show_streams() -> float:
        running = server.running()
        for name in drivers.specs:
            metrics.block_streams.labels(name).set(running.get(name, 0))
        return _GAUGE_SECONDS

    def on_listening(port: int) -> None:
        _log.info("serving block metadata", port=port, drivers=len(drivers.specs))
        mark_ready(settings, READY_FILE)

    loops.append(Loop("streams", show_streams))
    ready = ready_file(settings.process.state_dir, READY_FILE)
    http = serve(settings, metrics, Checks(live=HEARTBEATS.check, ready=ready))
    for loop in loops:
        loop.start()
    for one in (signal.SIGTERM, signal.SIGINT):
        signal.signal(one, lambda *_: server.stop())
    try:
        server.run(on_listening, GRACE_SECONDS)
    except OSError as error:
        raise ConfigError(
            f"cannot serve: {error}. Check --port, --tls-cert and --tls-key", exit_code=1
        ) from error
    finally:
        for loop in loops:
            loop.stop()
        if http is not None:
            http.stop()
    return 0

"""`csi-fleet livenessprobe | csi-node-driver-registrar | node`: starts the parts of the helper."""

from __future__ import annotations

import faulthandler
import signal
import sys
import threading
from typing import TYPE_CHECKING

from workers.cli.waking import SignalWaker
from workers.errors import ConfigError
from workers.node import flags, liveness, registrar
from workers.node.http import Server
from workers.observability.logging import configure_logging, get_logger

if TYPE_CHECKING:
    from collections.abc import Sequence

    from workers.node.flags import Options
    from workers.node.http import Answer, Client, Handler

_log = get_logger(__name__)


def main(program: str, argv: Sequence[str]) -> int:
    """Run one of the three programs; return the exit code."""
    try:
        options = flags.read(program, argv)
        if isinstance(options, str):
            sys.stdout.write(options)
            return 0
        if options.values.get("version"):
            from importlib.metadata import version  # noqa: PLC0415 - loads mail and zip code

            sys.stdout.write(f"{program} {version('csi-fleet')}\n")
            return 0
        start_logging(options)
        return run(program, options)
    except ConfigError as error:
        sys.stderr.write(f"csi-fleet {program}: {error}\n")
        return error.exit_code


def start_logging(options: Options) -> None:
    """Log to stderr in klog's formats.

    Raises:
        ConfigError: the format is unknown; exit code 1.
    """
    layout = options["logging-format"]
    if layout not in {"text", "json"}:
        raise ConfigError(
            f'--logging-format="{layout}" is not a log format. Use text or json', exit_code=1
        )
    configure_logging(layout, options["v"])
    for line in options.warnings:
        _log.warning("check the command-line flags", warning=line)


def run(program: str, options: Options) -> int:
    """Start the parts of the program and wait for them to end; return the exit code."""
    stopped = threading.Event()
    set_at_end(stopped)
    faulthandler.register(signal.SIGUSR1)
    if program == flags.LIVENESS:
        return liveness.run(options, stopped)
    registrar.check(options)
    if options.values.get("mode") == registrar.PROBE_MODE:
        return 0  # the exec probe of old manifests runs the binary like this (NR-005)
    return run_registrar(program, options, stopped)


def set_at_end(stopped: threading.Event) -> None:
    """Set `stopped`, from a separate thread, when SIGTERM or SIGINT arrives.

    A Python signal handler is not suitable. It runs in the main thread, and only after a wait that
    the signal does not interrupt. If it runs during `stopped.wait()`, that call may hold the lock
    that `stopped.set()` needs.
    """
    waker = SignalWaker()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)

    def pass_on() -> None:
        while True:  # never ends, so that a later signal does not write to a reused descriptor
            waker.wait()
            stopped.set()

    threading.Thread(target=pass_on, name="signals", daemon=True).start()


def run_registrar(program: str, options: Options, stopped: threading.Event) -> int:
    """Run the registrar; for the program `node`, run the liveness probe in this process too."""
    part = registrar.Registrar(options, stopped)
    served = part.handlers()
    probe = None
    if program == flags.NODE:
        probe = liveness.Liveness(options, stopped)
        page = {options["metrics-path"]: _both(probe, part)} if probe.metrics else {}
        served = {
            **probe.handlers(),
            **page,
            "/registration": part.healthz,
            "/readyz": part.readyz,
        }
    server = listen(options, served)  # before the socket is offered (NRD-011)
    try:
        part.meet(is_patient=probe is not None)
        if stopped.is_set():
            return 0
        if probe is not None:
            threading.Thread(target=probe.meet, name="driver", daemon=True).start()
        threading.Thread(target=_wake_at_end, args=(part, stopped), daemon=True).start()
        return part.run()
    finally:
        stopped.set()
        if server is not None:
            server.stop()


def _both(probe: liveness.Liveness, part: registrar.Registrar) -> Handler:
    """Return a handler for the metrics of both the probe and the registrar."""

    def page(_client: Client) -> Answer:
        return 200, (probe.metrics.text() if probe.metrics else "") + part.metrics()

    return page


def listen(options: Options, served: dict[str, Handler]) -> Server | None:
    """Start the HTTP endpoint if the flags request one (NR-030)."""
    port = options.values.get("health-port", 0)
    address = options["http-endpoint"] or (f":{port}" if port > 0 else "")
    if not address:
        _log.info("Skipping HTTP server")
        return None
    server = Server(address, served)
    server.start()
    return server


def _wake_at_end(part: registrar.Registrar, stopped: threading.Event) -> None:
    stopped.wait()
    part.wake()

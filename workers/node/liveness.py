"""livenessprobe: responds to the kubelet's HTTP probe with a CSI Probe's result (LP-001 to LP-025).

The process keeps running while its driver is unavailable, and responds to every probe with 500
(LP-011).
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final

from csi_client.client import CsiClient
from csi_client.errors import DEADLINE_EXCEEDED, UNAVAILABLE, CsiError
from workers.errors import ConfigError
from workers.node.http import Server
from workers.node.probe import Prober
from workers.observability.logging import get_logger

if TYPE_CHECKING:
    from workers.node.flags import Options
    from workers.node.http import Answer, Client, Handler

_log = get_logger(__name__)

DEFAULT_PORT: Final = "9808"
UNKNOWN_DRIVER: Final = "unknown-driver"
NOT_READY_YET: Final = "driver not ready yet"
_RETRY_SECONDS: Final = 1.0
_TELL_SECONDS: Final = 10.0
# csi-lib-utils metrics.go, operationLatencyBuckets.
_BUCKETS: Final = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 15, 25, 50, 120, 300, 600)


class Metrics:
    """The metrics `csi_sidecar_operations_seconds` and `process_start_time_seconds` (LP-023).

    The first metric covers only the calls of this process. The class writes the Prometheus text
    format itself, because the Prometheus library would load 9 MiB of HTTP, mail and TLS code for
    one histogram.
    """

    def __init__(self) -> None:
        self.driver = UNKNOWN_DRIVER
        self._started = time.time()
        self._lock = threading.Lock()
        # For each set of labels: the number of calls in each bucket (the last bucket has no upper
        # bound), and the sum of their durations in seconds.
        self._counts: dict[str, list[int]] = {}
        self._sums: dict[str, float] = {}

    def observe(self, method: str, code: str, seconds: float) -> None:
        """Count one call."""
        values = {"driver_name": self.driver, "method_name": method, "grpc_status_code": code}
        labels = ",".join(f'{name}="{escaped(value)}"' for name, value in values.items())
        with self._lock:
            counts = self._counts.setdefault(labels, [0] * (len(_BUCKETS) + 1))
            counts[bisect_left(_BUCKETS, seconds)] += 1
            self._sums[labels] = self._sums.get(labels, 0.0) + seconds

    def answer(self, _client: Client) -> Answer:
        """Respond with the metrics page."""
        return 200, self.text()

    def text(self) -> str:
        """Return the content of the metrics page."""
        name = "csi_sidecar_operations_seconds"
        told = "Container Storage Interface operation duration with gRPC error code status total"
        lines = [f"# HELP {name} {told}", f"# TYPE {name} histogram"]
        with self._lock:
            for labels, counts in self._counts.items():
                bounds = [*map(str, _BUCKETS), "+Inf"]
                lines += [
                    f'{name}_bucket{{{labels},le="{bound}"}} {below}'
                    for bound, below in zip(bounds, accumulate(counts), strict=True)
                ]
                lines.append(f"{name}_sum{{{labels}}} {self._sums[labels]}")
                lines.append(f"{name}_count{{{labels}}} {sum(counts)}")
        started = "process_start_time_seconds"
        lines.append(f"# HELP {started} Start time of the process since unix epoch in seconds.")
        lines += [f"# TYPE {started} gauge", f"{started} {self._started}", ""]
        return "\n".join(lines)


def escaped(value: str) -> str:
    """Return a label's value, escaped for the Prometheus text format."""
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


class Liveness:
    """The liveness probe of one driver.

    Args:
        options: the program's flags.
        stopped: set when the process should end.
    """

    def __init__(self, options: Options, stopped: threading.Event) -> None:
        self._options = options
        self._stopped = stopped
        self._address: str = options["csi-address"]
        self._timeout: float = options["probe-timeout"]
        self._is_ready = False
        self._was_away = False
        has_metrics = options["http-endpoint"] or options.values.get("metrics-address")
        self.metrics = Metrics() if has_metrics else None
        self._prober = Prober(
            self._address,
            self._timeout,
            min_interval_seconds=options["min-probe-interval"],
            **({"observer": self.metrics.observe} if self.metrics else {}),
        )

    def handlers(self) -> dict[str, Handler]:
        """Return the handlers of the HTTP endpoint, by path."""
        served: dict[str, Handler] = {"/healthz": self.healthz}
        if self.metrics is not None and self._options["http-endpoint"]:
            served[self._options["metrics-path"]] = self.metrics.answer
        return served

    def meet(self) -> None:
        """Wait without a limit until the driver answers, and read its name (LP-010).

        Raises:
            ConfigError: the driver returns an error or no name; exit code 1.
        """
        client = CsiClient(self._address, timeout_seconds=self._timeout, observer=self._observer())
        try:
            while not self._stopped.is_set():
                if client.wait_connected(_TELL_SECONDS, self._still_connecting):
                    name = self._ask_name(client)
                    if name:
                        self._know(name)
                        self._is_ready = True
                        return
                else:
                    self._still_connecting()
                self._stopped.wait(_RETRY_SECONDS)
        finally:
            client.close()

    def healthz(self, client: Client) -> Answer:
        """Respond with the result of one Probe (LP-021)."""
        if not self._is_ready:
            return 500, NOT_READY_YET
        flight = self._prober.probe(client.is_gone)
        if flight.result:
            if not flight.was_connected:
                self._was_away = True
                _log.error("Failed to establish connection to CSI driver", err=flight.result)
            else:
                _log.error("Health check failed", err=flight.result)
            return 500, "unhealthy" if self._options["terse"] else flight.result
        if self._was_away:  # the socket may now belong to another driver (LPD-007)
            self._was_away = False
            threading.Thread(target=self._read_name_again, daemon=True).start()
        _log.v(4, "Health check succeeded")
        return 200, "ok"

    def _observer(self) -> Any:
        return self.metrics.observe if self.metrics else None

    def _still_connecting(self) -> None:
        _log.warning("Still connecting", address=self._address)

    def _ask_name(self, client: CsiClient) -> str:
        """Return the driver's name; "" after an error that should be retried (LPD-004)."""
        try:
            return client.plugin_info()[0]
        except CsiError as error:
            if error.code in {UNAVAILABLE, DEADLINE_EXCEEDED}:
                _log.warning("the CSI driver has not reported its name yet", err=error)
                return ""
            raise ConfigError(f"failed to get CSI driver name: {error}", exit_code=1) from None

    def _read_name_again(self) -> None:
        client = CsiClient(self._address, timeout_seconds=self._timeout)
        try:
            if client.wait_connected(self._timeout):
                self._know(client.plugin_info()[0])
        except CsiError as error:
            _log.warning("could not read the CSI driver name again", err=error)
        finally:
            client.close()

    def _know(self, name: str) -> None:
        _log.info("CSI driver name", driver=name)
        if self.metrics is not None:
            self.metrics.driver = name


def check(options: Options) -> None:
    """Check for the two pairs of conflicting flags (LP-003).

    Raises:
        ConfigError: both flags of a pair are given; exit code 1.
    """
    if not options["http-endpoint"]:
        return
    for name in ("health-port", "metrics-address"):
        is_default = options.values.get(name) == DEFAULT_PORT and name not in options.explicit
        if options.values.get(name) and not is_default:
            raise ConfigError(
                f"Only one of `--{name}` and `--http-endpoint` can be explicitly set", exit_code=1
            )


def run(options: Options, stopped: threading.Event) -> int:
    """Run the program `livenessprobe`; return its exit code."""
    check(options)
    liveness = Liveness(options, stopped)
    if not options["serve-before-ready"]:
        liveness.meet()
    if stopped.is_set():
        return 0
    servers = [
        Server(options["http-endpoint"] or f":{options['health-port']}", liveness.handlers())
    ]
    if liveness.metrics is None:
        _log.info("no metrics are served; set --http-endpoint to serve them")
    elif options["metrics-address"]:
        page = {options["metrics-path"]: liveness.metrics.answer}
        servers.append(Server(options["metrics-address"], page))
    for server in servers:
        server.start()
    if options["serve-before-ready"]:
        liveness.meet()
    stopped.wait()
    for server in servers:
        server.stop()
    return 0

"""csi-node-driver-registrar: registers a driver with the kubelet of its node (NR-001 to NR-032).

The kubelet calls this process over a socket in the kubelet's directory, and then talks to the
driver itself. Unlike the Go program, this one recreates a socket that has disappeared, exits if the
driver's name changes, and waits while another registrar of the same name is running (NRD-001 to
NRD-011).
"""

from __future__ import annotations

import fcntl
import re
import stat
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from csi_client.client import CsiClient
from csi_client.errors import CsiError
from csi_client.registration import RegistrationError, RegistrationServer, ask, check_path
from workers.errors import ConfigError
from workers.node.liveness import escaped
from workers.observability.logging import get_logger

if TYPE_CHECKING:
    from typing import IO

    from workers.node.flags import Options
    from workers.node.http import Answer, Client, Handler

_log = get_logger(__name__)

PROBE_MODE: Final = "kubelet-registration-probe"
CONNECT_SECONDS: Final = 30.0
_TRY_SECONDS: Final = 1.0
LOOK_SECONDS: Final = 10.0
# How long the process keeps running after its response to the kubelet, so that the response arrives
# (NR-040).
LAST_WORDS_SECONDS: Final = 0.1
FIRST_OFFER_AGAIN_SECONDS, LAST_OFFER_AGAIN_SECONDS = 1.0, 60.0
# CSI spec, GetPluginInfo: domain name notation, at most 63 characters.
_NAME: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,61}[A-Za-z0-9])?")


@dataclass(slots=True)
class Status:
    """The result of the last registration; `when` is in Unix seconds, 0 for never."""

    state: str = "never"
    error: str = ""
    when: float = 0.0


class _Fingerprint(NamedTuple):
    """Identifies a socket file, to detect its replacement; all zeros if there is no file."""

    device: int = 0
    inode: int = 0
    made_ns: int = 0


class Registrar:
    """Registers one driver.

    Args:
        options: the program's flags.
        stopped: set when the process should end.
    """

    def __init__(self, options: Options, stopped: threading.Event) -> None:
        self._options = options
        self._stopped = stopped
        self._timeout: float = options["timeout"]
        self._driver_socket = Path(options["csi-address"].removeprefix("unix://"))
        self._known_socket = _Fingerprint()
        self._lock_file: IO[str] | None = None
        self._server: RegistrationServer | None = None
        self._wake = threading.Event()
        self._checking = threading.Lock()
        self._failure = ""
        self._offer_delay = FIRST_OFFER_AGAIN_SECONDS
        self.name = ""
        self.status = Status()

    @property
    def path(self) -> Path:
        """The path of the registration socket."""
        return Path(self._options["plugin-registration-path"]) / f"{self.name}-reg.sock"

    def handlers(self) -> dict[str, Handler]:
        """Return the handlers of the HTTP endpoint, by path."""
        return {
            "/healthz": self.healthz,
            "/readyz": self.readyz,
            "/metrics": lambda _client: (200, self.metrics()),
        }

    def metrics(self) -> str:
        """Return the result of the last registration in the Prometheus text format (NRD-002)."""
        name, labels = "csi_node_registration_status", f'driver_name="{escaped(self.name)}"'
        told = (
            "State of the driver's registration with the kubelet: 1 for the current state, else 0"
        )
        values = [
            f'{name}{{{labels},state="{state}"}} {int(state == self.status.state)}'
            for state in ("never", "ok", "failed")
        ]
        return "\n".join([f"# HELP {name} {told}.", f"# TYPE {name} gauge", *values, ""])

    def meet(self, *, is_patient: bool = False) -> None:
        """Connect to the driver and read its name, within 30 s (NR-004, NRD-006).

        Return without a name if the process should end.

        Args:
            is_patient: True to wait without a limit. If the liveness probe runs in the same
                process, an exit would end the probe too, and the kubelet would restart a driver
                that is merely slow to start.

        Raises:
            ConfigError: the driver did not answer in time, or its name is invalid; exit code 1.
        """
        deadline = time.monotonic() + CONNECT_SECONDS
        self._known_socket = _fingerprint(self._driver_socket)
        while True:
            try:
                name = self._ask_name(max(_TRY_SECONDS, deadline - time.monotonic()))
                break
            except (CsiError, ConfigError) as error:
                is_final = isinstance(error, CsiError) and error.code is None
                is_late = not is_patient and time.monotonic() > deadline
                if self._stopped.wait(1.0):
                    return
                if is_final or is_late:
                    raise ConfigError(
                        f"error retrieving CSI driver name: {error}", exit_code=1
                    ) from None
                _log.warning("the CSI driver has not reported its name yet", err=error)
        if not _NAME.fullmatch(name):
            raise ConfigError(
                f"invalid CSI driver name {name!r}: at most 63 letters, digits, dots and dashes",
                exit_code=1,
            )
        _log.info("CSI driver name", driver=name)
        self.name = name

    def _ask_name(self, wait_seconds: float) -> str:
        """Return the driver's name, read over a temporary connection.

        A permanent connection would cost 0.1 % of a core.
        """
        address = self._options["csi-address"]
        client = CsiClient(address, timeout_seconds=self._timeout)
        try:
            if not client.wait_connected(wait_seconds, lambda: _still_connecting(address)):
                raise ConfigError(f"error connecting to CSI driver at {address}", exit_code=1)
            return client.plugin_info()[0]
        finally:
            client.close()

    def run(self) -> int:
        """Offer the driver to the kubelet until the process ends; return the exit code."""
        try:
            check_path(self.path)
            self._take_name()
            if not self._stopped.is_set():
                self._offer()
                self._keep()
        except RegistrationError as error:
            raise ConfigError(str(error), exit_code=1) from error
        finally:
            self._withdraw()
        if self._failure:
            raise ConfigError(self._failure, exit_code=1)
        return 0

    def notified(self, is_registered: bool, error: str) -> None:
        """Handle the kubelet's report about a registration (NR-012)."""
        _log.info("registration status", registered=is_registered, err=error)
        self.status = Status("ok" if is_registered else "failed", error, time.time())
        if is_registered:
            self._offer_delay = FIRST_OFFER_AGAIN_SECONDS
            return
        _log.error("registration process failed", err=error)
        if self._options["exit-on-registration-failure"]:
            self._failure = f"registration process failed with error: {error}"
        self._wake.set()

    def healthz(self, client: Client) -> Answer:
        """Check that the registration socket answers (NR-031); checks never overlap (NRD-007)."""
        if "registered=1" in client.query.split("&") and self.status.state != "ok":
            return 503, f"kubelet registration: {self.status.state} {self.status.error}".strip()
        if not self._checking.acquire(timeout=self._timeout):
            return 500, "error getting info from node-registrar socket: deadline exceeded"
        try:
            return self._check_socket()
        finally:
            self._checking.release()

    def readyz(self, _client: Client) -> Answer:
        """Respond with 503 until the kubelet has registered the driver (NRD-002)."""
        if self.status.state == "ok":
            return 200, "ok"
        return 503, f"kubelet registration: {self.status.state} {self.status.error}".strip()

    def _check_socket(self) -> Answer:
        try:
            mode = self.path.lstat().st_mode
        except FileNotFoundError:
            return 404, "registration socket does not exist"
        except OSError as error:
            return 500, f"{self.path}: {error.strerror}"
        if not stat.S_ISSOCK(mode):
            return 500, f"{self.path} is not a socket"
        try:
            answer = ask(self.path, self._timeout)
        except RegistrationError as error:
            return 500, f"error getting info from node-registrar socket: {error}"
        return (
            (200, "ok") if answer.name == self.name else (500, f"invalid driver name {answer.name}")
        )

    def _take_name(self) -> None:
        """Wait until no other registrar with the driver's name is running on the node (NRD-009)."""
        lock = self.path.with_name(f".{self.name}-reg.lock")
        try:
            self._lock_file = lock.open("w")
        except OSError as error:
            raise RegistrationError(f"cannot write to {lock.parent}: {error.strerror}") from error
        is_told = False
        while not self._stopped.is_set():
            try:
                fcntl.flock(self._lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if not is_told:
                    _log.warning("waiting for another registrar on this node", driver=self.name)
                is_told = True
                self._stopped.wait(0.5)
            else:
                return

    def _offer(self) -> None:
        endpoint = self._options["kubelet-registration-path"]
        server = RegistrationServer(self.path, self.name, endpoint, self.notified)
        server.start()
        self._server = server
        _log.info("the registration server is listening", path=str(self.path))

    def _withdraw(self) -> None:
        if self._server is not None:
            self._server.stop()
            self._server = None
        if self._lock_file is not None:
            self._lock_file.close()
            self._lock_file = None

    def _keep(self) -> None:
        """Monitor the socket and the driver until the process should end or a failure occurs."""
        while True:
            was_refused = self._wake.wait(LOOK_SECONDS)
            if self._stopped.is_set():
                return
            if was_refused:
                self._wake.clear()
                self._stopped.wait(LAST_WORDS_SECONDS)
                if self._failure:
                    return
                self._offer_later()
            elif self._server is not None and self._server.is_lost():
                _log.warning("the registration socket was removed or replaced; creating it again")
                self._server.stop()
                self._offer()
            if self._has_another_name():
                return

    def _offer_later(self) -> None:
        """Remove the socket after a refusal by the kubelet, and offer it again later (NRD-001)."""
        if self._server is not None:
            self._server.stop()
        self._stopped.wait(self._offer_delay)
        self._offer_delay = min(2 * self._offer_delay, LAST_OFFER_AGAIN_SECONDS)
        if not self._stopped.is_set():
            self._offer()

    def _has_another_name(self) -> bool:
        """Return True if a driver with a different name has recreated the socket (NRD-005)."""
        found = _fingerprint(self._driver_socket)
        if found in {self._known_socket, _Fingerprint()}:
            return False
        try:
            name = self._ask_name(self._timeout)
        except (CsiError, ConfigError) as error:
            _log.warning("could not read the CSI driver name again", err=error)
            return False
        self._known_socket = found
        if name != self.name:
            self._failure = f"the CSI driver changed its name from {self.name} to {name}"
        return name != self.name

    def wake(self) -> None:
        """Make `run` return soon; call this after `stopped` has been set."""
        self._wake.set()


def check(options: Options) -> None:
    """Check for missing and conflicting flags (NR-003).

    Raises:
        ConfigError: a flag is missing, or two flags conflict; exit code 1.
    """
    endpoint = options["kubelet-registration-path"]
    if not endpoint:
        raise ConfigError("kubelet-registration-path is a required parameter", exit_code=1)
    if options.values.get("health-port", 0) > 0 and options["http-endpoint"]:
        raise ConfigError(
            "only one of `--health-port` and `--http-endpoint` can be set", exit_code=1
        )
    if Path(endpoint).name != Path(options["csi-address"].removeprefix("unix://")).name:
        _log.warning(
            "--kubelet-registration-path and --csi-address end with different names; the kubelet "
            "uses --kubelet-registration-path to reach the driver",
            kubelet_registration_path=endpoint,
            csi_address=options["csi-address"],
        )


def _fingerprint(socket: Path) -> _Fingerprint:
    try:
        found = socket.stat()
    except OSError:
        return _Fingerprint()
    return _Fingerprint(found.st_dev, found.st_ino, found.st_mtime_ns)


def _still_connecting(address: str) -> None:
    _log.warning("Still connecting", address=address)

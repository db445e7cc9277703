"""One driver's connection in this process: handshakes, loss and reconnection."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Final

from csi_client import tlscheck
from csi_client.connection import CsiAddressError, host_and_port
from csi_client.errors import DEADLINE_EXCEEDED, CsiError
from workers.deadlines import MARGIN_SECONDS
from workers.drivers.driver import Driver, handshake
from workers.drivers.pace import Pace, WatchedClient
from workers.drivers.replica import Replica
from workers.errors import ConfigError
from workers.observability.logging import get_logger
from workers.queue.links import ANYWHERE, Place

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future

    from workers.config.settings import Settings
    from workers.drivers.driversfile import DriverSpec

_log = get_logger(__name__)

PROBE_SECONDS: Final = 5.0
TELL_AFTER_SECONDS: Final = 3.0
TELL_EVERY_SECONDS: Final = 60.0
RETRY_SECONDS: Final = 1.0
PROVE_SECONDS: Final = 8.0
"""A TCP connection on which no answer has arrived for this long is probed."""

_REMEDIES: Final = {
    tlscheck.EXPIRED: "Renew the certificate",
    tlscheck.WRONG_NAME: "Check tls.serverName",
    tlscheck.UNKNOWN_CA: "Check tls.ca",
    tlscheck.NO_CERTIFICATE: "Set tls.certificate and tls.key",
    tlscheck.NOT_ACCEPTED: "Check tls.certificate and the driver's CA for clients",
    tlscheck.NOT_TLS: "Remove tls, or enable TLS in the driver",
}


@dataclass(eq=False)
class Link:
    """The connection to one driver, and its state.

    Attributes:
        driver: the driver; set by the first handshake, and kept while the connection is lost.
        is_served: whether the driver is connected, known and announced.
        losses: the client's `connection_losses` at the last handshake.
        shaking: the handshake in progress, in another thread.
        has_failed: whether the last handshake failed; if so, the next one uses the pool for
            failing drivers.
        proving: the check in progress of whether the connection is dead.
    """

    spec: DriverSpec
    settings: Settings
    client: WatchedClient
    pace: Pace
    driver: Driver | None = None
    is_served: bool = False
    losses: int = 0
    shaking: Future[Driver] | None = None
    shaking_losses: int = 0
    has_failed: bool = False
    proving: Future[bool] | None = None
    proved_at: float = float("-inf")
    retry_at: float = 0.0
    lost_told_at: float = float("-inf")
    waiting_since: float = field(default_factory=time.monotonic)
    told_at: float = float("-inf")
    told: str = ""
    diagnosis: Future[str] | None = None

    @property
    def place(self) -> Place:
        """The report about the connection that is sent to Redis."""
        replica = self.client.replica
        if replica is None:
            return ANYWHERE
        longest = self.longest_call + MARGIN_SECONDS
        return Place(replica.address, replica.open_seconds(), longest)

    def seek(self, *, is_connected: bool) -> bool:
        """Move to the replica that all workers call or, without a connection, to the next replica.

        Return True if the address changed. This blocks while the host name is resolved.
        """
        replica = self.client.replica
        address = replica.next(is_connected=is_connected) if replica else ""
        if replica is None or not address:
            return False
        replica.revoke()
        replica.address = address
        self.client.move(address)
        _log.info(
            "connecting to a different replica of the driver", driver=self.name, address=address
        )
        return True

    @property
    def name(self) -> str:
        """The driver's name, or its endpoint while the name is unknown."""
        return self.spec.name or (self.driver.name if self.driver else self.spec.endpoint)

    @cached_property
    def longest_call(self) -> float:
        """The longest timeout of any call to the driver, in seconds; cached for frequent reads."""
        return self.spec.longest_call(self.settings)

    def change(self, spec: DriverSpec) -> None:
        """Apply new limits or class timeouts; this process announces them after a new handshake."""
        self.spec, self.is_served, self.retry_at = spec, False, 0.0
        vars(self).pop("longest_call", None)

    def shake(self) -> Driver:
        """Probe the driver and complete the handshake; this runs in a separate thread.

        Raises:
            ConfigError: the driver is not ready, a different driver answers, or a call failed. The
                message is one line.
        """
        if self.seek(is_connected=True):
            raise ConfigError(
                f"driver {self.name}: connecting to the replica that the workers call"
            )
        if self.client.replica is not None and not self.client.replica.address:
            raise ConfigError(f"driver {self.name}: no address of {self.spec.endpoint} is known")
        try:
            if not self.client.probe(timeout_seconds=PROBE_SECONDS):
                raise ConfigError(f"driver {self.name} is not ready yet")
        except CsiError as error:
            if self.client.is_tcp and error.code == DEADLINE_EXCEEDED:
                self.client.mend(PROBE_SECONDS)
            raise ConfigError(f"driver {self.name} does not answer Probe: {error}") from None
        found = handshake(self.client, self.settings)
        expected = self.driver.name if self.driver else self.spec.name
        if expected and found.name != expected:
            raise ConfigError(
                f"the driver at {self.spec.endpoint} is {found.name}, not {expected}, so it is not "
                "served. Correct the name or the endpoint"
            )
        return replace(
            found,
            pace=self.pace,
            timeouts=self.spec.timeouts,
            class_timeouts=self.spec.class_timeouts,
            limits={name: one.concurrency for name, one in self.spec.limits.items()},
            limits_per_node=self.spec.limits_per_node,
        )

    def diagnose(self) -> str:
        """Return one line that explains why there is no connection; runs in a separate thread."""
        if self.seek(is_connected=False):
            return ""
        place = f"driver {self.name} at {self.spec.endpoint}"
        if trouble := tls_trouble(self.spec):
            return f"{place}: {trouble}"
        try:
            self.client.probe(timeout_seconds=PROBE_SECONDS)
        except CsiError as error:
            return f"{place}: not connected: {' '.join(error.details.split())[:200]}"
        return ""

    def tell(self, line: str) -> None:
        """Log a problem once, and again every minute while it persists."""
        now = time.monotonic()
        if line and (line != self.told or now - self.told_at > TELL_EVERY_SECONDS):
            self.told, self.told_at = line, now
            _log.warning("the driver is not served", driver=self.name, err=line)


def _replica(spec: DriverSpec) -> Replica | None:
    return Replica(*host_and_port(spec.endpoint)) if spec.is_one_replica else None


def tls_trouble(spec: DriverSpec) -> str:
    """Return why TLS fails, and the remedy; "" if TLS is not the problem.

    This blocks for up to about 5 s.
    """
    if spec.tls is None:
        return ""
    refusal = tlscheck.refusal(*host_and_port(spec.endpoint), spec.tls)
    if not refusal:
        return ""
    return f"the TLS connection fails: {refusal}. {_REMEDIES.get(refusal, 'Check the tls files')}"


def open_link(
    spec: DriverSpec,
    base: Settings,
    pace: Pace,
    observer: Callable[[str, str, float], None] | None,
    make_client: Callable[..., WatchedClient] = WatchedClient,
) -> Link:
    """Return a link that connects in the background.

    Raises:
        ConfigError: the endpoint or a TLS file is unusable.
    """
    settings = spec.settings(base)
    try:
        client = make_client(
            spec.endpoint,
            pace,
            timeout_seconds=settings.driver.timeout_seconds,
            observer=observer,
            allow_tcp=spec.allow_tcp,
            tls=spec.tls,
            timeouts_by_rpc=spec.timeouts_by_rpc(),
            replica=_replica(spec),
        )
    except CsiAddressError as error:
        raise ConfigError(f"driver {spec.name} at {spec.endpoint}: {error}", exit_code=1) from error
    return Link(spec, settings, client, pace)

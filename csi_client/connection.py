"""Opens the channel to a driver and monitors its connection.

A channel connects lazily and repairs itself. While it is down, calls fail at once with UNAVAILABLE
(`wait_for_ready` is not set, because it would block a worker's thread until the call's timeout).
`Link` monitors the channel, so that a driver's keys are held back while its socket is gone.
Upstream exits when the connection is lost; csi-fleet reconnects (see `Link.losses`). Spec: P-002,
P-003.
"""

from __future__ import annotations

import re
import threading
import time
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Any, Final

import grpc

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

MAX_RECEIVE_BYTES: Final = 16 * 1024 * 1024
"""The size of the largest accepted answer; gRPC's 4 MiB is too small for long ListVolumes pages.

The transport refuses a larger answer before it fills the memory; `from_transport` of the error is
then True.
"""

MAX_METADATA_BYTES: Final = 1024 * 1024
"""The largest size of metadata, which includes the status message.

With gRPC's default of 16 KiB, the client replaces a longer error with its own RESOURCE_EXHAUSTED,
which would be mistaken for a full storage pool (D-024).
"""

MAX_SOCKET_PATH_BYTES: Final = 107
"""Linux, unix(7): sun_path has 108 bytes, including the terminating zero."""

_WATCH_PERIOD_SECONDS: Final = 0.3
"""The period at which all connections are checked."""

_WAIT_PERIOD_SECONDS: Final = 0.01
"""The period of the check in `Link.wait`; short, because users wait while a driver starts."""

_READY: Final = 2
"""The value of GRPC_CHANNEL_READY in the C core's grpc_connectivity_state."""

_NEVER_MS: Final = 2**31 - 1

_UNACKNOWLEDGED_MS: Final = 20_000
"""How long sent TCP data may remain unacknowledged before the connection is closed."""
_UNIX: Final = "unix://"
_CLIENTS: Final = count(1)
# The Go sidecar's message, followed by the remedy.
_REFUSED: Final = (
    "OnConnectionLoss callback only supported for unix:// addresses: "
    "give an absolute path, such as /run/csi/socket"
)
_TCP: Final = re.compile(r"(dns:///)?(?P<host>\[[0-9a-fA-F:.]+\]|[\w.-]+):(?P<port>\d{1,5})")


class CsiAddressError(ValueError):
    """The address or its TLS files cannot be used; the message fits in a log or status line."""


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """PEM-encoded files for mutual TLS to a driver over TCP.

    `server_name` is the name that the driver's certificate must have; None means the host of the
    address. `certificate` and `key` belong together; without them the driver cannot authenticate
    us.
    """

    ca: Path
    certificate: Path | None = None
    key: Path | None = None
    server_name: str | None = None

    def credentials(self) -> grpc.ChannelCredentials:
        """Read the files once; a rotated certificate needs a new channel.

        Raises:
            CsiAddressError: a file is missing or unreadable, or only one of the certificate and
                the key is given.
        """
        if (self.certificate is None) != (self.key is None):
            raise CsiAddressError("a TLS client certificate and its key must be given together")
        return grpc.ssl_channel_credentials(
            root_certificates=_read(self.ca),
            private_key=None if self.key is None else _read(self.key),
            certificate_chain=None if self.certificate is None else _read(self.certificate),
        )


def parse_address(address: str, *, allow_tcp: bool = False) -> str:
    """Return the gRPC target for a driver's address (P-002).

    `/run/csi.sock` and `unix:///run/csi.sock` give `unix:/run/csi.sock`; `unix://@name` is a socket
    in Linux's abstract namespace. With `allow_tcp`, which only central mode sets, `host:port` and
    `dns:///host:port` give `dns:///host:port`.

    Raises:
        CsiAddressError: any other address; if the Go sidecar has a message, this one begins with
            it.
    """
    if address.startswith("/"):
        address = _UNIX + address
    if address.startswith(_UNIX):
        return _unix_target(address.removeprefix(_UNIX))
    if not allow_tcp:
        raise CsiAddressError(_REFUSED)
    match = _TCP.fullmatch(address)
    if not match or not 0 < int(match["port"]) < 65536:
        raise CsiAddressError(
            f"driver address {address!r} is neither a unix socket nor host:port nor dns:///host:port"
        )
    return f"dns:///{match['host']}:{match['port']}"


def address_target(address: str, port: int) -> str:
    """Return the gRPC target for an IP address and a port."""
    return f"ipv6:[{address}]:{port}" if ":" in address else f"ipv4:{address}:{port}"


def host_and_port(target: str) -> tuple[str, int]:
    """Return the host and the port of a TCP target."""
    host, _, port = target.removeprefix("dns:///").rpartition(":")
    return host.strip("[]"), int(port)


def open_channel(
    target: str,
    *,
    tls: TlsFiles | None = None,
    max_receive_bytes: int = MAX_RECEIVE_BYTES,
    host: str = "",
    library: Any = grpc,
    options: Sequence[tuple[str, str | int]] = (),
) -> Any:
    """Open a channel to a target of `parse_address`; it connects at the first use or check.

    If `host` is set, the target is one of the addresses of that host, and the server is expected to
    have the host's name. `library` is `grpc` or `grpc.aio`; `options` are
    added to the usual ones.

    Raises:
        CsiAddressError: `tls` is set for a unix socket, or the TLS files cannot be read.
    """
    is_unix = target.startswith(("unix:", "unix-abstract:"))
    if tls is None:
        chosen = [*_options(is_unix, None, max_receive_bytes), *options]
        if host:
            chosen.append(("grpc.default_authority", host))
        return library.insecure_channel(target, options=chosen)
    if is_unix:
        raise CsiAddressError("TLS is for drivers over TCP, not for a unix socket")
    chosen = [*_options(is_unix, tls.server_name or host or None, max_receive_bytes), *options]
    return library.secure_channel(target, tls.credentials(), options=chosen)


def wait_connected(
    channel: grpc.Channel,
    timeout_seconds: float = 30.0,
    on_wait: Callable[[], None] | None = None,
    *,
    wait_every_seconds: float = 10.0,
) -> bool:
    """Connect; return True if this succeeded within the timeout (P-002).

    `on_wait` is called in this thread every `wait_every_seconds`, to log `Still connecting`.
    """
    link = Link(channel)
    try:
        return link.wait(timeout_seconds, on_wait, wait_every_seconds=wait_every_seconds)
    finally:
        link.close()


class Link:
    """Monitors one channel's connection and makes the channel reconnect after a loss.

    `losses` counts lost connections. When it grows, there may be a different driver behind the
    socket, so the caller must read the name and the capabilities again (P-003). If a call
    reconnects before the next check (0.3 s), the loss may not be counted.

    One thread checks all channels of the process. gRPC's own `subscribe` costs a thread and five
    wake-ups a second per channel: 8 % of a core for 200 idle drivers, instead of 0.2 %.
    """

    def __init__(self, channel: grpc.Channel, *, losses: int = 0) -> None:
        self._channel: Any = channel
        self._lock = threading.Lock()
        self._is_connected = False
        self._is_closed = False
        self._losses = losses
        _WATCH.add(self)

    @property
    def is_connected(self) -> bool:
        """Return True if the driver's socket was connected at the last check (every 0.3 s)."""
        return self._is_connected

    @property
    def losses(self) -> int:
        """Return how many times an established connection has been lost."""
        return self._losses

    def look(self) -> bool:
        """Return True if the channel is connected, and make an idle channel connect.

        Otherwise, gRPC would reconnect after a loss only when the next call is made.
        """
        with self._lock:
            if self._is_closed:
                return False
            # The only public way to read the state is `subscribe`, and it costs a thread (see the
            # class's docstring).
            ask = self._channel._channel.check_connectivity_state  # noqa: SLF001
            try:
                is_ready = bool(ask(True) == _READY)  # noqa: FBT003 - Cython, takes no names
            except ValueError:  # the channel was closed first
                self._is_closed, is_ready = True, False
            if self._is_connected and not is_ready:
                self._losses += 1
            self._is_connected = is_ready
            return is_ready

    def wait(
        self,
        timeout_seconds: float,
        on_wait: Callable[[], None] | None = None,
        *,
        wait_every_seconds: float = 10.0,
    ) -> bool:
        """Wait for the connection, for at most `timeout_seconds`; see `wait_connected`."""
        started = time.monotonic()
        deadline, tell_at = started + timeout_seconds, started + wait_every_seconds
        while not self.look():
            now = time.monotonic()
            if now >= deadline:
                return False
            if now >= tell_at:
                tell_at += wait_every_seconds
                if on_wait is not None:
                    on_wait()
            time.sleep(_WAIT_PERIOD_SECONDS)
        return True

    def close(self) -> None:
        """Stop monitoring; the channel remains open. Idempotent."""
        _WATCH.remove(self)
        with self._lock:
            self._is_closed, self._is_connected = True, False


class _Watch:
    """The thread that checks all links; it runs as long as there are links."""

    def __init__(self) -> None:
        self._links: set[Link] = set()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._is_empty = threading.Event()
        self._round_at = time.monotonic()

    def silent_seconds(self) -> float:
        """Return the seconds since the last round of checks; 0 while there are no links."""
        return time.monotonic() - self._round_at if self._thread is not None else 0.0

    def add(self, link: Link) -> None:
        with self._lock:
            self._links.add(link)
            self._is_empty.clear()
            if self._thread is None:
                self._round_at = time.monotonic()
                self._thread = threading.Thread(target=self._run, name="csi-links", daemon=True)
                self._thread.start()

    def remove(self, link: Link) -> None:
        with self._lock:
            self._links.discard(link)
            if not self._links:
                self._is_empty.set()

    def _run(self) -> None:
        while True:
            with self._lock:
                links = list(self._links)
                if not links:
                    self._thread = None
                    return
            for link in links:
                link.look()
            self._round_at = time.monotonic()
            self._is_empty.wait(_WATCH_PERIOD_SECONDS)


_WATCH: Final = _Watch()


def links_silent_seconds() -> float:
    """Return the seconds since the connections were last checked.

    A result of more than a few seconds means that the checking thread is stuck.
    """
    return _WATCH.silent_seconds()


def _options(
    is_unix: bool, server_name: str | None, max_receive_bytes: int
) -> list[tuple[str, str | int]]:
    options: list[tuple[str, str | int]] = [
        ("grpc.max_receive_message_length", max_receive_bytes),
        ("grpc.max_send_message_length", -1),
        ("grpc.max_metadata_size", MAX_METADATA_BYTES),
        ("grpc.absolute_max_metadata_size", MAX_METADATA_BYTES),
        # gRPC must not retry a call, because our records would not contain a second CreateVolume.
        ("grpc.enable_retries", 0),
        ("grpc.service_config_disable_resolution", 1),
        # gRPC's back-off would grow to 2 minutes, but the client must find a restarted driver
        # quickly.
        ("grpc.initial_reconnect_backoff_ms", 200),
        ("grpc.min_reconnect_backoff_ms", 200),
        ("grpc.max_reconnect_backoff_ms", 1000),
        # No idle timeout (P-002), and no keepalive: Go drivers respond to a keepalive with
        # too_many_pings.
        ("grpc.client_idle_timeout_ms", _NEVER_MS),
        ("grpc.keepalive_time_ms", _NEVER_MS if is_unix else _NEVER_MS - 1),
        # Channels with equal options share a connection and its back-off. Two clients of one driver
        # (migration, P-009) must not share them, so each gets a different value of an unused
        # option.
        ("csi-fleet.client", next(_CLIENTS)),
        # HTTP_PROXY in the environment is meant for the internet, not for drivers.
        ("grpc.enable_http_proxy", 0),
    ]
    if not is_unix:
        # If keepalive is on, gRPC sets TCP_USER_TIMEOUT, even though no ping is ever due here. If
        # packets are dropped, the connection then ends after that time, not after the kernel's 15
        # minutes.
        options.append(("grpc.keepalive_timeout_ms", _UNACKNOWLEDGED_MS))
    else:
        # By default, `:authority` is the escaped socket path, which strict servers refuse.
        options.append(("grpc.default_authority", "localhost"))
    if server_name is not None:
        options.append(("grpc.ssl_target_name_override", server_name))
    return options


def _unix_target(path: str) -> str:
    if not path or path == "@":
        raise CsiAddressError("the address of the driver's unix socket has no path")
    if len(path.encode()) > MAX_SOCKET_PATH_BYTES:
        raise CsiAddressError(
            f"unix socket path {path!r} is longer than {MAX_SOCKET_PATH_BYTES} bytes"
        )
    return f"unix-abstract:{path[1:]}" if path.startswith("@") else f"unix:{path}"


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise CsiAddressError(f"TLS file {path}: {error.strerror}") from error

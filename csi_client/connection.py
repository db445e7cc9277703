"""How the channel to a driver is opened, and whether the driver is there.

A channel is lazy and mends itself; calls fail at once with UNAVAILABLE while it is down (no
`wait_for_ready`: that would hold a worker's thread for a whole deadline). `Link` watches it, so
that a driver's keys can be parked while its socket is gone (P-002, P-003 and their replacement by
reconnecting: see `Link.losses`).
"""

from __future__ import annotations

import re
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import grpc

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

MAX_RECEIVE_BYTES: Final = 16 * 1024 * 1024
"""Largest answer taken, for long ListVolumes pages; gRPC's own 4 MiB is too small for them.

A larger one (64 MiB and more) is refused by the transport before it fills the memory, and is
reported as `from_transport`.
"""

MAX_METADATA_BYTES: Final = 1024 * 1024
"""A status message travels as metadata. gRPC's default of 16 KiB turns a driver's longer error
into a RESOURCE_EXHAUSTED made by the client, which would read as "the pool is full" (D-024)."""

MAX_SOCKET_PATH_BYTES: Final = 107
"""Linux, unix(7): sun_path has 108 bytes with the closing zero."""

_WATCH_PERIOD_SECONDS: Final = 0.3
"""grpc._channel looks for new wishes every 0.2 s."""

_NEVER_MS: Final = 2**31 - 1
_UNIX: Final = "unix://"
_REFUSED: Final = "OnConnectionLoss callback only supported for unix:// addresses"
_TCP: Final = re.compile(r"(dns:///)?(?P<host>\[[0-9a-fA-F:.]+\]|[\w.-]+):(?P<port>\d{1,5})")


class CsiAddressError(ValueError):
    """The address or its TLS files cannot be used; the text is meant for a log or a status line."""


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """Files for mutual TLS to a driver over TCP, PEM encoded.

    `server_name` is the name the driver's certificate must carry; None: the host of the address.
    `certificate` and `key` go together; without them the driver cannot ask who we are.
    """

    ca: Path
    certificate: Path | None = None
    key: Path | None = None
    server_name: str | None = None

    def credentials(self) -> grpc.ChannelCredentials:
        """Read the files now; a rotated certificate needs a new channel.

        Raises:
            CsiAddressError: a file is missing, unreadable or without its partner.
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

    `/run/csi.sock` and `unix:///run/csi.sock` give `unix:/run/csi.sock`; `unix://@name` is a
    socket in Linux's abstract space. With `allow_tcp` (central mode, never beside the driver)
    `host:port` and `dns:///host:port` give `dns:///host:port`.

    Raises:
        CsiAddressError: anything else, with the text of the Go sidecar where it has one.
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


def open_channel(
    target: str, *, tls: TlsFiles | None = None, max_receive_bytes: int = MAX_RECEIVE_BYTES
) -> grpc.Channel:
    """Open a channel to a target of `parse_address`; one per driver, shared by all threads.

    Nothing is connected yet.

    Raises:
        CsiAddressError: `tls` for a unix socket, or its files cannot be read.
    """
    is_unix = target.startswith(("unix:", "unix-abstract:"))
    if tls is None:
        return grpc.insecure_channel(target, options=_options(is_unix, None, max_receive_bytes))
    if is_unix:
        raise CsiAddressError("TLS is for drivers over TCP, not for a unix socket")
    options = _options(is_unix, tls.server_name, max_receive_bytes)
    return grpc.secure_channel(target, tls.credentials(), options=options)


def wait_connected(
    channel: grpc.Channel,
    timeout_seconds: float = 30.0,
    on_wait: Callable[[], None] | None = None,
    *,
    wait_every_seconds: float = 10.0,
) -> bool:
    """Connect and tell whether that worked within the time (P-002).

    `on_wait` is called from this thread every `wait_every_seconds`, to log `Still connecting`.
    """
    link = Link(channel)
    try:
        return link.wait(timeout_seconds, on_wait, wait_every_seconds=wait_every_seconds)
    finally:
        link.close()


class Link:
    """Watches one channel's connection and asks it to connect again when it was lost.

    `losses` counts the lost connections. A caller that remembers the number knows when the driver
    may have been replaced behind its socket: name and capabilities must be read again (P-003). Two
    changes within a few milliseconds, with a call in between, can pass for none.
    """

    def __init__(self, channel: grpc.Channel) -> None:
        self._channel = channel
        self._connected = threading.Event()
        self._lock = threading.Lock()
        self._nudge: Callable[[grpc.ChannelConnectivity], None] | None = None
        self._nudged_at = 0.0
        self._watching = threading.Event()
        self._losses = 0
        channel.subscribe(self._on_state, try_to_connect=True)

    @property
    def is_connected(self) -> bool:
        """Tell whether the driver's socket is connected now."""
        return self._connected.is_set()

    @property
    def losses(self) -> int:
        """Count how often an established connection was lost."""
        return self._losses

    def wait(
        self,
        timeout_seconds: float,
        on_wait: Callable[[], None] | None = None,
        *,
        wait_every_seconds: float = 10.0,
    ) -> bool:
        """Block until connected, at most `timeout_seconds`; see `wait_connected`."""
        deadline = time.monotonic() + timeout_seconds
        while (left := deadline - time.monotonic()) > 0:
            if self._connected.wait(min(left, wait_every_seconds)):
                return True
            if on_wait is not None and deadline - time.monotonic() > 0:
                on_wait()
        return self._connected.is_set()

    def close(self) -> None:
        """Stop watching; the channel stays open. Takes up to 0.3 s.

        gRPC's watching thread dies with a traceback when the channel is closed before it has begun
        or while it has a request to connect before it.
        """
        self._channel.unsubscribe(self._on_state)
        self._drop_nudge()
        self._watching.wait(_WATCH_PERIOD_SECONDS)
        time.sleep(max(0.0, self._nudged_at + _WATCH_PERIOD_SECONDS - time.monotonic()))

    def _on_state(self, state: grpc.ChannelConnectivity) -> None:
        is_first = not self._watching.is_set()
        self._watching.set()
        if state is grpc.ChannelConnectivity.READY:
            self._connected.set()
            return
        if self._connected.is_set():
            self._losses += 1
            self._connected.clear()
        if state is grpc.ChannelConnectivity.IDLE and not is_first:
            self._connect_again()

    def _connect_again(self) -> None:
        """Wake an idle channel: after a loss gRPC waits for the next call, which we do not send.

        Subscribing is the only public way to ask for a connection.
        """
        self._drop_nudge()

        def nudge(_state: grpc.ChannelConnectivity) -> None:
            """Take no part in the state: the subscription itself is the request."""

        with self._lock:
            self._nudge = nudge
            self._nudged_at = time.monotonic()
        self._channel.subscribe(nudge, try_to_connect=True)

    def _drop_nudge(self) -> None:
        with self._lock:
            nudge, self._nudge = self._nudge, None
        if nudge is not None:
            self._channel.unsubscribe(nudge)


def _options(
    is_unix: bool, server_name: str | None, max_receive_bytes: int
) -> list[tuple[str, str | int]]:
    options: list[tuple[str, str | int]] = [
        ("grpc.max_receive_message_length", max_receive_bytes),
        ("grpc.max_send_message_length", -1),
        ("grpc.max_metadata_size", MAX_METADATA_BYTES),
        ("grpc.absolute_max_metadata_size", MAX_METADATA_BYTES),
        # Only our own code repeats a call: a hidden second CreateVolume breaks the bookkeeping.
        ("grpc.enable_retries", 0),
        ("grpc.service_config_disable_resolution", 1),
        # gRPC's back-off grows to 2 minutes; a restarted driver must be found at once.
        ("grpc.initial_reconnect_backoff_ms", 200),
        ("grpc.min_reconnect_backoff_ms", 200),
        ("grpc.max_reconnect_backoff_ms", 1000),
        # No idle timeout (P-002), and no keepalive: Go drivers answer it with too_many_pings.
        ("grpc.client_idle_timeout_ms", _NEVER_MS),
        ("grpc.keepalive_time_ms", _NEVER_MS),
        # Two clients of one driver (migration, P-009) must not share a connection's back-off.
        ("grpc.use_local_subchannel_pool", 1),
        # A proxy of the environment is for the internet, not for storage.
        ("grpc.enable_http_proxy", 0),
    ]
    if is_unix:
        # Otherwise the escaped socket path becomes `:authority`, which strict servers refuse.
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

"""What is a connection to Redis that leaves a server which is no master any more?

The next one goes where the address or the sentinels lead by then. Each new connection reads the
password anew, so it may be changed while we run.
"""

from __future__ import annotations

import socket
import ssl
import struct
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

# redis-py loads OpenTelemetry's metrics if it can (for the extra `tracing` it can), which we do
# not use: 2.5 MiB in every process.
_telemetry = sys.modules.get("opentelemetry")
sys.modules["opentelemetry"] = None  # type: ignore[assignment]  # the documented way to forbid it
import redis  # noqa: E402
from redis.client import Pipeline  # noqa: E402
from redis.connection import Connection, SSLConnection, UnixDomainSocketConnection  # noqa: E402

if _telemetry is None:
    del sys.modules["opentelemetry"]
else:
    sys.modules["opentelemetry"] = _telemetry

from workers.queue.names import USUAL  # noqa: E402
from workers.syscalls import send_at_once  # noqa: E402

# A replica; a replica without its master; a master whose replicas do not confirm. The text counts
# too, because Redis 6 wraps the error of a script into another.
_LEFT: Final = (redis.exceptions.ReadOnlyError, redis.exceptions.MasterDownError)
_LEFT_WORDS: Final = ("READONLY ", "MASTERDOWN ", "NOREPLICAS ")


if TYPE_CHECKING:
    from collections.abc import Callable

    _Mixed = Connection
else:
    _Mixed = object


_Class = TypeVar("_Class", bound="FollowingMixin")


class FollowingMixin(_Mixed):
    """A connection that ends itself when its server is no master any more.

    Attributes:
        password_file: its first line is the password; "" for the one it was made with.
    """

    password_file = ""

    def connect_check_health(
        self,
        check_health: bool = True,
        retry_socket_connect: bool = True,  # noqa: ARG002 - the library's own signature
    ) -> None:
        """As the base's, but tried once.

        Whoever asks for it repeats it: `connect` as well as a command. Repeated here too, each
        attempt of a command would mean as many connections as it has attempts: a minute at a host
        that drops packets, in which liveness takes the thread for one that hangs.
        """
        super().connect_check_health(check_health=check_health, retry_socket_connect=False)

    def _connect(self) -> socket.socket:
        """As the base's; the login that follows takes the password of this moment."""
        self.password = current_password(self.password_file) or self.password
        untyped: Any = super()
        sock: socket.socket = untyped._connect()  # noqa: SLF001 - our own base's
        _wait_in_kernel(sock)
        return sock

    def send_packed_command(self, command: Any, check_health: bool = True) -> None:
        """As the base's; what the kernel takes at once is sent without giving Python's lock away.

        Of what remains Python keeps the time: the kernel's is of each part.
        """
        sending: Any = super().send_packed_command
        sock: socket.socket | None = vars(self).get("_sock")
        if sock is None or isinstance(sock, ssl.SSLSocket) or isinstance(command, str):
            sending(command, check_health)
            return
        if check_health:
            self.check_health()  # type: ignore[no-untyped-call]
        data = command[0] if len(command) == 1 else b"".join(command)
        rest = data[send_at_once(sock, data) :]
        if rest:
            usual = sock.gettimeout()
            sock.settimeout(self.socket_timeout)
            # Which closes it when it fails; a question after health would stand in the command.
            sending([rest], False)  # noqa: FBT003 - the library's own argument
            sock.settimeout(usual)

    def read_response(self, *args: Any, **kwargs: Any) -> Any:
        """As the base's.

        Raises:
            redis.ConnectionError: the client connects anew and repeats the command.
            redis.TimeoutError: so it does.
        """
        try:
            return super().read_response(*args, **kwargs)
        except redis.ConnectionError as error:
            if isinstance(error.__context__, BlockingIOError):  # the kernel's time-out
                raise redis.TimeoutError("Timeout reading from socket") from error
            raise
        except redis.ResponseError as error:
            if not isinstance(error, _LEFT) and not any(w in str(error) for w in _LEFT_WORDS):
                raise
            self.disconnect()  # type: ignore[no-untyped-call]
            raise redis.ConnectionError(f"this server takes no writes: {error}") from error


class TcpConnection(FollowingMixin, Connection):
    """Over TCP."""


class TlsConnection(FollowingMixin, SSLConnection):
    """Over TLS."""


class UnixConnection(FollowingMixin, UnixDomainSocketConnection):
    """Over a unix socket."""


def _wait_in_kernel(sock: socket.socket) -> None:
    """Leave the time-out to the kernel, as long: one system call to send and one to receive.

    Python asks the socket before each, and every call hands its lock to another thread: of a busy
    worker's switches between threads they were a third. TLS stays with Python, whose library knows
    no time-out of the kernel.
    """
    seconds = sock.gettimeout()
    if not seconds or isinstance(sock, ssl.SSLSocket):
        return
    # A `timeval`.
    wait = struct.pack("ll", int(seconds), int(seconds % 1 * 1e6))
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, wait)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, wait)
    sock.settimeout(None)


def current_password(path: str) -> str:
    """The first line of a password file; "" for none, and while it is being replaced."""
    try:
        text = Path(path).read_text(encoding="utf-8") if path else ""
    except (OSError, UnicodeDecodeError):
        return ""
    return text.strip().partition("\n")[0].strip()


def reading_password(kind: type[_Class], path: str) -> type[_Class]:
    """The same class of connections, with a password file."""
    return type(kind.__name__, (kind,), {"password_file": path}) if path else kind


def _settled(connection: Any, exchange: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    try:
        return exchange(connection, *args, **kwargs)
    except (redis.ResponseError, redis.WatchError):  # all answers were read
        raise
    except BaseException:
        connection.disconnect()
        raise


class _SettledMixin:
    """Its exchanges close the connection when they are interrupted (KeyboardInterrupt, SystemExit).

    The library gives it back to the pool with an answer to come, which the next command, of any
    thread, would take for its own. Its look for such answers is off where the protocol has pushes.
    """

    def _send_command_parse_response(self, conn: Any, *args: Any, **options: Any) -> Any:
        untyped: Any = super()
        return _settled(conn, untyped._send_command_parse_response, *args, **options)  # noqa: SLF001 - our own base's


class ClientPipeline(_SettledMixin, Pipeline):
    """Commands that go together."""

    def _execute_pipeline(self, connection: Any, *args: Any) -> Any:
        untyped: Any = super()
        return _settled(connection, untyped._execute_pipeline, *args)  # noqa: SLF001 - our own base's

    def _execute_transaction(self, connection: Any, *args: Any) -> Any:
        untyped: Any = super()
        return _settled(connection, untyped._execute_transaction, *args)  # noqa: SLF001 - our own base's


class Client(_SettledMixin, redis.Redis):
    """A thread-safe client of one cluster's Redis.

    Attributes:
        names: of that cluster's keys.
    """

    names = USUAL

    def pipeline(self, transaction: bool = True, shard_hint: Any = None) -> ClientPipeline:
        """As the base's."""
        pool, callbacks = self.connection_pool, self.response_callbacks
        return ClientPipeline(pool, callbacks, transaction, shard_hint)

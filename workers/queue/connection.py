"""How do we talk to Redis, and what do its errors become?

Every command this package sends is safe to repeat (scripts answer a repeated request the same way
or do nothing), therefore the client may retry after a lost reply. A server that says that it is not
the master any more, or that it has lost its replicas, is left at once: the next connection goes
where the address or the sentinels lead by then.

Each new connection reads the password and the TLS files anew, so they may be changed while we run.
"""

from __future__ import annotations

import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

# redis-py loads OpenTelemetry's metrics if it can (for the extra `tracing` it can), which we do
# not use: 2.5 MiB in every process.
_telemetry = sys.modules.get("opentelemetry")
sys.modules["opentelemetry"] = None  # type: ignore[assignment]  # the documented way to forbid it
import redis  # noqa: E402
from redis.backoff import ExponentialWithJitterBackoff  # noqa: E402
from redis.connection import Connection, SSLConnection, UnixDomainSocketConnection  # noqa: E402
from redis.retry import Retry  # noqa: E402

if _telemetry is None:
    del sys.modules["opentelemetry"]
else:
    sys.modules["opentelemetry"] = _telemetry

from workers.config.redisurl import is_sentinel, parse_sentinels  # noqa: E402
from workers.errors import QueueUnavailable  # noqa: E402

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterator

# For those who only hand a client on.
RedisClient = redis.Redis
ResponseError = redis.ResponseError
NoScriptError = redis.exceptions.NoScriptError
NoPermissionError = redis.exceptions.NoPermissionError

# Pitfalls 8: half-open connections are found within the time-out, a fail-over within the retries.
SOCKET_TIMEOUT_SECONDS = 5.0
RETRIES = 3
# Of the client that keeps the leases: it must know that its connection is dead, and have asked
# again over a new one, before a lease of 4 s ends.
HEARTBEAT_TIMEOUT_SECONDS = 1.0
HEARTBEAT_RETRIES = 1

# A replica; a replica without its master; a master whose replicas do not confirm. The text counts
# too, because Redis 6 wraps the error of a script into another.
_LEFT: Final = (redis.exceptions.ReadOnlyError, redis.exceptions.MasterDownError)
_LEFT_WORDS: Final = ("READONLY ", "MASTERDOWN ", "NOREPLICAS ")


if TYPE_CHECKING:
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

    def _connect(self) -> socket.socket:
        """As the base's; the login that follows takes the password of this moment."""
        self.password = current_password(self.password_file) or self.password
        untyped: Any = super()
        sock: socket.socket = untyped._connect()  # noqa: SLF001 - our own base's
        return sock

    def read_response(self, *args: Any, **kwargs: Any) -> Any:
        """As the base's.

        Raises:
            redis.ConnectionError: the client connects anew and repeats the command.
        """
        try:
            return super().read_response(*args, **kwargs)
        except ResponseError as error:
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


def current_password(path: str) -> str:
    """The first line of a password file; "" for none, and while it is being replaced."""
    try:
        lines = Path(path).read_text(encoding="utf-8").split() if path else []
    except (OSError, UnicodeDecodeError):
        return ""
    return lines[0] if lines else ""


def reading_password(kind: type[_Class], path: str) -> type[_Class]:
    """The same class of connections, with a password file."""
    return type(kind.__name__, (kind,), {"password_file": path}) if path else kind


_CLASSES: Final = {"redis": TcpConnection, "rediss": TlsConnection, "unix": UnixConnection}


def connect(
    url: str,
    *,
    password_file: str = "",
    socket_timeout_seconds: float = SOCKET_TIMEOUT_SECONDS,
    retries: int = RETRIES,
    max_connections: int | None = None,
) -> redis.Redis:
    """A thread-safe client; nothing is sent before the first command.

    Args:
        url: `redis://`, `rediss://`, `unix://` or `sentinel://`, with the database that the Celery
            broker uses.
        password_file: where its password stands, "" for nowhere else.
        socket_timeout_seconds: bound of one command; a retry starts after it.
        retries: of one command.
        max_connections: bound of the pool, None for none.
    """
    options: dict[str, Any] = {
        "socket_timeout": socket_timeout_seconds,
        "socket_connect_timeout": socket_timeout_seconds,
        "health_check_interval": 10,
        "max_connections": max_connections,
        "retry": Retry(ExponentialWithJitterBackoff(cap=1, base=0.05), retries),
        "decode_responses": False,
    }
    if is_sentinel(url):
        from workers.queue.sentinels import master_client  # noqa: PLC0415 - rarely needed

        return master_client(parse_sentinels(url), password_file=password_file, **options)
    scheme = url.partition(":")[0]
    if scheme != "unix":
        options["socket_keepalive"] = True
    if scheme in _CLASSES:
        options["connection_class"] = reading_password(_CLASSES[scheme], password_file)
    return redis.Redis.from_url(url, **options)


def connect_heartbeat(url: str, *, password_file: str = "") -> redis.Redis:
    """The client of the thread that keeps the leases: nobody else's commands wait in it."""
    return connect(
        url,
        password_file=password_file,
        socket_timeout_seconds=HEARTBEAT_TIMEOUT_SECONDS,
        retries=HEARTBEAT_RETRIES,
    )


@contextmanager
def redis_errors() -> Iterator[None]:
    """Turn every error of the redis library into the one the callers know.

    Raises:
        QueueUnavailable: Redis does not answer, is full, read-only, loading or refuses us.
    """
    try:
        yield
    except redis.RedisError as error:
        raise QueueUnavailable(f"redis: {error}") from error

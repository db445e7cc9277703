"""Creates Redis clients with timeouts, retries and logins, and converts redis-py's errors.

Every command of this package may be repeated: a script returns the same reply to a repeated call,
or does nothing. So the client retries a command whose reply was lost. With Sentinel, redis-py asks
the sentinels for the master at each new connection. A connection to a former master is closed at
the first refused write, and the caller's next command reaches the new master.

Each new connection reads the password file and the TLS files, so both may change while csi-fleet is
running.
"""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast
from urllib.parse import unquote

import redis
from redis.backoff import ExponentialWithJitterBackoff
from redis.credentials import CredentialProvider
from redis.exceptions import MasterDownError, ReadOnlyError
from redis.retry import Retry
from redis.sentinel import Sentinel

from workers.config.redisurl import is_sentinel, parse_sentinels
from workers.errors import QueueFull, QueueUnavailable
from workers.queue.names import USUAL
from workers.queue.remedies import told

if TYPE_CHECKING:
    from collections.abc import Iterator

    from workers.config.redisurl import SentinelUrl
    from workers.queue.names import Names

# The type of a client, for modules that only pass a client on to others.
RedisClient = redis.Redis
RedisError = redis.RedisError
ResponseError = redis.ResponseError
WatchError = redis.WatchError
NoPermissionError = redis.exceptions.NoPermissionError

# This timeout detects a half-open connection. Each retry of a command also reconnects. If a host
# drops packets, a command fails after 5 + 2 * 3 * 2 s plus about 2 s of pauses between the
# attempts.
SOCKET_TIMEOUT_SECONDS = 5.0
CONNECT_TIMEOUT_SECONDS = 2.0
RETRIES = 2
# Timeout for the client that renews the leases: it must detect a dead connection, and retry over a
# new connection, before a lease of 4 s expires.
HEARTBEAT_TIMEOUT_SECONDS = 1.0
HEARTBEAT_RETRIES = 1
# A sentinel replies from memory, so a sentinel that is silent for this long is skipped.
SENTINEL_TIMEOUT_SECONDS: Final = 1.0


class Client(redis.Redis):
    """A thread-safe client for one cluster's Redis.

    Attributes:
        names: the names of that cluster's keys.
    """

    names = USUAL


class FileLogin(CredentialProvider):
    """A user name, and a password that is read from a file when a connection is opened.

    Args:
        username: the user name; "" for the default user.
        password: the password to use while the file cannot be read.
        file: the file whose first line is the password.
    """

    def __init__(self, username: str, password: str, file: str) -> None:
        self._username = username
        self._password = password
        self._file = file

    def get_credentials(self) -> tuple[str] | tuple[str, str]:
        """Return the user name and the password; redis-py calls this for each connection."""
        password = first_line(self._file) or self._password
        return (self._username, password) if self._username else (password,)

    async def get_credentials_async(self) -> tuple[str] | tuple[str, str]:
        """Return what `get_credentials` returns; Flower's asynchronous client calls this."""
        return self.get_credentials()

    def __json__(self) -> str:
        """Return the string for Flower, because kombu sends connection options as JSON."""
        return type(self).__name__


def first_line(path: str) -> str:
    """Return the first line of a password file; "" if the file cannot be read or `path` is empty.

    While the file is being replaced, it cannot be read for a moment.
    """
    try:
        text = Path(path).read_text(encoding="utf-8") if path else ""
    except (OSError, UnicodeDecodeError):
        return ""
    return text.strip().partition("\n")[0].strip()


def split_login(url: str) -> tuple[str, str, str]:
    """Split a Redis URL into the URL without its login, the user name and the password."""
    scheme, separator, rest = url.partition("://")
    authority, slash, path = rest.partition("/")
    login, _, host = authority.rpartition("@")
    username, _, password = login.partition(":")
    return f"{scheme}{separator}{host}{slash}{path}", unquote(username), unquote(password)


def connect(
    url: str,
    *,
    password_file: str = "",
    socket_timeout_seconds: float = SOCKET_TIMEOUT_SECONDS,
    retries: int = RETRIES,
    max_connections: int | None = None,
    names: Names = USUAL,
) -> Client:
    """Return a thread-safe client; it sends nothing before the first command.

    Args:
        url: a `redis://`, `rediss://`, `unix://` or `sentinel://` URL, with the database that
            the Celery broker uses.
        password_file: the path of the file that contains the password; "" for no file.
        socket_timeout_seconds: the timeout for one command; the command is then retried.
        retries: how many times a command is retried.
        max_connections: the maximum size of the connection pool; None for no limit.
        names: the names of the cluster's keys; each cluster has its own prefix.
    """
    options: dict[str, Any] = {
        "socket_timeout": socket_timeout_seconds,
        "socket_connect_timeout": min(socket_timeout_seconds, CONNECT_TIMEOUT_SECONDS),
        "max_connections": max_connections,
        "retry": Retry(ExponentialWithJitterBackoff(cap=1, base=0.05), retries),
        # If the address now leads to another server, the retried command reaches the new master.
        "retry_on_error": [ReadOnlyError, MasterDownError],
        # With RESP3, the pool would return connections that still hold the reply to an interrupted
        # command.
        "protocol": 2,
    }
    if is_sentinel(url):
        client = _client_of_master(parse_sentinels(url), password_file, options)
    else:
        if not url.startswith("unix:"):
            options["socket_keepalive"] = True
        if password_file:
            url, username, password = split_login(url)
            options["credential_provider"] = FileLogin(username, password, password_file)
        client = cast("Client", Client.from_url(url, **options))
    client.names = names
    return client


def connect_heartbeat(url: str, *, password_file: str = "") -> Client:
    """Return the client for the thread that renews the leases.

    No other thread uses this client, so no other command can delay a renewal.
    """
    return connect(
        url,
        password_file=password_file,
        socket_timeout_seconds=HEARTBEAT_TIMEOUT_SECONDS,
        retries=HEARTBEAT_RETRIES,
    )


def sentinel_options(url: SentinelUrl) -> dict[str, Any]:
    """Return redis-py's options, sync or asyncio, for connections to the sentinels themselves."""
    login = FileLogin(url.sentinel_username, url.sentinel_password, url.sentinel_password_file)
    return {
        "socket_timeout": SENTINEL_TIMEOUT_SECONDS,
        "socket_connect_timeout": SENTINEL_TIMEOUT_SECONDS,
        # Without a retry, the client asks the next sentinel instead.
        "retry": None,
        "decode_responses": True,
        **({"ssl": True} if url.tls else {}),
        **url.tls,
        **({"credential_provider": login} if url.sentinel_password else {}),
    }


def _client_of_master(url: SentinelUrl, password_file: str, options: dict[str, Any]) -> Client:
    login = FileLogin(url.username, url.password, password_file)
    untyped: Any = Sentinel
    manager = untyped(
        url.hosts,
        sentinel_kwargs=sentinel_options(url),
        socket_keepalive=True,
        db=url.database,
        **({"ssl": True} if url.tls else {}),
        **url.tls,
        **({"credential_provider": login} if password_file else url.login),
        **options,
    )
    client: Client = manager.master_for(url.master, redis_class=Client)
    return client


@contextmanager
def redis_errors() -> Iterator[None]:
    """Convert every error of the redis library to QueueUnavailable.

    Raises:
        QueueUnavailable: Redis does not answer, is full, is read-only, is loading its data, or
            refuses the command.
    """
    try:
        yield
    except redis.exceptions.OutOfMemoryError as error:
        raise QueueFull(f"redis: {error}") from error
    except redis.RedisError as error:
        raise QueueUnavailable(told(error)) from error

"""The client of Redis: redis-py with time-outs, retries and logins, and its errors as csi-fleet's.

Every command of this package may be repeated (scripts answer a repeated request the same way or do
nothing), so the client repeats a command whose reply was lost. Behind sentinels redis-py asks them
for the master at each new connection. A connection to a server that is not the master any more ends
with the first refused write; the caller's next command reaches the new master.

Each new connection reads the password file and the TLS files, so both may change while csi-fleet
runs.
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

# For those who only hand a client on.
RedisClient = redis.Redis
RedisError = redis.RedisError
ResponseError = redis.ResponseError
WatchError = redis.WatchError
NoPermissionError = redis.exceptions.NoPermissionError

# A half-open connection is found within the time-out. Each repeated command repeats its connection
# too: at a host that drops packets a command ends after 5 + 2 * 3 * 2 s, and about 2 s between.
SOCKET_TIMEOUT_SECONDS = 5.0
CONNECT_TIMEOUT_SECONDS = 2.0
RETRIES = 2
# Of the client that keeps the leases: it must know that its connection is dead, and have asked
# again over a new one, before a lease of 4 s ends.
HEARTBEAT_TIMEOUT_SECONDS = 1.0
HEARTBEAT_RETRIES = 1
# A sentinel answers from memory; a silent one is passed over.
SENTINEL_TIMEOUT_SECONDS: Final = 1.0


class Client(redis.Redis):
    """A thread-safe client of one cluster's Redis.

    Attributes:
        names: of that cluster's keys.
    """

    names = USUAL


class FileLogin(CredentialProvider):
    """A user and the password that a file holds when a connection is made.

    Args:
        username: "" for the default user.
        password: what is used while the file cannot be read.
        file: its first line is the password.
    """

    def __init__(self, username: str, password: str, file: str) -> None:
        self._username = username
        self._password = password
        self._file = file

    def get_credentials(self) -> tuple[str] | tuple[str, str]:
        """User and password; redis-py calls it for each connection."""
        password = first_line(self._file) or self._password
        return (self._username, password) if self._username else (password,)

    async def get_credentials_async(self) -> tuple[str] | tuple[str, str]:
        """The same for Flower's client."""
        return self.get_credentials()

    def __json__(self) -> str:
        """What a worker reports of it to Flower: kombu writes connection options as JSON."""
        return type(self).__name__


def first_line(path: str) -> str:
    """The first line of a password file; "" for no path, and while the file is being replaced."""
    try:
        text = Path(path).read_text(encoding="utf-8") if path else ""
    except (OSError, UnicodeDecodeError):
        return ""
    return text.strip().partition("\n")[0].strip()


def split_login(url: str) -> tuple[str, str, str]:
    """A `redis://`, `rediss://` or `unix://` URL without its login; its user; its password."""
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
    """A thread-safe client; nothing is sent before the first command.

    Args:
        url: `redis://`, `rediss://`, `unix://` or `sentinel://`, with the database that the Celery
            broker uses.
        password_file: where its password stands, "" for nowhere else.
        socket_timeout_seconds: bound of one command; a retry starts after it.
        retries: of one command.
        max_connections: bound of the pool, None for none.
        names: of the keys, one prefix per cluster.
    """
    options: dict[str, Any] = {
        "socket_timeout": socket_timeout_seconds,
        "socket_connect_timeout": min(socket_timeout_seconds, CONNECT_TIMEOUT_SECONDS),
        "max_connections": max_connections,
        "retry": Retry(ExponentialWithJitterBackoff(cap=1, base=0.05), retries),
        # Where the address leads elsewhere now, the repeated command reaches the new master.
        "retry_on_error": [ReadOnlyError, MasterDownError],
        # With RESP3 the pool hands out a connection on which an interrupted command's answer waits.
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
    """The client of the thread that keeps the leases: nobody else's commands wait in it."""
    return connect(
        url,
        password_file=password_file,
        socket_timeout_seconds=HEARTBEAT_TIMEOUT_SECONDS,
        retries=HEARTBEAT_RETRIES,
    )


def sentinel_options(url: SentinelUrl) -> dict[str, Any]:
    """How to connect to the sentinels themselves, by the names of redis-py, sync and asyncio."""
    login = FileLogin(url.sentinel_username, url.sentinel_password, url.sentinel_password_file)
    return {
        "socket_timeout": SENTINEL_TIMEOUT_SECONDS,
        "socket_connect_timeout": SENTINEL_TIMEOUT_SECONDS,
        # The next sentinel is asked instead.
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
    """Turn every error of the redis library into the one the callers know.

    Raises:
        QueueUnavailable: Redis does not answer, is full, read-only, loading or refuses us.
    """
    try:
        yield
    except redis.exceptions.OutOfMemoryError as error:
        raise QueueFull(f"redis: {error}") from error
    except redis.RedisError as error:
        raise QueueUnavailable(told(error)) from error

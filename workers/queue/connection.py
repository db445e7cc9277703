"""How do we talk to Redis, and what do its errors become?

Every command this package sends is safe to repeat (scripts answer a repeated request the same way
or do nothing), therefore the client may retry after a lost reply. A server that says that it is not
the master any more, or that it has lost its replicas, is left at once: the next connection goes
where the address or the sentinels lead by then.

Each new connection reads the password and the TLS files anew, so they may be changed while we run.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, cast

from workers.queue.following import (
    Client,
    TcpConnection,
    TlsConnection,
    UnixConnection,
    reading_password,
)

# isort: split
import hiredis
import redis
from redis.backoff import ExponentialWithJitterBackoff
from redis.retry import Retry

from workers.config.redisurl import is_sentinel, parse_sentinels
from workers.errors import QueueFull, QueueUnavailable
from workers.queue.names import USUAL
from workers.queue.pooled import give_back, take_open
from workers.queue.remedies import told

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from workers.queue.names import Names

# For those who only hand a client on.
RedisClient = redis.Redis
RedisError = redis.RedisError
ResponseError = redis.ResponseError
WatchError = redis.WatchError
NoScriptError = redis.exceptions.NoScriptError
NoPermissionError = redis.exceptions.NoPermissionError

# Pitfalls 8: half-open connections are found within the time-out, a fail-over within the retries.
# At a host that drops packets one command ends after 4 time-outs and less than 1 s between them.
SOCKET_TIMEOUT_SECONDS = 5.0
RETRIES = 3
# Of the client that keeps the leases: it must know that its connection is dead, and have asked
# again over a new one, before a lease of 4 s ends.
HEARTBEAT_TIMEOUT_SECONDS = 1.0
HEARTBEAT_RETRIES = 1

_pack: Final[Callable[[tuple[Any, ...]], bytes]] = hiredis.pack_command  # its stub has one argument
_CLASSES: Final = {"redis": TcpConnection, "rediss": TlsConnection, "unix": UnixConnection}


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
        "socket_connect_timeout": socket_timeout_seconds,
        # A question before a command finds nothing that the command would not, and has retries of
        # its own.
        "health_check_interval": 0,
        "max_connections": max_connections,
        "retry": Retry(ExponentialWithJitterBackoff(cap=1, base=0.05), retries),
        "decode_responses": False,
    }
    if is_sentinel(url):
        from workers.queue.sentinels import master_client  # noqa: PLC0415 - rarely needed

        follower = master_client(parse_sentinels(url), password_file=password_file, **options)
        follower.names = names
        return follower
    scheme = url.partition(":")[0]
    if scheme != "unix":
        options["socket_keepalive"] = True
    if scheme in _CLASSES:
        options["connection_class"] = reading_password(_CLASSES[scheme], password_file)
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


def execute(client: redis.Redis, *command: str | bytes | float) -> Any:
    """One command, as the client's own methods send it: the same connections, retries and errors.

    Without redis-py's measurements and questions around each, see `pooled`: a dead connection is
    found by the command, and costs it one of its attempts.

    Raises:
        redis.RedisError: as theirs.
    """
    packed = [_pack(command)]
    pool = client.connection_pool
    connection: Any = take_open(pool) or pool.get_connection()

    def exchange() -> Any:
        connection.send_packed_command(packed)
        return connection.read_response()

    try:
        return connection.retry.call_with_retry(exchange, lambda _: connection.disconnect())
    except redis.ResponseError:
        raise
    except BaseException:
        # Interrupted between both, it has an answer to come, which is none of the next command.
        connection.disconnect()
        raise
    finally:
        give_back(pool, connection)


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

"""Where is the master now, when sentinels know?

Each new connection asks the sentinels. Those that stay open learn of a promotion from one thread
per process, which listens to a sentinel: whoever waits for an answer of the old master, dead or cut
off, is woken at once and asks the new one. The same holds for Celery's connections, which are made
of these classes too (workers/app.py).
"""

from __future__ import annotations

import contextlib
import socket
import threading
import weakref
from typing import TYPE_CHECKING, Any, Final

# First: it loads the library its own way.
from workers.observability.logging import get_logger
from workers.queue.following import Client, FollowingMixin, current_password, reading_password

# isort: split
import redis
from redis.backoff import NoBackoff
from redis.credentials import CredentialProvider
from redis.retry import Retry
from redis.sentinel import (
    Sentinel,
    SentinelManagedConnection,
    SentinelManagedSSLConnection,
)

from workers.loop import Loop

if TYPE_CHECKING:
    from collections.abc import Sequence

    from redis.connection import Connection

    from workers.config.redisurl import SentinelUrl

_log = get_logger(__name__)

# A sentinel answers from memory; one that is silent for longer is passed over.
SENTINEL_TIMEOUT_SECONDS: Final = 1.0
# Between two looks at the address while nothing is told: an announcement may get lost.
LOOK_SECONDS: Final = 5.0
RETRY_SECONDS: Final = 0.5
_SWITCH: Final = "+switch-master"

Address = tuple[str, int]


class Follower:
    """Ends connections to a server that is not the master any more.

    Args:
        sentinels: clients of them, in any order.
        master: its name.

    Attributes:
        address: of the master, as the sentinel of the newest configuration told; None while no
            sentinel is listened to. The others may take seconds to learn of a promotion.
    """

    def __init__(self, sentinels: Sequence[redis.Redis], master: str) -> None:
        self._sentinels = list(sentinels)
        self._master = master
        self._connections: weakref.WeakSet[Connection] = weakref.WeakSet()
        self._lock = threading.Lock()
        self._config_epoch = -1
        self.address: Address | None = None
        self._loop: Loop | None = None

    def add(self, connection: Connection) -> None:
        """Watch one more; the thread starts with the first, so that a process may fork before."""
        with self._lock:
            self._connections.add(connection)
            if self._loop is None:
                self._loop = Loop(f"sentinel {self._master}", self._step)
                self._loop.start()
        self._loop.wake()

    def _step(self) -> float | None:
        for sentinel in self._sentinels:
            try:
                self._listen(sentinel)
            except redis.RedisError as error:
                _log.v(5, "sentinel does not answer", err=error)
            self.address = None
        return RETRY_SECONDS if self._is_wanted() else None

    def _is_wanted(self) -> bool:
        """Whether anybody is connected; the next one wakes the thread."""
        with self._lock:
            return any(getattr(one, "is_open", False) for one in self._connections)

    def _listen(self, sentinel: redis.Redis) -> None:
        untyped: Any = sentinel
        with (
            contextlib.closing(untyped),
            untyped.pubsub(ignore_subscribe_messages=True) as channel,
        ):
            channel.subscribe(_SWITCH)
            # A message says that there is something to see, for whatever master.
            while self._loop is not None and self._is_wanted():
                self._loop.beat()
                self._look(sentinel)
                channel.get_message(timeout=LOOK_SECONDS)

    def _look(self, sentinel: redis.Redis) -> None:
        """Take over the master's address, unless this sentinel knows less than another did."""
        state: Any = sentinel.sentinel_master(self._master)
        if state["config-epoch"] >= self._config_epoch:
            self._config_epoch = state["config-epoch"]
            self.address = state["ip"], state["port"]
            self._leave_others(self.address)

    def _leave_others(self, master: Address) -> None:
        """End the connections to any other server; who uses one connects anew and repeats."""
        with self._lock:
            others = [one for one in self._connections if (one.host, one.port) != master]
            self._connections.difference_update(others)  # back as soon as they connect again
        for connection in others:
            # Only shut down: to close it is for the thread that reads from it.
            sock: socket.socket | None = getattr(connection, "_sock", None)
            if sock is not None:
                _log.warning("connection is left", host=connection.host, master=master)
                with contextlib.suppress(OSError):
                    sock.shutdown(socket.SHUT_RDWR)


class _Followers:
    """The followers of this process, one per set of sentinels and master."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[tuple[frozenset[Address], str], Follower] = {}

    def of(self, manager: Sentinel, master: str) -> Follower:
        """The one that follows this master."""
        options = [one.connection_pool.connection_kwargs for one in manager.sentinels]
        place = frozenset((one["host"], one["port"]) for one in options), master
        with self._lock:
            found = self._known.get(place)
            if found is None:
                found = self._known[place] = Follower(
                    [_own(one) for one in manager.sentinels], master
                )
            return found


def _own(client: redis.Redis) -> redis.Redis:
    """A client like it, with connections of its own: kombu closes a manager's with its channel."""
    pool = client.connection_pool
    same = redis.ConnectionPool(connection_class=pool.connection_class, **pool.connection_kwargs)
    return redis.Redis.from_pool(same)


_followers: Final = _Followers()


class _MasterMixin(FollowingMixin):
    """A connection to the master, left when that is another.

    Attributes:
        is_open: somebody must be told of a promotion.
    """

    is_open = False

    def connect(self) -> None:
        """Connect; also a repeated attempt asks where the master is."""
        self.retry.call_with_retry(
            lambda: self.connect_check_health(check_health=False), lambda _: self.disconnect()
        )

    def _connect(self) -> socket.socket:
        """As the base's, to the master of this moment.

        The library's own class asks in `connect` alone, so its retries go to the dead one.
        """
        pool: Any = vars(self)["connection_pool"]
        follower = _followers.of(pool.sentinel_manager, pool.service_name)
        address: Address = follower.address or pool.get_master_address()
        # The pool closes returned connections to any other address.
        pool.master_address = self.host, self.port = address
        untyped: Any = super()
        sock: socket.socket = untyped._connect()  # noqa: SLF001 - our own base's
        self.is_open = True
        follower.add(self)
        return sock

    def disconnect(self, *args: Any, **kwargs: Any) -> None:
        """As the base's. May run wherever garbage is collected, so it takes no lock."""
        self.is_open = False
        untyped: Any = super()
        untyped.disconnect(*args, **kwargs)


class MasterConnection(_MasterMixin, SentinelManagedConnection):
    """Over TCP."""


class MasterTlsConnection(_MasterMixin, SentinelManagedSSLConnection):
    """Over TLS."""


class SentinelLogin(CredentialProvider):
    """User and password of the sentinels as they are at the moment of a connection."""

    def __init__(self, url: SentinelUrl) -> None:
        self._url = url

    def get_credentials(self) -> tuple[str] | tuple[str, str]:
        """The library asks for it at each connection."""
        place = self._url
        password = current_password(place.sentinel_password_file) or place.sentinel_password
        return (place.sentinel_username, password) if place.sentinel_username else (password,)

    async def get_credentials_async(self) -> tuple[str] | tuple[str, str]:
        """The same for Flower's client."""
        return self.get_credentials()


def sentinel_login(url: SentinelUrl) -> dict[str, Any]:
    """How to log in to them, by redis-py's names."""
    return {"credential_provider": SentinelLogin(url)} if url.sentinel_password else {}


def sentinel_options(url: SentinelUrl) -> dict[str, Any]:
    """How to connect to the sentinels themselves, by redis-py's names."""
    return {
        "socket_timeout": SENTINEL_TIMEOUT_SECONDS,
        "socket_connect_timeout": SENTINEL_TIMEOUT_SECONDS,
        "retry": Retry(NoBackoff(), 0),
        "decode_responses": True,
        **({"ssl": True} if url.tls else {}),
        **url.tls,
        **sentinel_login(url),
    }


def master_client(url: SentinelUrl, *, password_file: str = "", **options: Any) -> Client:
    """A client of whatever is the master; nothing is sent before the first command."""
    untyped: Any = Sentinel
    manager = untyped(
        url.hosts,
        sentinel_kwargs=sentinel_options(url),
        socket_keepalive=True,
        db=url.database,
        **url.login,
        **url.tls,
        **options,
    )
    kind: type[MasterConnection | MasterTlsConnection]
    kind = MasterTlsConnection if url.tls else MasterConnection
    kind = reading_password(kind, password_file)
    client: Client = manager.master_for(url.master, redis_class=Client, connection_class=kind)
    return client
